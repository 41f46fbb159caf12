"""``tidegate simulate``: a workload in virtual time, and what happened, for people or as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.console import print_json, print_table, progress
from controlplane.cli.faults import DONE, WrongUse, refusal
from controlplane.cli.options import Json, LogUrl
from controlplane.cli.words import command, money, plural, span

if TYPE_CHECKING:
    from controlplane.policy.bundle import Bundle
    from controlplane.simulate.simulation import Outcomes, Simulation
    from controlplane.simulate.world import World


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
    policy: dict[str, object]
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
            "policy": self.policy,
            "virtual_s": self.outcomes.virtual_ms / 1_000,
            "wall_s": round(self.wall_s, 3),
            "jobs_per_s": self.jobs_per_s,
        }

    def tell(self) -> None:
        """What happened, and what to try next."""
        virtual = span(self.outcomes.virtual_ms)
        print(f"{self.world.name}: {virtual} in {self.wall_s:.1f} s ({self.jobs_per_s:,.0f} jobs per second)\n")
        print_figures(self.outcomes.figures)
        asked, evaluated = self.policy["asked"], self.policy["evaluated"]
        print(f"Policy       {self.policy['name']}: asked {asked:,} times, evaluated {evaluated:,} times")
        print(f"Log          {self.log}, position {self.outcomes.position}, digest {self.outcomes.digest}")
        print_next(self.log, self.outcomes.figures)


def _run(world: World, world_file: Path, bundle: Bundle, log: str, *, quiet: bool) -> _Run:
    from controlplane.cli.drafts import new_log
    from controlplane.simulate.simulation import Simulation

    begun = time.perf_counter()
    with new_log(log) as written, progress("simulating", quiet=quiet) as show:
        simulation = Simulation(world, world_file, bundle, written)
        outcomes = simulation.run(None if show is None else lambda arrived, jobs, _: show(arrived, jobs))
        simulation.plane.save_snapshot()
    return _Run(world, log, outcomes, _policy_figures(simulation, bundle), time.perf_counter() - begun)


def _policy_figures(simulation: Simulation, bundle: Bundle) -> dict[str, object]:
    counters = simulation.plane.rules.counters
    return {
        "name": bundle.name,
        "digest": bundle.digest,
        "asked": counters.asked,
        "evaluated": counters.evaluated,
        "points": counters.as_dict(),
    }


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


def print_figures(figures: Mapping[str, object]) -> None:
    """Figures of a log, as :class:`controlplane.audit.figures.Figures` sums them up."""
    jobs = _ints(figures, "jobs")
    ends = ", ".join(f"{count:,} {outcome}" for outcome, count in jobs.items() if outcome != "submitted" and count)
    print(f"Jobs         {jobs['submitted']:,} submitted{': ' if ends else ''}{ends}")
    utilisation = figures["utilisation"]
    assert isinstance(utilisation, dict)
    print(f"Utilisation  {utilisation['home']:.1%} of the GPUs at home, {utilisation['cloud']:.1%} of those rented")
    burst = _ints(figures, "burst")
    print(
        f"Burst        {burst['gpu_hours']:,.1f} GPU hours used of {burst['rented_gpu_hours']:,.1f} rented "
        f"for {money(burst['micro_usd'])}, in {plural(burst['requests'], 'request')}"
    )
    print(
        f"Decisions    {figures['decisions']:,} in {figures['events']:,} events: "
        f"{figures['placements']:,} placements, {figures['preemptions']:,} preemptions"
    )
    _print_over_promised(figures)
    _print_waits(figures)


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
