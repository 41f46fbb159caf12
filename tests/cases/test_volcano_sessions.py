"""Volcano's sessions of preempt, reclaim, allocate and enqueue: 38 cases through an adapter onto our core.

The adapter writes what a queue deserves as its nominal quota and its capability as the ceiling of what it may borrow,
below one cohort that owns whatever of the cluster nobody deserves. A running pod is a gang of one, since Volcano evicts
pod by pod; the pending pods of a pod group are one gang that starts with ``minMember`` of them. Pods per node are a
named resource. Compared are the evicted, who is bound where, and on which nodes room is promised.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import LeaseGranted, LeasePhase, LeaseRevoked, Member, QueueConfigured, RoomPromised
from controlplane.domain.ids import JobId, lease_id
from controlplane.domain.queues import ANY_FLAVOR, QueueSpec, Quota
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler.facts import (
    ClusterFacts,
    JobFacts,
    NodeFacts,
    QueueFacts,
    RoleFacts,
    ShortageFacts,
    VictimFacts,
)
from tests.cases.kubernetes import amount
from tests.cases.test_kueue_preemption import listed, record
from tests.scheduler.core import HOME, Core
from tests.twins.plain_rules import PlainRules

CASES = 38
MINUTE = 60_000
COHORT = "cluster"
PRIORITIES = {"low-priority": 1, "high-priority": 10}
NO_STEP = "enqueueing is no step of ours: what is admitted waits, and the cycle says for what"
ONE_DIMENSION = "who reclaims must end within its nominal quota of everything that it asks for, not of one resource"
NOT_OURS = {
    "when podgroup status is inqueue": NO_STEP,
    "when podgroup status is pending": NO_STEP,
    "when podgroup status is running": NO_STEP,
    "pggroup cannot enqueue because the specified queue is c1, but there is only c2": NO_STEP,
    "pggroup cannot enqueue because queue resources are less than podgroup MinResources": NO_STEP,
}
"""Case -> why there is nothing to compare."""
DIFFERENT: dict[str, tuple[list[str], str]] = {
    "preempt low priority job in same queue but not pod with preemptable=false or higher priority": (
        ["preemptee3"],
        "of equals the newest goes; Volcano leaves the order to its queue of tasks",
    ),
    "case5: Can reclaim from other queues when allocated + req <= deserved on one dimension": ([], ONE_DIMENSION),
    "case8: reclaimer dimensions are considered properly while evicting reclaimees": ([], ONE_DIMENSION),
    "case9: reclaimee has intersecting scalar dimensions with deserved shouldn't be reclaimed on cpu/memory": (
        ["p31"],
        "only what the owner asks for counts: being within quota of GPUs protects no borrowed CPU",
    ),
}
"""Case -> (who is evicted here, why)."""


def _allow(job: JobFacts, queue: QueueFacts, shortage: ShortageFacts) -> Sequence[str]:
    return [] if job.labels.get("preemption") == "PreemptNever" else ["queue", "reclaim"]


def _victim(preemptor: JobFacts, victim: VictimFacts) -> int | None:
    return None if victim.labels.get("preemptable") == "false" else victim.priority


def _is_eligible(job: JobFacts, role: RoleFacts, cluster: ClusterFacts, node: NodeFacts) -> bool:
    wanted = job.labels.get("selector")
    return wanted is None or node.labels.get("selector") == wanted


class Stage:
    """One case on our core."""

    def __init__(self, case: dict[str, object]) -> None:
        self._ranks = {str(queue["name"]): int(str(queue.get("priority", 0))) for queue in listed(case["Queues"])}
        rules = PlainRules(may_preempt=True, allow=_allow, victim=_victim, is_eligible=_is_eligible)
        rules.eligibility_reads = frozenset({"job.labels", "node.labels"})
        rules.order_queue = lambda queue: (-self._ranks.get(queue.name, 0), queue.weighted_share_ppb)
        self._core = Core(rules)
        self._names: dict[int, list[str]] = {}
        self._groups = {str(group["name"]): group for group in listed(case["PodGroups"])}
        self._core.home()
        for node in listed(case["Nodes"]):
            labels = {key: str(value) for key, value in record(node.get("labels", {})).items()}
            self._core.node(str(node["name"]), _shape(node), flavor="cpu", labels=labels)
        pods = listed(case["Pods"])
        for name in self._ranks:
            self._core.tell(QueueConfigured(spec=QueueSpec(name=name)))
        for pod in pods:
            if pod["node"]:
                self._run(pod)
        self._configure(listed(case["Queues"]), listed(case["Nodes"]))
        for group in self._groups.values():
            self._submit(group, [pod for pod in pods if pod["podgroup"] == group["name"] and not pod["node"]])
        self._core.cycle(MINUTE)

    def evicted(self) -> list[str]:
        """The pods, sorted."""
        leases = [self._core.state.leases[event.lease] for event in self._core.last(LeaseRevoked)]
        return sorted(self._names[lease.job.id][0] for lease in leases)

    def bound(self) -> dict[str, str]:
        """Pod -> node."""
        found: dict[str, str] = {}
        for event in self._core.last(LeaseGranted):
            found |= {self._names[event.job][member.ordinal]: member.node for member in event.members}
        return found

    def promised(self) -> list[list[str]]:
        """The nodes of each promise."""
        return [[member.node for member in event.members] for event in self._core.last(RoomPromised)]

    def _run(self, pod: dict[str, object]) -> None:
        """Quota comes later: some of these stand above it, as after it was lowered."""
        id_ = self._core.submit(self._spec([pod], 1), 0)
        self._names[id_] = [str(pod["name"])]
        lease = lease_id(JobId(id_), 1)
        member = Member(role="main", ordinal=0, node=str(pod["node"]), gpus=())
        self._core.tell(LeaseGranted(lease=lease, job=id_, attempt=1, cluster=HOME, members=(member,)))
        self._core.report(lease, LeasePhase.LAUNCHING, LeasePhase.RUNNING)

    def _submit(self, group: dict[str, object], pods: list[dict[str, object]]) -> None:
        if pods:
            least = min(len(pods), max(1, int(str(group["minMember"]))))
            id_ = self._core.submit(self._spec(pods, least), 0)
            self._names[id_] = [str(pod["name"]) for pod in pods]

    def _spec(self, pods: list[dict[str, object]], least: int) -> JobSpec:
        pod, group = pods[0], self._groups[str(pods[0]["podgroup"])]
        labels = {key: str(value) for key, value in record(pod.get("selector", {})).items()}
        if "PodPreemptable" in record(pod.get("labels", {})):
            labels["preemptable"] = str(record(pod["labels"])["PodPreemptable"])
        if "preemptionPolicy" in pod:
            labels["preemption"] = str(pod["preemptionPolicy"])
        asks = {name: amount(name, str(text)) for name, text in record(pod.get("requests", {})).items()}
        role = Role(
            count=len(pods),
            min_count=least if least < len(pods) else None,
            cpu_milli=asks.pop("cpu", 0),
            memory_bytes=asks.pop("memory", 0),
            other={_plain(name): asked for name, asked in {**asks, "pods": 1}.items()},
        )
        priority = PRIORITIES.get(str(group.get("priorityClass")), 0)
        queue, name = str(group["queue"]), str(pod["name"])
        return JobSpec(name=name, queue=queue, priority=priority, roles=(role,), labels=labels)

    def _configure(self, queues: list[dict[str, object]], nodes: list[dict[str, object]]) -> None:
        names = sorted({name for node in nodes for name in record(node["allocatable"])} - {"pods"})
        there = {
            name: sum(amount(name, str(record(node["allocatable"]).get(name, "0"))) for node in nodes) for name in names
        }
        quotas = {str(queue["name"]): _quotas(queue, names) for queue in queues}
        deserved = {name: sum(quota[name].nominal for quota in quotas.values()) for name in names}
        rest = {name: Quota(nominal=max(0, there[name] - deserved[name])) for name in names}
        self._tell(COHORT, None, rest, False)
        for queue in queues:
            self._tell(str(queue["name"]), COHORT, quotas[str(queue["name"])], queue.get("state") == "Closed")

    def _tell(self, name: str, parent: str | None, quota: dict[str, Quota], held: bool) -> None:
        limits = {ANY_FLAVOR: {_plain(resource): limit for resource, limit in quota.items()}}
        self._core.tell(QueueConfigured(spec=QueueSpec(name=name, parent=parent, quotas=limits, held=held)))


def _quotas(queue: dict[str, object], names: list[str]) -> dict[str, Quota]:
    """Deserved is nominal; the capability is what nominal and borrowing come to."""
    deserved, capability = record(queue.get("deserved", {})), record(queue.get("capability", {}))
    found: dict[str, Quota] = {}
    for name in names:
        nominal = amount(name, str(deserved.get(name) or "0"))
        most = amount(name, str(capability[name])) - nominal if name in capability else None
        found[name] = Quota(nominal=nominal, borrowing_limit=most)
    return found


def _shape(node: dict[str, object]) -> NodeShape:
    there = {name: amount(name, str(text)) for name, text in record(node["allocatable"]).items()}
    cpu, memory = there.pop("cpu"), there.pop("memory")
    return NodeShape(cpu_milli=cpu, memory_bytes=memory, other={_plain(name): count for name, count in there.items()})


def _plain(resource: str) -> str:
    return resource.replace("/", "-")


def _plain_pods(value: object) -> list[str]:
    assert isinstance(value, list)
    return sorted(str(pod).partition("/")[2] for pod in value)


def read_cases(data: Path) -> list[dict[str, object]]:
    """The cases, in their order."""
    text = gzip.decompress((data / "cases" / "volcano_capacity_preempt_enqueue.json.gz").read_bytes())
    return listed(json.loads(text)["cases"])


def test_quantities_are_read_exactly() -> None:
    assert [amount("cpu", text) for text in ("1.5", "2000m", "0")] == [1_500, 2_000, 0]
    assert [amount("memory", text) for text in ("1.5Gi", "3G", "0Gi")] == [3 * 2**29, 3 * 10**9, 0]
    assert Fraction(3, 2) * 2**30 == amount("memory", "1.5Gi")


def test_there_are_as_many_cases_as_we_say(data_dir: Path) -> None:
    cases = read_cases(data_dir)
    assert len(cases) == CASES
    assert set(DIFFERENT) | set(NOT_OURS) <= {str(case["name"]) for case in cases}


@pytest.mark.parametrize("number", range(CASES))
def test_a_session_ends_as_in_volcano_or_differs_for_a_reason(number: int, data_dir: Path) -> None:
    case = read_cases(data_dir)[number]
    name = str(case["name"])
    if name in NOT_OURS:
        assert set(case) >= {"ExpectStatus"}, "it says what is evicted or bound, so it can be compared"
        return
    stage = Stage(case)
    wanted = _plain_pods(case.get("ExpectEvicted", []))
    ours, reason = DIFFERENT.get(name, (wanted, ""))
    assert (ours != wanted) == bool(reason), "it is listed as different and is not"
    assert stage.evicted() == ours, f"{name}: {reason}"
    if "ExpectBindsNum" in case:
        assert len(stage.bound()) == case["ExpectBindsNum"], name
    if case.get("ExpectBindMap"):
        assert stage.bound() == {pod.partition("/")[2]: node for pod, node in record(case["ExpectBindMap"]).items()}
    if not reason and case.get("ExpectPipeLined"):
        assert stage.promised() == list(record(case["ExpectPipeLined"]).values())
