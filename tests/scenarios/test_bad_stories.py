"""A story that cannot be read or played says where, what, and what to write instead; never anything else."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from controlplane.simulate.scenarios import stage
from controlplane.simulate.scenarios.expectations import Expectations, StoryWentOtherwise
from controlplane.simulate.scenarios.stage import Stage
from controlplane.simulate.scenarios.story import read_story
from controlplane.simulate.scenarios.words import BadStory
from tests.scenarios.policies import shipped

GOOD = """story: One GPU is one GPU
given:
  clusters:
    home: {nodes: {n: {gpus: 1}}}
    cloud: {offers: {o: {gpus: 1, usd_per_hour: 1}}}
  queues: {team: {quota: {gpu: 1}}}
  budgets: {daily: {usd: 10, per: 1d}}
when:
  - at: 0s
    submit: {a: {gpus: 1}, b: {gpus: 1}}
  - at: 10s
    cancel: b
    configure: {params: {largest_gang: 3}, queues: {team: {}}}
    lose: {n: 5m}
then:
  - at: 1s
    running: [a]
    waiting: {b: quota}
"""


THEN = GOOD[GOOD.index("then:") :]


def play(text: str) -> None:
    played = Stage(read_story("bad.yaml", text), shipped)
    played.play(Expectations(played).check)


def test_the_story_itself_is_good() -> None:
    play(GOOD)


def test_a_queue_may_stand_below_one_that_was_configured_meanwhile() -> None:
    """In the order of time, which need not be that of the file."""
    later = (
        "  - at: 10s\n    configure: {queues: {new: {}}}\n  - at: %s\n    configure: {queues: {below: {parent: new}}}\n"
    )
    play(GOOD.replace("then:\n", later % "11s" + "then:\n"))
    with pytest.raises(BadStory, match="queue 'below' is below 'new', which is not a queue; configure 'new' first"):
        play(GOOD.replace("then:\n  - at: 1s", later % "5s" + "then:\n  - at: 11s"))


@pytest.mark.parametrize(
    ("change", "place", "sentence"),
    [
        (("story: One", "sotry: One"), (1, 1), "a story: sotry is not known here; use story, scenario,"),
        (("story: One GPU is one GPU", "scenario: X"), (1, 1), "a story begins with 'story', one sentence"),
        (("given:", "given: {}\ngiven:"), (3, 1), "the key 'given' is here twice"),
        (("  clusters:\n", "  clutsers:\n"), (3, 3), "given: clutsers is not known here; use policy, params,"),
        (("home: {nodes", "home: {noeds"), (4, 5), "noeds"),
        (("{gpus: 1}}}\n", "{gpsu: 1}}}\n"), (4, 5), "n: a node has no gpsu"),
        (
            ("n: {gpus: 1}", "n: {gpus: 1, count: 30000}"),
            (4, 5),
            "count of n: 30000 is no whole number from 0 to 20,000",
        ),
        (("n: {gpus: 1}", "n: {gpus: -1}"), (4, 5), "gpus: -1 is no whole number"),
        (("n: {gpus: 1}", "n: {gpus: 99999}"), (4, 5), "gpus: input should be less than or equal to 1024; correct it"),
        (("home: {nodes: {n: {gpus: 1}}}", "home: {nodes: {n: {gpus: 1}}, config: {sede: 1}}"), (4, 5), "sede"),
        (("usd_per_hour: 1", "usd: 1"), (5, 5), "o: an offer has a price, usd_per_hour"),
        (("usd_per_hour: 1", "usd_per_hour: cheap"), (5, 5), "'cheap' is no number; write it like 2, 1/4 or 0.6"),
        (("{quota: {gpu: 1}}", "{parent: nobody}"), (6, 12), "queue team stands before its parent nobody"),
        (
            ("team: {quota: {gpu: 1}}", ", ".join(f"q{n}: {{{f'parent: q{n - 1}' if n else ''}}}" for n in range(65))),
            (6, 1261),
            "queue 'q64' is more than 64 levels below the root; make the tree flatter",
        ),
        (("{quota: {gpu: 1}}", "{quota: {gpu: 1/3}}"), (6, 12), "'1/3' is no whole number of thousandths"),
        (("{quota: {gpu: 1}}", "{quota: {memory: lots}}"), (6, 12), "'lots' is no amount of memory"),
        (("usd: 10, per: 1d", "usd: 10"), (7, 13), "budget daily: write it like {usd: 10, per: 1h}"),
        (("at: 0s", "at: soon"), (9, 9), "'soon' is no time; write it like 30s, 10m, 1h30m or 250ms"),
        (("at: 0s", "at: -1"), (9, 9), "-1 is no time of a story"),
        (("at: 0s", "at: 9999d"), (9, 9), "'9999d' is no time of a story"),
        (("submit:", "sumbit:"), (10, 5), "when: sumbit is not known; use submit, cancel, configure, lose, observe"),
        (("a: {gpus: 1}", "a: {gpuz: 1}"), (10, 14), "gpuz: extra inputs are not permitted; correct it"),
        (
            ("a: {gpus: 1}", "a: {copies: 1000000}"),
            (10, 14),
            "copies of a: 1000000 is no whole number from 0 to 20,000",
        ),
        (("b: {gpus: 1}", "b: {after_ok: c}"), (10, 28), "b: no job before it is called c"),
        (("b: {gpus: 1}", "a-1: {}, a: {}"), (10, 37), "the key 'a' is here twice"),
        (("a: {gpus: 1}", "a-1: {}, a: {copies: 2}"), (10, 23), "two jobs are called a-1"),
        (("cancel: b", "cancel: nobody"), (12, 5), "cancel: no job before is called nobody"),
        (
            ("{params: {largest_gang: 3}", "{params: {largest: 3}"),
            (13, 5),
            "the policy has no parameter largest; it has",
        ),
        (("{params: {largest_gang: 3}", "{params: {largest_gang: no}"), (13, 5), "is not a int"),
        (("{params: {largest_gang: 3}", "{policy: nowhere"), (13, 5), "nowhere"),
        (
            ("{params: {largest_gang: 3}", "{rules: {brust: '1'}"),
            (13, 5),
            "there is no decision point brust; the points",
        ),
        (("{params: {largest_gang: 3}", "{rules: {burst: offer.csot}"), (13, 5), "offer has no field 'csot'"),
        (
            ("queues: {team: {}}}", "queues: {a: {parent: team}, team: {parent: a}}}"),
            (13, 72),
            "queue 'team' is below itself by way of 'team'; break the cycle",
        ),
        (("lose: {n: 5m}", "lose: m"), (14, 5), "lose: no node is called m"),
        (
            ("home: {nodes: {n: {gpus: 1}}}", "home: {nodes: {n: {gpus: 1}}}\n    east: {nodes: {n: {gpus: 1}}}"),
            (15, 5),
            "n is a node of home and of east; write home/n",
        ),
        (("n: {gpus: 1}", "n1: {}, n: {count: 2}"), (4, 5), "two nodes of home are called n1"),
        (("lose: {n: 5m}", "observe: {is: ready}"), (14, 5), "observe: a report is about a job, a service, a"),
        (("lose: {n: 5m}", "observe: {job: a, is: well}"), (14, 5), "is: 'well' is not known; use launching,"),
        (
            ("a: {gpus: 1}", "a: {gpus: 1, service: {clas: relaxed}}"),
            (10, 14),
            "service of a: clas is not known here; use",
        ),
        (("a: {gpus: 1}", "a: {gpus: 1, service: {class: fast}}"), (10, 14), "service.latency_class: input should be"),
        (
            ("a: {gpus: 1}", "a: {service: {}, load: {replica: 1}}"),
            (10, 14),
            "load of a: write it like {latency: 100ms",
        ),
        (
            ("a: {gpus: 1}", "a: {load: {latency: 1s, replica: 1, curve: {0s: 1}}}"),
            (10, 14),
            "load of a: only services have one",
        ),
        (
            ("{params: {largest_gang: 3}", "{warm_pools: {w: {cluster: house, flavor: a100, blocks: 1, gpus: 1}}"),
            (13, 30),
            "warm pool w: no cluster is called house",
        ),
        (("lose: {n: 5m}", "observe: {service: c, queue: 3}"), (14, 5), "observe: no job before is called c"),
        ((THEN, "then: 3\n"), (15, 7), "then: a list of moments is expected"),
        (("running:", "runing:"), (17, 5), "then: runing is not known; use running, waiting,"),
        (("running: [a]", "placed: {c: n}"), (17, 5), "no job c has been submitted by now (submitted: a, b)"),
        (("running: [a]", "wanted: {c: 3}"), (17, 5), "no job c has been submitted by now (submitted: a, b)"),
        (("running: [a]", "uses: {meat: {gpu: 1}}"), (17, 5), "there is no queue meat; the queues are team"),
        (("running: [a]", "left: {weekly: 1}"), (17, 5), "there is no budget weekly; the budgets are daily"),
        (("running: [a]", "shares: {team: half}"), (17, 5), "'half' is no number"),
        (("running: [a]\n    waiting: {b: quota}", "because: no"), (1, 1), "a story that expects nothing cannot fail"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change: tuple[str, str], place: tuple[int, int], sentence: str) -> None:
    text = GOOD.replace(*change)
    assert text != GOOD
    # What comes last must be reached.
    with pytest.raises(BadStory) as bad:
        play(text.replace("  - at: 1s\n", "  - at: 11s\n") if place[0] in (12, 13, 14) else text)
    assert sentence in str(bad.value)
    assert bad.value.place == place


def test_a_story_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule about the time is asked again every minute."""
    monkeypatch.setattr(stage, "MAX_INSTANTS", 50)
    text = GOOD.replace("  - at: 1s\n", "  - at: 365d\n").replace("    cancel: b\n", "")
    with pytest.raises(BadStory, match="more than 50 instants; tell a shorter one") as bad:
        play(text)
    assert bad.value.place == (16, 5)


