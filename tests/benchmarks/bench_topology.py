"""How long the packer takes for a gang of 512 that cares where it is, on 1,250 and 10,000 nodes of eight GPUs in racks.

Each run places the gang on a cluster whose tree of domains was just dropped ("cold"), and again on the one that stands
("warm"); seats are taken back in between, outside of the clock.
"""

from __future__ import annotations

from collections.abc import Callable

from controlplane.domain.clusters import ClusterSpec
from controlplane.domain.events import ClusterConfigured, JobSubmitted, NodeObserved
from controlplane.domain.topology import Level
from controlplane.domain.workloads import JobSpec
from controlplane.scheduler.agenda import agenda_for
from controlplane.scheduler.draft import Draft, DraftSeat
from controlplane.scheduler.packing import Packer
from tests.benchmarks.machine import Json, Timing, machine, timed
from tests.scheduler.core import HOME, Core, gpus

NODES_PER_RACK, RACKS_PER_BLOCK, BLOCKS_PER_ZONE = 16, 10, 4
MEMBERS = 512
GANGS: dict[str, dict[str, str] | None] = {
    "anywhere": None,
    "required zone": {"required": "zone"},
    "preferred rack": {"preferred": "rack"},
    "preferred rack, balanced": {"preferred": "rack", "arrangement": "balanced"},
    "required rack, which none holds": {"required": "rack"},
}


class Ground:
    """A cluster and one gang that waits for it."""

    def __init__(self, core: Core, job: int) -> None:
        self.core = core
        self.job = job
        self._draft: Draft | None = None

    def place(self, *, cold: bool) -> Callable[[], list[DraftSeat] | None]:
        """Ready to place the gang; what an earlier call took is free again."""
        state = self.core.state
        if self._draft is not None:
            self._draft.undo()
        if cold:
            state.columns_version += 1
        agenda = agenda_for(state, self.core.rules)
        agenda.refresh_nodes(state)
        self._draft = Draft(state, agenda)
        packer = Packer(state, agenda, self._draft)
        needs, queue = agenda.needs_of(state, state.jobs[self.job]), state.tree.by_name["team"]

        def run() -> list[DraftSeat] | None:
            return packer.place(self.job, needs, queue, None)

        return run


def ground(nodes: int, topology: dict[str, str] | None) -> Ground:
    """Racks of sixteen nodes in blocks of ten racks in zones of four blocks."""
    core = Core(is_checked=False)
    core.tell(ClusterConfigured(spec=ClusterSpec(name=HOME)))
    core.queue("team")
    per_block = NODES_PER_RACK * RACKS_PER_BLOCK
    for at in range(nodes):
        where = {
            Level.ZONE: f"z{at // (per_block * BLOCKS_PER_ZONE)}",
            Level.BLOCK: f"b{at // per_block}",
            Level.RACK: f"r{at // NODES_PER_RACK}",
        }
        core.tell(NodeObserved(cluster=HOME, node=f"n{at}", shape=gpus(8), flavor="a100", topology=where))
    role = {"count": MEMBERS, "gpus": 1, "cpu_milli": 1_000}
    spec = JobSpec.model_validate({"name": "gang", "queue": "team", "roles": [role], "topology": topology})
    return Ground(core, core.tell(JobSubmitted(spec=spec, submitted_ms=0)))


def measure(nodes: int, runs: int = 5) -> Json:
    """Milliseconds on a calibrated core, by gang: cold and warm."""
    answer: Json = {"machine": machine(), "nodes": nodes, "members": MEMBERS}
    for name, topology in GANGS.items():
        here = ground(nodes, topology)
        here.place(cold=True)()  # the first call of a process also loads code
        cold = timed(lambda here=here: here.place(cold=True), runs)  # type: ignore[misc]
        warm = timed(lambda here=here: here.place(cold=False), runs)  # type: ignore[misc]
        answer[name] = {"cold_ms": _ms(cold), "warm_ms": _ms(warm), "seats": len(warm.answer or ())}
    return answer


def _ms(timing: Timing[list[DraftSeat] | None]) -> float:
    return round(1_000 * timing.normal_s, 2)


def sentences(answer: Json) -> str:
    """The figures as lines."""
    lines = [f"a gang of {answer['members']} on {answer['nodes']} nodes, normal milliseconds: cold, warm, seats"]
    for name in GANGS:
        figures = answer[name]
        assert isinstance(figures, dict)
        lines.append(f"  {name:32} {figures['cold_ms']:8} {figures['warm_ms']:8} {figures['seats']:6}")
    return "\n".join(lines)
