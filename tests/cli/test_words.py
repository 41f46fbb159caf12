"""Figures as people read them, and times as people write them."""

from __future__ import annotations

import pytest

from controlplane.cli.options import instant_ms, job_number
from controlplane.cli.words import gpus, instant, money, percent, plural, span


@pytest.mark.parametrize(
    ("value_ms", "words"),
    [
        (0, "0.0 s"),
        (3_763, "3.8 s"),
        (59_949, "59.9 s"),
        (60_000, "1 min 00 s"),
        (341_492, "5 min 41 s"),
        (3_599_999, "59 min 59 s"),
        (3_600_000, "1 h 00 min"),
        (86_399_999, "23 h 59 min"),
        (86_400_000, "1 d 00 h"),
        (100_387_411, "1 d 03 h"),
    ],
)
def test_a_span_is_read_in_its_two_largest_units(value_ms: int, words: str) -> None:
    assert span(value_ms) == words


def test_amounts() -> None:
    assert money(2_953_513_012) == "$2,953.51"
    assert money(5_000) == "$0.01"
    assert money(4_999) == "$0.00"
    assert (gpus(8_000), gpus(1_250), gpus(1_234_500), gpus(5)) == ("8", "1.25", "1,234.5", "0.005")
    assert (percent(1, 8), percent(0, 0)) == ("12.5%", "-")
    assert (plural(1, "job"), plural(2_000, "job")) == ("1 job", "2,000 jobs")


@pytest.mark.parametrize(
    ("text", "value_ms"),
    [
        ("14:30", 52_200_000),
        ("14:30:05", 52_205_000),
        ("1d 02:00:00", 93_600_000),
        ("1d02:00", 93_600_000),
        ("90m", 5_400_000),
        ("90min", 5_400_000),
        ("2h30m", 9_000_000),
        ("1d 2h 3m 4s", 93_784_000),
        ("45s", 45_000),
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
        ("", None),
        ("soon", None),
        ("12", None),
        ("h", None),
        ("1h2d", None),
        ("23:59:59", 86_399_000),
        ("24:00:00", None),
        ("25:61:00", None),
        ("12:60", None),
        ("12:00:60", None),
        ("1d 24:00", None),
        ("9" * 5_000 + "h", None),
        ("\u0661\u0662:\u0660\u0660", None),
    ],
)
def test_a_time_is_understood_or_not(text: str, value_ms: int | None) -> None:
    assert instant_ms(text) == value_ms


def test_a_job_is_named_with_its_letter_or_without() -> None:
    assert job_number("j12") == job_number("12") == 12


def test_an_instant_is_written_as_it_is_understood() -> None:
    for value_ms, text in [(0, "00:00:00"), (86_399_000, "23:59:59"), (93_784_000, "1d 02:03:04")]:
        assert instant(value_ms) == text
        assert instant_ms(text) == value_ms
