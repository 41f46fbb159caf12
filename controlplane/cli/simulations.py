"""``tidegate simulate``: a workload in virtual time, and what happened, for people or as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from controlplane.cli.console import print_json, print_sentences, print_table, progress
from controlplane.cli.faults import DONE, WrongUse, refusal
from controlplane.cli.options import Json, LogUrl
from controlplane.cli.words import command, instant, money, percent, plural, span

if TYPE_CHECKING:
    from controlplane.audit.policies import ShadowReport
    from controlplane.eventlog.port import EventLog
    from controlplane.policy.bundle import Bundle
    from controlplane.scheduler.state import BudgetAccount, Counts
    from controlplane.simulate.simulation import Outcomes, Simulation
    from controlplane.simulate.world import World

WINDOWS = 5
"""So many windows of a budget are told one by one."""


def simulate(
    world: Annotated[Path, typer.Argument(metavar="WORLD.yaml", help="Clusters, queues, budgets and a workload.")],
    log: LogUrl,
    policies: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Rules to use in place of the world's own.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**63 - 1, help="Seed of the workload, in place of the world's own.", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Run a world in virtual time and keep its log.

    The log must not exist yet. It appears when the run is complete; a run that fails or is interrupted leaves nothing.
    """
    from controlplane.simulate.world import read_world

    read = read_world(world)
    if seed is not None:
        read = read.model_copy(update={"seed": seed})
    ran = _run(read, world, _bundle(read, world, policies), log, quiet=json)
    if json:
        print_json(ran.as_dict())
    else:
        ran.tell()
    return DONE


@dataclass(frozen=True, slots=True)
class _Run:
    """A finished simulation."""

    world: World
    log: str
    outcomes: Outcomes
    policies: list[dict[str, object]]
    """What was asked of each bundle, in the order in which they came."""
    active: int
    """Which of them is active at the end."""
    shadows: list[ShadowReport]
    course: _Course
    budgets: tuple[BudgetAccount, ...]
    wall_s: float

    @property
    def jobs_per_s(self) -> float:
        submitted = _ints(self.outcomes.figures, "jobs")["submitted"]
        return round(submitted / self.wall_s, 1) if self.wall_s else 0.0

    def as_dict(self) -> dict[str, object]:
        """The object of ``--json``. Only ``wall_s`` and ``jobs_per_s`` differ between two runs of one world."""
        return {
            "ok": True,
            "world": self.world.name,
            "seed": self.world.seed,
            "log": self.log,
            "digest": self.outcomes.digest,
            "position": self.outcomes.position,
            **self.outcomes.figures,
            "policy": self.policies[self.active],
            "policies": self.policies,
            "shadows": [report.as_dict() for report in self.shadows],
            "virtual_s": self.outcomes.virtual_ms / 1_000,
            "last_submitted_s": self.course.submitted_ms / 1_000,
            "last_ended_s": self.course.ended_ms / 1_000,
            "budgets": [_budget_dict(account) for account in self.budgets],
            "wall_s": round(self.wall_s, 3),
            "jobs_per_s": self.jobs_per_s,
        }

    def tell(self) -> None:
        """What happened, and what to try next."""
        print(f"{self.world.name}: {self._simulated()}.")
        print(f"Simulated in {self.wall_s:.1f} s ({self.jobs_per_s:,.0f} jobs per second).\n")
        print_figures(self.outcomes.figures, [_budget_words(account) for account in self.budgets])
        for policy in self.policies:
            asked, evaluated, erred = policy["asked"], policy["evaluated"], policy["erred"]
            errors = f", erred for {plural(cast('int', erred), 'set')} of facts" if erred else ""
            print(f"Policy       {policy['name']}: asked {asked:,} times, evaluated {evaluated:,} times{errors}")
        print(f"Log          {self.log}, position {self.outcomes.position:,}")
        print(f"Digest       {self.outcomes.digest}")
        for report in self.shadows:
            print()
            print_sentences(report.sentences())
        print_next(self.log, self.outcomes.figures)

    def _simulated(self) -> str:
        """How much of virtual time there was, and of what."""
        jobs = _ints(self.outcomes.figures, "jobs")
        if not jobs["submitted"]:
            return "nothing was submitted"
        left = jobs["running"] + jobs["waiting"]
        submitted = f"{span(self.course.submitted_ms)} of submissions"
        if left:
            after_ms = self.outcomes.virtual_ms - self.course.submitted_ms
            return f"{submitted}; {plural(left, 'job')} had not ended when the run did, {span(after_ms)} later"
        return f"{submitted}; the last job ended {span(self.course.ended_ms - self.course.submitted_ms)} later"


