"""The generator: the same everywhere, shaped like the traces, and bent only where the profile says so."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from controlplane.domain.model import canonical_bytes
from controlplane.intake.figures import MEASURED
from controlplane.intake.generator import (
    ModelShare,
    QueueProfile,
    Rush,
    SizeShare,
    WorkloadProfile,
    generate,
    mean_gpu_ms,
)
from controlplane.intake.traces import Outcome, TraceJob, gpus_milli

HOUR_MS = 3_600_000
QUEUES = (QueueProfile(name="vision", share=3, users=4), QueueProfile(name="speech", share=1, priority=7))
WEEK = WorkloadProfile(days=7, jobs_per_day=1_000, queues=QUEUES, max_runtime_ms=1_000 * 24 * HOUR_MS, largest_sweep=1)
"""Without sweeps every job is drawn alone, so that shares come out within a few deviations."""


def digest(jobs: list[TraceJob]) -> str:
    """Over everything that a job carries and that is not a default, as in the log."""
    total = hashlib.sha256()
    for job in jobs:
        parts = [job.spec.model_dump(mode="json", exclude_defaults=True), job.arrival_ms, job.runtime_ms, job.outcome]
        total.update(canonical_bytes(parts))
    return total.hexdigest()


def week(seed: int = 1, **changes: object) -> list[TraceJob]:
    return list(generate(WEEK.model_copy(update=changes), seed))


def test_profile_and_seed_fix_every_byte() -> None:
    assert digest(week()) == digest(week())
    assert digest(week(seed=2)) != digest(week())
    # Written down, so that another Python or machine that draws otherwise is noticed. Recalibration changes it.
    assert digest(week(days=1, largest_sweep=300)) == DIGEST_OF_MONDAY


DIGEST_OF_MONDAY = "ccaeb1c50692dae61958dd0607070ce02414d6cba65d48dfe9d8e3fa0349738a"


def test_jobs_come_in_order_under_unique_names_within_the_days() -> None:
    jobs = week()
    assert len(jobs) == 7_000
    assert [job.arrival_ms for job in jobs] == sorted(job.arrival_ms for job in jobs)
    assert jobs[0].arrival_ms >= 0
    assert jobs[-1].arrival_ms < 7 * 24 * HOUR_MS
    assert len({job.spec.name for job in jobs}) == len(jobs)


def test_people_submit_in_sweeps() -> None:
    """Philly's 82,247 jobs came in 39,539 sweeps: 2.1 jobs each."""
    jobs = week(largest_sweep=300)
    starts = 1
    for before, after in pairwise(sorted(jobs, key=lambda job: (job.spec.user, job.spec.queue, job.arrival_ms))):
        alike = before.spec.user == after.spec.user and before.spec.roles is after.spec.roles
        starts += not (alike and after.arrival_ms - before.arrival_ms < 3_000)
    assert 17 * starts < len(jobs) * 10 < 27 * starts
    assert len(jobs) == 7_000


def test_a_sweep_at_midnight_does_not_outlive_the_last_day() -> None:
    evening = (*(Rush(day=0, hour=hour, percent=0) for hour in range(23)), Rush(day=0, hour=23, percent=3_000))
    late = WEEK.model_copy(update={"days": 1, "jobs_per_day": 50, "largest_sweep": 300, "rushes": evening})
    assert all(23 * HOUR_MS <= job.arrival_ms < 24 * HOUR_MS for seed in range(150) for job in generate(late, seed))


def test_alike_jobs_share_their_roles() -> None:
    jobs = week()
    by_value = {tuple(role.model_dump_json() for role in job.spec.roles) for job in jobs}
    assert len({id(job.spec.roles) for job in jobs}) == len(by_value)