def test_a_story_of_aliases_is_refused_before_it_is_expanded() -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(9))
    with pytest.raises(BadStory, match="anchors and aliases"):
        read_story("bomb.yaml", bomb + GOOD)


ODD: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    3.5,
    "x",
    "",
    [],
    {},
    "9" * 40,
    ["a"],
    {"a": 1},
    "10m",
    "1/3",
    "-5s",
    2**70,
    "\u00e9",
    "n/x",
)
RENAMED = ("x", "gpus", "at", "job", "is", "nodes", "quota", "copies", "min", "model")
STORIES = sorted(Path(__file__).parent.glob("[bdefghq]*.yaml"))


def paths(plain: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to every part of a tree, but its root."""
    if path:
        yield path
    parts = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, part in parts:
        yield from paths(part, (*path, key))


def damaged(plain: object, draw: random.Random) -> str:
    """A story of which one part was taken out, renamed, or is something else."""
    root = copy.deepcopy(plain)
    *way, last = draw.choice(list(paths(root)))
    at: object = root
    for step in way:
        at = at[step]  # type: ignore[index]
    kind = draw.randrange(3)
    if kind == 0:
        del at[last]  # type: ignore[attr-defined]
    elif kind == 1 and isinstance(at, dict):
        at[draw.choice(RENAMED)] = at.pop(last)
    else:
        at[last] = draw.choice(ODD)  # type: ignore[index]
    return yaml.safe_dump(root, sort_keys=False, allow_unicode=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_no_damage_ends_in_anything_but_a_sentence(seed: int) -> None:
    """Kills: any KeyError, ValueError or TypeError that a misspelt story could cause."""
    draw = random.Random(seed)
    told: list[tuple[int, int] | None] = []
    for _ in range(40):
        text = damaged(yaml.safe_load(draw.choice(STORIES).read_text(encoding="utf-8")), draw)
        try:
            play(text)
        except BadStory as bad:
            told.append(bad.place)
        except StoryWentOtherwise:
            pass
    assert len(told) > 10
    assert None not in told