@dataclass(slots=True)
class _Course:
    """How far a run has come: instants of virtual time, in milliseconds."""

    arrived: int = 0
    ended: int = 0
    submitted_ms: int = 0
    """When the last job was submitted."""
    ended_ms: int = 0
    """When the last job ended."""

    def note(self, arrived: int, counts: Counts, now_ms: int) -> None:
        """What is so at an instant."""
        ended = counts.finished + counts.failed + counts.cancelled + counts.expired + counts.refused
        if arrived > self.arrived:
            self.arrived, self.submitted_ms = arrived, now_ms
        if ended > self.ended:
            self.ended, self.ended_ms = ended, now_ms


def _run(world: World, world_file: Path, bundle: Bundle, log: str, *, quiet: bool) -> _Run:
    from controlplane.cli.drafts import new_log
    from controlplane.simulate.simulation import Simulation

    begun = time.perf_counter()
    with new_log(log) as written, progress("simulating", quiet=quiet) as show:
        simulation = Simulation(world, world_file, bundle, written)
        course = _Course()

        def follow(arrived: int, jobs: int, now_ms: int) -> None:
            course.note(arrived, simulation.plane.state.counts, now_ms)
            if show is not None:
                show(course.ended, jobs, f"{instant(now_ms)}{_differing(simulation)}, jobs ended")

        outcomes = simulation.run(follow)
        simulation.plane.save_snapshot()
        budgets = tuple(simulation.plane.state.budgets.values())
        shadows = _shadows(world, written)
    wall_s = time.perf_counter() - begun
    policies = _policy_figures(simulation)
    active = [figures["digest"] for figures in policies].index(simulation.plane.state.policy_digest)
    return _Run(world, log, outcomes, policies, active, shadows, course, budgets, wall_s)


def _shadows(world: World, log: EventLog) -> list[ShadowReport]:
    """What shadows would have decided otherwise, if there were any."""
    if not any(change.shadow is not None for change in world.policy_changes):
        return []
    from controlplane.audit.policies import shadow_reports

    return shadow_reports(log)


def _differing(simulation: Simulation) -> str:
    """What a shadow has come to so far, in few words."""
    shadow = simulation.plane.state.shadow
    return f", {shadow.name} would differ in {shadow.differed:,} cycles" if shadow is not None else ""


def _budget_dict(account: BudgetAccount) -> dict[str, object]:
    spec = account.spec
    return {
        "budget": spec.name,
        "limit_micro_usd": spec.limit_micro_usd,
        "window_ms": spec.window_ms,
        "spent_micro_usd": {str(window): spent for window, spent in sorted(account.settled.items()) if spent},
    }


def _budget_words(account: BudgetAccount) -> str:
    """What a budget allows and what was spent of it, window by window."""
    spec = account.spec
    spent = [money(amount) for _, amount in sorted(account.settled.items()) if amount]
    more = f" and {len(spent) - WINDOWS} more windows" if len(spent) > WINDOWS else ""
    listed = ", then ".join(spent[:WINDOWS]) + more
    return f"{spec.name}: {money(spec.limit_micro_usd)} for every {span(spec.window_ms)}; spent {listed or 'nothing'}"


def _policy_figures(simulation: Simulation) -> list[dict[str, object]]:
    return [
        {
            "name": bundle.name,
            "digest": bundle.digest,
            "asked": rules.counters.asked,
            "evaluated": rules.counters.evaluated,
            "erred": sum(counter.faults for counter in rules.counters.points.values()),
            "points": rules.counters.as_dict(),
        }
        for bundle, rules in simulation.plane.asked
    ]


def _bundle(world: World, world_file: Path, policies: Path | None) -> Bundle:
    """The rules that were asked for, or those that the world names."""
    from controlplane.policy.bundle import load_bundle, read_bundle_folder
    from controlplane.policy.problems import BundleRefused
    from controlplane.simulate.world import place_in

    folder = policies
    if folder is None:
        if world.policies is None:
            raise WrongUse(f"{world_file}: the world names no policies; add `policies: DIR` or give --policies DIR")
        folder = world_file.parent / world.policies
        if not folder.is_dir():
            place = place_in(world_file, ("policies",))
            what = f"there is no policy folder {str(folder)!r}"
            raise WrongUse(f"{place}: {what}; correct the path, or give --policies DIR")
    try:
        return load_bundle(read_bundle_folder(folder))
    except BundleRefused as error:
        raise WrongUse(refusal(error, str(folder))) from error