def test_the_tide_follows_the_hours_and_the_clock() -> None:
    by_hour = Counter(job.arrival_ms // HOUR_MS % 24 for job in week(hours_ahead=0, jobs_per_day=3_000))
    total = sum(by_hour.values())
    for hour, expected_ppm in enumerate(MEASURED.hours):
        assert abs(by_hour[hour] * 1_000_000 // total - expected_ppm) < 6_000
    ahead = Counter(job.arrival_ms // HOUR_MS % 24 for job in week(hours_ahead=8, jobs_per_day=3_000))
    assert ahead.most_common(1)[0][0] == (by_hour.most_common(1)[0][0] + 8) % 24 == 15


def test_the_week_follows_the_weekdays() -> None:
    by_day = Counter(job.arrival_ms // (24 * HOUR_MS) for job in week(first_weekday=4, jobs_per_day=3_000))
    assert by_day[0] > 2 * by_day[1], "Friday is the busiest day, Saturday the quietest but one"


def test_queues_submit_by_their_shares_and_with_their_priority() -> None:
    jobs = week()
    by_queue = Counter(job.spec.queue for job in jobs)
    assert abs(by_queue["vision"] * 4 - len(jobs) * 3) < len(jobs) // 10
    assert {job.spec.priority for job in jobs if job.spec.queue == "speech"} == {7}
    assert {job.spec.user for job in jobs if job.spec.queue == "vision"} == {f"vision-u{n}" for n in (1, 2, 3, 4)}


def test_the_first_user_submits_most() -> None:
    by_user = Counter(job.spec.user for job in week() if job.spec.queue == "vision")
    assert by_user.most_common(1)[0][0] == "vision-u1"


def test_sizes_follow_the_trace() -> None:
    sizes = Counter(gpus_milli(job.spec) // 1_000 for job in week(cpu_only_ppm=0, fraction_ppm=0, jobs_per_day=3_000))
    total = sum(sizes.values())
    for gpus, expected_ppm in MEASURED.sizes:
        assert abs(sizes[gpus] * 1_000_000 // total - expected_ppm) < 6_000


def test_kinds_follow_the_profile() -> None:
    jobs = week(cpu_only_ppm=250_000, fraction_ppm=500_000, sizes=(SizeShare(gpus=1, share=1),))
    cpu = [job for job in jobs if not gpus_milli(job.spec)]
    part = [job for job in jobs if 0 < gpus_milli(job.spec) < 1_000]
    assert abs(len(cpu) - len(jobs) // 4) < len(jobs) // 20
    assert abs(len(part) - len(jobs) * 3 // 8) < len(jobs) // 20


def test_large_jobs_are_gangs_over_nodes() -> None:
    jobs = week(cpu_only_ppm=0, fraction_ppm=0, sizes=(SizeShare(gpus=10, share=1),), gpus_per_node=4)
    assert {tuple((role.count, role.gpus) for role in job.spec.roles) for job in jobs} == {((2, 4), (1, 2))}


def test_models_are_named_as_often_as_asked() -> None:
    models = (ModelShare(model="A100", share=3), ModelShare(model="H100", share=1))
    jobs = week(gpu_models=models, model_choice_ppm=400_000, cpu_only_ppm=0)
    named = Counter(job.spec.roles[0].gpu_models for job in jobs)
    assert abs(named[()] * 10 - len(jobs) * 6) < len(jobs)
    assert abs(named[("A100",)] - 3 * named[("H100",)]) < len(jobs) // 10


def test_those_who_stay_home_say_so() -> None:
    assert all(not job.spec.labels for job in week())
    assert all(job.spec.labels == {"tidegate/stay-home": "true"} for job in week(stay_home_ppm=1_000_000))
    own = (QueueProfile(name="a", share=1, stay_home_ppm=1_000_000), QueueProfile(name="b", share=1))
    jobs = week(queues=own, stay_home_labels={"data": "on-prem"})
    assert {(job.spec.queue, job.spec.labels.get("data")) for job in jobs} == {("a", "on-prem"), ("b", None)}


def test_a_rush_adds_jobs_to_its_hours_and_queue_only() -> None:
    rush = Rush(day=2, hour=10, hours=4, percent=500, queue="vision")
    calm, hasty = week(), week(rushes=(rush,))
    assert len(hasty) > len(calm)

    def count(jobs: list[TraceJob], queue: str) -> int:
        first = (2 * 24 + 10) * HOUR_MS
        return sum(first <= job.arrival_ms < first + 4 * HOUR_MS and job.spec.queue == queue for job in jobs)

    assert count(hasty, "vision") > 3 * count(calm, "vision")
    assert abs(count(hasty, "speech") - count(calm, "speech")) < 60
    # A thousand a day, three quarters of them vision's: about 135 of them in these four hours.
    assert 3 * 135 < len(hasty) - len(calm) < 5 * 135


def test_runs_follow_the_quantiles_and_the_limits() -> None:
    single = week(cpu_only_ppm=0, fraction_ppm=0, sizes=(SizeShare(gpus=1, share=1),))
    runtimes = sorted(job.runtime_ms or 0 for job in single)
    table = MEASURED.runtimes_s[1]
    assert table[6] * 900 < runtimes[len(runtimes) * 4 // 10] < table[6] * 1_100
    assert table[11] * 900 < runtimes[len(runtimes) * 9 // 10] < table[11] * 1_100
    assert max(job.runtime_ms or 0 for job in week(max_runtime_ms=HOUR_MS)) == HOUR_MS
    pairs = zip(week(runtime_percent=50), week(), strict=True)
    assert all(half.runtime_ms == (full.runtime_ms or 0) // 2 for half, full in pairs)


def test_failures_and_estimates_follow_the_profile() -> None:
    jobs = week(failed_ppm=100_000, estimated_ppm=500_000)
    assert abs(sum(job.outcome is Outcome.FAILED for job in jobs) - len(jobs) // 10) < len(jobs) // 50
    assert abs(sum(job.spec.estimate_ms is None for job in jobs) - len(jobs) // 2) < len(jobs) // 50
    asked = [job.spec.estimate_ms or 0 for job in week()]
    assert all(estimate % 60_000 == 0 and estimate > 0 for estimate in asked)


def test_one_knob_leaves_the_rest_as_it_was() -> None:
    """Arrivals do not move when kinds do, and runs do not when only their outcome does."""
    assert [job.arrival_ms for job in week(fraction_ppm=0)] == [job.arrival_ms for job in week()]
    assert [job.runtime_ms for job in week(failed_ppm=0)] == [job.runtime_ms for job in week()]


def test_the_mean_says_what_a_cluster_needs() -> None:
    jobs = week(jobs_per_day=3_000, max_runtime_ms=24 * HOUR_MS)
    drawn = sum(gpus_milli(job.spec) * (job.runtime_ms or 0) // 1_000 for job in jobs) // len(jobs)
    expected = mean_gpu_ms(WEEK.model_copy(update={"max_runtime_ms": 24 * HOUR_MS}))
    assert abs(drawn - expected) < expected // 8


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"queues": []}, "at least 1 item"),
        ({"queues": [{"name": "a", "share": 1}] * 2}, "two queues of the profile have the same name"),
        ({"queues": [{"name": "a", "share": 0}]}, "the shares of queues are all zero"),
        ({"sizes": [{"gpus": 1, "share": 0}]}, "the shares of sizes are all zero"),
        ({"sizes": [{"gpus": 10**12, "share": 1}]}, "less than or equal to 100000"),
        ({"gpu_models": [{"model": "T4", "share": 0}]}, "the shares of gpu_models are all zero"),
        ({"rushes": [{"day": 1, "hour": 0, "percent": 200}]}, "a rush on day 1 is after the last day"),
        ({"rushes": [{"day": 0, "hour": 0, "percent": 200, "queue": "z"}]}, "a rush names queue z"),
        ({"rushes": [{"day": 0, "hour": 0, "hours": 24, "percent": 0}]}, "the rushes leave no hour"),
        ({"days": 3_660, "jobs_per_day": 10_000}, "a workload has at most 10,000,000 jobs"),
        ({"jobs_per_day": 10_000_000, "rushes": [{"day": 0, "hour": 0, "percent": 200}]}, "at most 10,000,000 jobs"),
        ({"jobs_per_day": -5}, "greater than or equal to 1"),
        ({"jobs_per_day": float("nan")}, "valid integer"),
        ({"jobs_per_weekday": 1}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_profile_is_refused(changes: dict[str, object], sentence: str) -> None:
    good: dict[str, object] = {"jobs_per_day": 10, "queues": [{"name": "a", "share": 1}]}
    WorkloadProfile.model_validate(good)
    with pytest.raises(ValidationError, match=sentence):
        WorkloadProfile.model_validate(good | changes)


_ppm = st.integers(0, 1_000_000)


@given(st.integers(), st.integers(1, 40), _ppm, _ppm, _ppm, _ppm, st.integers(1, 10_000), st.integers(1, 10**10))
def test_every_profile_gives_its_jobs(
    seed: int, jobs: int, cpu: int, part: int, failed: int, estimated: int, percent: int, limit_ms: int
) -> None:
    profile = WorkloadProfile(
        jobs_per_day=jobs,
        queues=QUEUES,
        cpu_only_ppm=cpu,
        fraction_ppm=part,
        failed_ppm=failed,
        estimated_ppm=estimated,
        runtime_percent=percent,
        max_runtime_ms=limit_ms,
    )
    found = list(generate(profile, seed))
    assert len(found) == jobs
    assert all(1 <= (job.runtime_ms or 0) <= limit_ms for job in found)
    for job in found:
        assert type(job.spec).model_validate(job.spec.model_dump()) == job.spec
