"""Chance is a hash: the published values, and independence of order."""

from __future__ import annotations

from federation.simulated.draws import draw, draw_below, happens, mix

GAMMA = 0x9E3779B97F4A7C15


def test_mix_gives_the_published_sequence_of_splitmix64() -> None:
    state, values = 1_234_567, []
    for _ in range(5):
        state = (state + GAMMA) % 2**64
        values.append(mix(state))
    assert values == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_every_argument_matters() -> None:
    base = (7, "launch", "j12.1", 0)
    others = [(8, "launch", "j12.1", 0), (7, "lead", "j12.1", 0), (7, "launch", "j12.2", 0), (7, "launch", "j12.1", 1)]
    shifted = (7, "launchj", "12.1", 0)
    values = [draw(*arguments) for arguments in (base, *others, shifted)]
    assert len(set(values)) == len(values)
    assert draw(*base) == values[0]


def test_draws_are_spread_evenly() -> None:
    """10,000 draws over ten boxes: chi-square with 9 degrees of freedom is below 27.9 in 999 of 1,000 seeds."""
    boxes = [0] * 10
    for job in range(10_000):
        boxes[draw_below(10, 42, "launch", f"j{job}.1")] += 1
    assert sum((box - 1_000) ** 2 for box in boxes) / 1_000 < 27.9
    assert not any(happens(0, 1, "x", str(job)) for job in range(100))
    assert all(happens(1_000_000, 1, "x", str(job)) for job in range(100))