# --- for people -------------------------------------------------------------------------------------------------------


def print_figures(figures: Mapping[str, object], budgets: Sequence[str] = ()) -> None:
    """Figures of a log, as :class:`controlplane.audit.figures.Figures` sums them up; budgets beside what was spent."""
    jobs = _ints(figures, "jobs")
    ends = ", ".join(f"{count:,} {outcome}" for outcome, count in jobs.items() if outcome != "submitted" and count)
    print(f"Jobs         {jobs['submitted']:,} submitted{': ' if ends else ''}{ends}")
    if jobs["failed"]:
        from controlplane.domain.workloads import JobSpec

        starts = JobSpec.model_fields["max_attempts"].default
        print(f"             failed: ended in an error, after up to {starts} attempts (unless a job says otherwise)")
    utilisation = figures["utilisation"]
    assert isinstance(utilisation, dict)
    print(f"Utilisation  {utilisation['home']:.1%} of the GPUs at home, {utilisation['cloud']:.1%} of those rented")
    burst = _ints(figures, "burst")
    print(
        f"Burst        {burst['gpu_hours']:,.1f} GPU hours used of {burst['rented_gpu_hours']:,.1f} rented "
        f"for {money(burst['micro_usd'])}, in {plural(burst['requests'], 'request')}"
    )
    for budget in budgets:
        print(f"Budget       {budget}")
    print(
        f"Decisions    {figures['decisions']:,} in {figures['events']:,} events: "
        f"{figures['placements']:,} placements, {figures['preemptions']:,} preemptions"
    )
    _print_services(figures)
    _print_over_promised(figures)
    _print_rule_faults(figures)
    _print_waits(figures)


def _print_rule_faults(figures: Mapping[str, object]) -> None:
    from controlplane.audit.rule_faults import RuleFault
    from controlplane.cli.views import print_rule_faults

    faults = figures["rule_faults"]
    assert isinstance(faults, list)
    told = (RuleFault(fault["what"], "", fault["since_ms"], fault["position"]) for fault in faults)
    print_rule_faults([fault.sentence("") for fault in told])


def _print_services(figures: Mapping[str, object]) -> None:
    services = figures["services"]
    assert isinstance(services, dict)
    for label, of in services.items():
        within = f"{percent(of['within_objective'], of['signals'])} of {of['signals']:,} signals within its objective"
        scaled = (
            f"scaled {of['changes']:,} times, to at most {of['wanted_max']:,} replicas"
            if of["changes"]
            else "as it was"
        )
        print(f"Service      {of['name']} ({label}): {within}, {scaled}")


def _print_over_promised(figures: Mapping[str, object]) -> None:
    from controlplane.audit.sentences import over_promise
    from controlplane.domain.events import OverPromise

    promises = figures["over_promised"]
    assert isinstance(promises, list)
    for plain in promises:
        print(over_promise(OverPromise.model_validate(plain)))


def _print_waits(figures: Mapping[str, object]) -> None:
    waits = figures["waits"]
    assert isinstance(waits, dict)
    if not waits:
        return
    rows = [
        [
            queue,
            f"{of['started']:,}",
            f"{of['waiting']:,}",
            *(span(of[key]) for key in ("p50_ms", "p90_ms", "max_ms")),
        ]
        for queue, of in waits.items()
    ]
    print()
    print_table(["waits in queue", "started>", "waiting>", "p50>", "p90>", "max>"], rows)
    print()


def print_next(log: str, figures: Mapping[str, object]) -> None:
    """Three commands that work on this log as printed."""
    from controlplane.cli.drafts import MEMORY

    if log == MEMORY:
        return
    longest = figures["longest_wait"]
    job = longest["job"] if isinstance(longest, dict) else None
    first = command("why", str(job), "--log", log) if job is not None else command("top", "--log", log)
    note = f" ({job} waited longest: {span(longest['wait_ms'])})" if isinstance(longest, dict) else ""
    print(f"\nTry next{note}:")
    print(f"  {first}")
    print(f"  {command('replay', '--verify', '--log', log)}")
    print(f"  {command('log', 'verify', '--log', log)}")


def _ints(figures: Mapping[str, object], key: str) -> dict[str, int]:
    found = figures[key]
    assert isinstance(found, dict), f"{key} is a table of figures"
    return found
