"""Kueue's classical preemption, 36 cases of victims in a cohort (SCENARIOS D11), through an adapter onto our core.

The adapter writes a ClusterQueue as a queue, a cohort as a queue above it that neither lends nor borrows at the top,
and each ClusterQueue's three preemption policies as rules. Room is without end, so that quota alone binds, as there.
A resource that a ClusterQueue has in one flavor only is quota over all flavors; else each flavor is a node of its own.
Compared are the victims and, through the cause of the revocation, whether each is reclaimed or preempted.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import LeaseGranted, LeasePhase, LeaseRevoked, Member, QueueConfigured, RoomPromised
from controlplane.domain.ids import JobId, lease_id
from controlplane.domain.queues import ANY_FLAVOR, QueueSpec, Quota
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler.facts import JobFacts, QueueFacts, ShortageFacts, VictimFacts
from tests.cases.kubernetes import amount
from tests.scheduler.core import HOME, Core
from tests.twins.plain_rules import PlainRules

CASES = 36
NOW_MS = 3_600_000
PLENTY = NodeShape(cpu_milli=10**9, memory_bytes=2**50)
BIG = 10**6
PREEMPTED, RECLAIMED = "preempted", "reclaimed"
CAUSES = {
    "InClusterQueue": PREEMPTED,
    "InCohortReclamation": RECLAIMED,
    "InCohortReclaimWhileBorrowing": PREEMPTED,
}
PINNED = {"only preempt workloads using the chosen flavor": "beta"}
"""The flavor that the case takes as chosen already; ours would choose by itself, and evict the cheaper ``low``."""
DIFFERENT: dict[str, tuple[dict[str, str], str]] = {
    "preempt newer workloads with the same priority": (
        {},
        "LowerOrNewerEqualPriority: ours evicts by priority only downwards, so that equals never move each other (D7)",
    ),
}
"""Case -> (victims of ours, why)."""


@dataclass
class Policies:
    """What a ClusterQueue says of preemption."""

    within: str = "Never"
    reclaim: str = "Never"
    borrow_up_to: int | None = None
    """While borrowing, evict others of at most this priority; ``None`` evicts none."""

    @classmethod
    def read(cls, written: dict[str, object]) -> Policies:
        borrow = written.get("BorrowWithinCohort")
        most = borrow["MaxPriorityThreshold"] if isinstance(borrow, dict) else None
        within, reclaim = (
            str(written.get(name, "Never")).removeprefix("PreemptionPolicy")
            for name in ("WithinClusterQueue", "ReclaimWithinCohort")
        )
        return cls(within, reclaim, most)


@dataclass
class ClassicalRules:
    """The policies of every ClusterQueue as rules. A bundle would say the same with ``queue.name``."""

    of: dict[str, Policies] = field(default_factory=dict)

    def rules(self) -> PlainRules:
        return PlainRules(
            may_preempt=True,
            allow=self._allow,
            victim=self._victim,
            is_eligible=lambda job, role, cluster, node: role.name in (ANY_FLAVOR, node.flavor),
            eligibility_reads=frozenset({"role.name", "node.flavor"}),
        )

    def _allow(self, job: JobFacts, queue: QueueFacts, shortage: ShortageFacts) -> Sequence[str]:
        policies = self.of[queue.name]
        scopes = ["queue"] if policies.within != "Never" else []
        scopes += ["reclaim"] if policies.reclaim != "Never" else []
        scopes += ["borrowers"] if policies.borrow_up_to is not None else []
        return scopes

    def _victim(self, preemptor: JobFacts, victim: VictimFacts) -> int | None:
        """Other queues first, then the least urgent."""
        policies = self.of[preemptor.queue]
        if victim.scope == "queue":
            return BIG + victim.priority
        if victim.scope == "reclaim" and policies.reclaim == "LowerPriority" and victim.priority >= preemptor.priority:
            return None
        if victim.scope == "borrowers" and victim.priority > (policies.borrow_up_to or 0):
            return None
        return victim.priority


class Stage:
    """One case on our core."""

    def __init__(self, case: dict[str, object]) -> None:
        self._classical = ClassicalRules()
        self._core = Core(self._classical.rules())
        self._names: dict[int, str] = {}
        self._configure(case)
        for workload in sorted(listed(case["admitted"]), key=_reserved_s):
            self._admit(workload)
        incoming = record(case["incoming"])
        pinned = PINNED.get(str(case["name"]), ANY_FLAVOR)
        self._core.submit(_spec(incoming, str(case["targetCQ"]), pinned), NOW_MS + _offset_ms(incoming))
        self._core.cycle(NOW_MS + 2_000)

    def victims(self) -> dict[str, str]:
        """Workload -> cause; evicted together with the one placement that they enable, or not at all."""
        revoked = self._core.last(LeaseRevoked)
        promises = self._core.last(RoomPromised)
        assert [list(promise.victims) for promise in promises] == ([[event.lease for event in revoked]] * bool(revoked))
        return {self._names[self._core.state.leases[event.lease].job.id]: event.cause for event in revoked}

    def _configure(self, case: dict[str, object]) -> None:
        queues = listed(case["clusterQueues"])
        cohorts = {str(record(cohort)["name"]): cohort.get("parent") for cohort in listed(case.get("cohorts", []))}
        for queue in queues:
            if "cohort" in queue:
                cohorts.setdefault(str(queue["cohort"]), None)
        for parent in [str(parent) for parent in cohorts.values() if parent]:
            cohorts.setdefault(parent, None)
        flavors = {flavor for queue in queues for flavor, _, _ in _limits(queue)}
        keys = sorted({(flavor, resource) for queue in queues for flavor, resource, _ in _limits(queue)})
        for name in sorted(cohorts, key=lambda cohort: cohorts[cohort] is not None):
            above = cohorts[name]
            closed = {} if above else _as_quotas([(flavor, resource, _closed(0)) for flavor, resource in keys])
            spec = QueueSpec(name=name, parent=str(above) if above else None, quotas=closed)
            self._core.tell(QueueConfigured(spec=spec))
        for queue in queues:
            self._queue(queue)
        self._core.home()
        for flavor in sorted(flavors | {"default"}):
            self._core.node(_node(flavor), PLENTY, flavor=flavor)

    def _queue(self, queue: dict[str, object]) -> None:
        name, cohort = str(queue["name"]), queue.get("cohort")
        limits = _limits(queue)
        if cohort is None:
            limits = [(flavor, resource, _closed(quota.nominal)) for flavor, resource, quota in limits]
        parent = str(cohort) if cohort is not None else None
        self._core.tell(QueueConfigured(spec=QueueSpec(name=name, parent=parent, quotas=_as_quotas(limits))))
        self._classical.of[name] = Policies.read(record(queue.get("preemption", {})))

    def _admit(self, workload: dict[str, object]) -> None:
        admitted = record(workload["admitted"])
        flavor = _flavor_of(admitted)
        id_ = self._core.submit(_spec(workload, str(admitted["clusterQueue"]), ANY_FLAVOR), NOW_MS)
        self._names[id_] = str(workload["name"])
        lease = lease_id(JobId(id_), 1)
        member = Member(role=ANY_FLAVOR, ordinal=0, node=_node(flavor), gpus=())
        self._core.tell(LeaseGranted(lease=lease, job=id_, attempt=1, cluster=HOME, members=(member,)))
        self._core.report(lease, LeasePhase.LAUNCHING, LeasePhase.RUNNING)


def _node(flavor: str) -> str:
    return f"node-{flavor}"


def _closed(nominal: int) -> Quota:
    """At the top of a tree nothing is lent to other trees, and nothing borrowed."""
    return Quota(nominal=nominal, borrowing_limit=0, lending_limit=0)


def _as_quotas(limits: Sequence[tuple[str, str, Quota]]) -> dict[str, dict[str, Quota]]:
    quotas: dict[str, dict[str, Quota]] = {}
    for flavor, resource, quota in limits:
        quotas.setdefault(flavor, {})[resource] = quota
    return quotas


def _limits(queue: dict[str, object]) -> list[tuple[str, str, Quota]]:
    """(flavor, resource, quota). The only flavor of a group is all flavors."""
    found: list[tuple[str, str, Quota]] = []
    for group in queue["resourceGroups"]:  # type: ignore[attr-defined]
        for of_flavor in group:
            flavor = ANY_FLAVOR if len(group) == 1 else of_flavor["flavor"]
            for limit in of_flavor["resources"]:
                name = limit["resource"]
                nominal, borrowing, lending = (
                    amount(name, limit[key]) if key in limit else None
                    for key in ("nominal", "borrowingLimit", "lendingLimit")
                )
                quota = Quota(nominal=nominal or 0, borrowing_limit=borrowing, lending_limit=lending)
                found.append((flavor, name, quota))
    return found


def _flavor_of(admitted: dict[str, object]) -> str:
    """The flavor of the node: that of memory, which alone has several."""
    flavors = [flavor for pods in listed(admitted.get("podSets", [])) for _, flavor, _ in pods["assignments"]]  # type: ignore[attr-defined]
    return next((flavor for flavor in flavors if flavor != "default"), "default")


def _spec(workload: dict[str, object], queue: str, flavor: str) -> JobSpec:
    sets = listed(workload.get("podSets", [{"requests": workload.get("requests", {}), "flavor": flavor}]))
    roles = tuple(_role(pods) for pods in sets)
    return JobSpec(name=str(workload["name"]), queue=queue, priority=int(str(workload.get("priority", 0))), roles=roles)


def _role(pods: dict[str, object]) -> Role:
    """The role is named after the flavor that it must be on."""
    asks = {name: amount(name, str(text)) for name, text in record(pods["requests"]).items()}
    return Role(
        name=str(pods["flavor"]),
        count=int(str(pods.get("count", 1))),
        cpu_milli=asks.get("cpu", 0),
        memory_bytes=asks.get("memory", 0),
    )


def _reserved_s(workload: dict[str, object]) -> float:
    return float(str(workload.get("reserved_offset_s", 0)))


def _offset_ms(workload: dict[str, object]) -> int:
    return int(1_000 * float(str(workload.get("creation_offset_s", 0))))


def record(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def listed(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value


def read_cases(data: Path) -> list[dict[str, object]]:
    """The cases, in their order."""
    text = gzip.decompress((data / "cases" / "kueue_classical_preemption.json.gz").read_bytes())
    return listed(json.loads(text)["preemption_cases"])


def test_there_are_as_many_cases_as_we_say(data_dir: Path) -> None:
    cases = read_cases(data_dir)
    assert len(cases) == CASES
    assert set(DIFFERENT) | set(PINNED) <= {str(case["name"]) for case in cases}


@pytest.mark.parametrize("number", range(CASES))
def test_the_victims_are_those_of_kueue_or_differ_for_a_reason(number: int, data_dir: Path) -> None:
    case = read_cases(data_dir)[number]
    wanted = {str(victim["workload"]): CAUSES[str(victim["reason"])] for victim in listed(case["wantPreempted"])}
    ours, reason = DIFFERENT.get(str(case["name"]), (wanted, ""))
    assert (ours != wanted) == bool(reason), "it is listed as different and is not"
    assert Stage(case).victims() == ours, f"{case['name']}: {reason}"
