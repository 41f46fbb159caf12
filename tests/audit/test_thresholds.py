"""Thresholds of a diff: what is understood, what is refused in a sentence, and what holds."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from controlplane.audit.diff import diff
from controlplane.audit.diff_report import ALL, DiffReport, Side
from controlplane.audit.thresholds import FIGURES, BadThreshold, parse
from tests.audit.histories import HOUR, MINUTE, bundle_of, home, job, lived, world


@pytest.fixture(scope="module")
def report() -> DiffReport:
    """Of two queues on one node of four GPUs: the candidate lets the second queue go first."""
    jobs = [job(MINUTE, "first", 4, queue="a", runs=HOUR), job(MINUTE, "second", 4, queue="b", runs=HOUR)]
    of = world(jobs, home(1), queues=[{"name": "a"}, {"name": "b"}])
    candidate = bundle_of("default", {}, {"ordering.queue": "[queue.name == 'a' ? 1 : 0]"})
    found = diff(lived(of, bundle_of("default", {})), candidate)
    assert found.recorded.waits["a"].mean_ms == found.under_candidate.waits["b"].mean_ms == 0
    assert found.recorded.waits["b"].mean_ms == found.under_candidate.waits["a"].mean_ms == HOUR
    return found


def with_sides(report: DiffReport, recorded: dict[str, object], candidate: dict[str, object]) -> DiffReport:
    """The report with other figures."""
    return dataclasses.replace(
        report,
        recorded=_replaced(report.recorded, recorded),
        under_candidate=_replaced(report.under_candidate, candidate),
    )


def _replaced(side: Side, figures: dict[str, object]) -> Side:
    return dataclasses.replace(side, **figures)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("changed_decisions>0", True),
        ("changed_decisions>=100%", True),
        ("changed_decisions>100%", False),
        ("wait_increase>59min", True),
        ("wait_increase>=1h", True),
        ("wait_increase>1h", False),
        ("wait_increase>3600000ms", False),
        ("wait_increase>3599.999s", True),
        ("wait_increase[a]>10min", True),
        ("wait_increase[b]>0s", False),
        ("wait_increase>1000000%", True),  # from nothing: more than any part of it
        ("wait_increase[b]>0%", False),
        ("wait_p95_increase[a]>=1h", True),
        ("job_wait_increase>=1h", True),
        ("job_wait_increase>1h", False),
        ("share_loss>0%", False),
        ("not_started_increase>0", False),
        ("preemptions_increase>=0", True),
        ("faults>0", False),
        (" wait_increase [ a ] > 10 min ", True),
    ],
)
def test_a_threshold_holds_or_not(report: DiffReport, text: str, holds: bool) -> None:
    verdict = parse(text).verdict(report)
    assert verdict.holds is holds, verdict.sentence
    assert verdict.sentence.startswith(f"{text.strip()} {'holds' if holds else 'does not hold'}: ")


@pytest.mark.parametrize(
    ("text", "recorded", "candidate", "holds"),
    [
        ("money_increase>$1", {"micro_usd": 10_000_000}, {"micro_usd": 11_000_000}, False),
        ("money_increase>0.99usd", {"micro_usd": 10_000_000}, {"micro_usd": 11_000_000}, True),
        ("money_increase>=10%", {"micro_usd": 10_000_000}, {"micro_usd": 11_000_000}, True),
        ("money_increase>=10.0001%", {"micro_usd": 10_000_000}, {"micro_usd": 11_000_000}, False),
        ("money_increase>$0", {"micro_usd": 0}, {"micro_usd": 1}, True),
        ("burst_increase>2h", {"burst_gpu_hours": 0.1}, {"burst_gpu_hours": 2.1}, False),
        ("burst_increase>=2", {"burst_gpu_hours": 0.1}, {"burst_gpu_hours": 2.1}, True),
        ("preemptions_increase>4", {"preemptions": 3}, {"preemptions": 8}, True),
        ("placements_decrease>50%", {"placements": 8}, {"placements": 4}, False),
        ("placements_decrease>0", {"placements": 4}, {"placements": 8}, False),
        ("utilisation_loss>10%", {"utilisation": {"home": 0.5}}, {"utilisation": {"home": 0.44}}, True),
        ("utilisation_loss>12%", {"utilisation": {"home": 0.5}}, {"utilisation": {"home": 0.44}}, False),
        ("faults>0", {"faults": ()}, {"faults": ("a rule erred",)}, True),
    ],
)
def test_figures_are_compared_exactly(
    report: DiffReport, text: str, recorded: dict[str, object], candidate: dict[str, object], holds: bool
) -> None:
    verdict = parse(text).verdict(with_sides(report, recorded, candidate))
    assert verdict.holds is holds, verdict.sentence


def test_the_queue_that_loses_most_of_its_share_is_named(report: DiffReport) -> None:
    shares = {queue: dataclasses.replace(share, part=0.5) for queue, share in report.recorded.shares.items()}
    less = {"a": dataclasses.replace(shares["a"], part=0.45), "b": dataclasses.replace(shares["b"], part=0.4)}
    found = with_sides(report, {"shares": shares}, {"shares": less})
    assert parse("share_loss>=20%").verdict(found).sentence == (
        "share_loss>=20% holds: b: 50.0% in the log, 40.0% under the candidate (20.0% worse)"
    )
    assert not parse("share_loss[a]>10%").verdict(found).holds


def test_every_figure_can_be_limited(report: DiffReport) -> None:
    for name in FIGURES:
        assert parse(f"{name}>5%").verdict(report).sentence.startswith(name)
        assert parse(f"{name}>5%").limit == Fraction(1, 20)


def test_all_queues_together_are_no_queue(report: DiffReport) -> None:
    assert ALL in report.recorded.waits
    with pytest.raises(BadThreshold, match="no job of the log is of queue"):
        parse(f"wait_increase[{ALL}]>1s").verdict(report)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is no threshold"),
        ("share_loss", "is no threshold"),
        ("share_loss<5%", "is no threshold"),
        ("share_loss>five", "is no threshold"),
        ("share_loss>-1%", "is no threshold"),
        ("shares_loss>5%", "there is no figure 'shares_loss'; there are changed_decisions, share_loss,"),
        ("share_loss>5", "share_loss is not given in 'plain numbers'; units: '%'"),
        ("wait_increase>5", "units: 'ms', 's', 'm', 'min', 'h', 'd', '%'"),
        ("wait_increase>$5", "wait_increase is not given in '$'"),
        ("money_increase>5", "units: '$', 'usd', '%'"),
        ("money_increase>$5%", "money_increase is not given in '$%'"),
        ("preemptions_increase>5h", "units: none, '%'"),
        ("money_increase[a]>5%", "money_increase is not known by queue; leave [a] out"),
    ],
)
def test_what_is_not_understood_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadThreshold) as refused:
        parse(text)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith(f"--fail-if {text!r}")
