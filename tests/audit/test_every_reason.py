"""One job for each reason, from a real log: what ``why`` says is the cause, and what would have helped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from controlplane.audit.why import why
from controlplane.domain.clusters import Budget, ClusterSpec, NodeShape, Site, WarmPool
from controlplane.domain.events import (
    BudgetConfigured,
    ClusterConfigured,
    Event,
    JobSubmitted,
    LeaseObserved,
    LeasePhase,
    NodeObserved,
    PolicyActivated,
    QueueConfigured,
    ServiceObserved,
    WarmPoolConfigured,
)
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.domain.reasons import Reason
from controlplane.domain.workloads import JobSpec, Role, ServiceSpec
from controlplane.eventlog.memory import MemoryLog
from controlplane.policy.bundle import load_bundle
from controlplane.runtime.plane import ControlPlane
from tests.policy.bundles import one_rule
from tests.scheduler.core import CLOUD, HOME, HOUR, gpus, job, offer

MINUTE = 60_000
EMPTY = {"bundle.yaml": "name: empty\n"}


class Place:
    """A control plane on a log in memory, told what happens minute by minute."""

    def __init__(self, rules: dict[str, str] | None = None, **nodes: NodeShape) -> None:
        self.log = MemoryLog()
        self.plane = ControlPlane(self.log)
        self.now_ms = 0
        bundle = load_bundle(rules or EMPTY)
        self.tell(PolicyActivated(name=bundle.name, digest=bundle.digest, files=bundle.files))
        self.tell(ClusterConfigured(spec=ClusterSpec(name=HOME)))
        for name, shape in nodes.items():
            self.node(name, shape)

    def tell(self, event: Event) -> int:
        """Record one input; gives its position."""
        [(position, _)] = self.plane.record([(event, "test")], self.now_ms)
        return position

    def node(self, name: str, shape: NodeShape, labels: dict[str, str] | None = None) -> None:
        """A node of the home cluster."""
        flavor = (shape.gpu_model or "cpu").lower()
        self.tell(NodeObserved(cluster=HOME, node=name, shape=shape, flavor=flavor, labels=labels or {}))

    def queue(self, name: str = "team", gpu: int | None = None, *, held: bool = False) -> None:
        """A queue, with so many GPUs of quota."""
        quotas = {"any": {"gpu": Quota(nominal=1_000 * gpu)}} if gpu is not None else {}
        self.tell(QueueConfigured(spec=QueueSpec(name=name, quotas=quotas, held=held)))

    def submit(self, spec: JobSpec) -> int:
        """A job comes, and a cycle sees it a minute later."""
        position = self.tell(JobSubmitted(spec=spec, submitted_ms=self.now_ms))
        self.go_on()
        return position

    def go_on(self, minutes: int = 1) -> None:
        """Time passes; the plane does what is due."""
        self.now_ms += minutes * MINUTE
        self.plane.advance(self.now_ms)

    def over(self, id_: int, phase: LeasePhase) -> None:
        """The lease of a job is over."""
        lease = self.plane.state.jobs[id_].lease
        assert lease is not None
        self.tell(LeaseObserved(cluster=HOME, lease=lease, phase=phase, observed_ms=self.now_ms))
        self.go_on()


@dataclass(frozen=True)
class Case:
    """What the answer must say: the first line with the reason, and the smallest change."""

    cause: str
    change: str
    play: Callable[[], tuple[Place, int]]


def rule_failed() -> tuple[Place, int]:
    site = Place(one_rule("admission", "match:\n  - output: |\n      string(1 / (job.priority - 5))"), a=gpus(8))
    site.queue()
    return site, site.submit(job(1, priority=5))


def refused_by_policy() -> tuple[Place, int]:
    site = Place(one_rule("admission", "match:\n  - output: |\n      'name your team'"), a=gpus(8))
    site.queue()
    return site, site.submit(job(1))


def unknown_queue() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue()
    return site, site.submit(job(1, queue="taem"))


def dependency_failed() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue()
    first = site.submit(job(1, max_attempts=1))
    after = site.submit(job(1, after_ok=(first,)))
    site.over(first, LeasePhase.FAILED)
    site.go_on()
    return site, after


def exceeds_quota_ceiling() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue(gpu=4)
    return site, site.submit(job(6))


def no_node_of_model() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue()
    return site, site.submit(job(1, gpu_models=("B200",)))


def exceeds_every_node() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue()
    return site, site.submit(job(16))


def exceeds_capacity() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue()
    return site, site.submit(job(8, members=2))


def racks() -> Place:
    """Two racks of two nodes of four GPUs."""
    site = Place()
    for name, rack, model in (("a0", "a", "T4"), ("a1", "a", "A100"), ("b0", "b", "T4"), ("b1", "b", "A100")):
        site.tell(
            NodeObserved(cluster=HOME, node=name, shape=gpus(4, model), flavor="a100", topology={"rack": rack})  # type: ignore[dict-item]
        )
    site.queue()
    return site


def exceeds_topology() -> tuple[Place, int]:
    site = racks()
    return site, site.submit(job(4, members=3, topology={"required": "rack"}))


def topology() -> tuple[Place, int]:
    site = racks()
    for _ in range(2):  # one node of each rack
        site.submit(job(4, gpu_models=("T4",)))
    return site, site.submit(job(4, members=2, topology={"required": "rack"}))


def not_eligible() -> tuple[Place, int]:
    site = Place(one_rule("eligibility", "match:\n  - output: \"'ok' in node.labels\""), a=gpus(8))
    site.queue()
    return site, site.submit(job(1))


def queue_held() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue(held=True)
    return site, site.submit(job(1))


def dependency() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue()
    first = site.submit(job(1))
    return site, site.submit(job(1, after_ok=(first,)))


def array_full() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue()
    site.submit(job(1, array="sweep", max_running=1))
    return site, site.submit(job(1, array="sweep", max_running=1))


def quota() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue(gpu=4)
    site.submit(job(3))
    return site, site.submit(job(2))


def budget() -> tuple[Place, int]:
    site = Place(one_rule("burst", "match:\n  - output: offer.cost_micro_usd"), a=gpus(1))
    site.tell(
        ClusterConfigured(
            spec=ClusterSpec(name=CLOUD, site=Site.CLOUD, offers=(offer("a", 8_000_000), offer("b", 9_000_000)))
        )
    )
    site.tell(BudgetConfigured(spec=Budget(name="money", limit_micro_usd=1_000_000, window_ms=HOUR)))
    site.queue()
    return site, site.submit(job(8, estimate_ms=HOUR))


def reserved() -> tuple[Place, int]:
    site = Place(one_rule("reservation", "match:\n  - output: '1'"), a=gpus(8))
    site.queue()
    site.submit(job(4, estimate_ms=HOUR))
    site.submit(job(8, estimate_ms=HOUR))
    return site, site.submit(job(2, name="second", estimate_ms=2 * HOUR))


def held_warm() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue()
    site.tell(WarmPoolConfigured(spec=WarmPool(name="spare", cluster=HOME, flavor="a100", blocks=3, gpus=2)))
    return site, site.submit(job(4))


def behind_head() -> tuple[Place, int]:
    site = Place(one_rule("overtaking", "match:\n  - output: '[]'"), a=gpus(8))
    site.queue()
    site.submit(job(4))
    site.submit(job(8, name="head", priority=1))
    return site, site.submit(job(1))


def capacity() -> tuple[Place, int]:
    site = Place(a=gpus(8))
    site.queue()
    site.submit(job(6))
    return site, site.submit(job(4))


def room_promised() -> tuple[Place, int]:
    site = Place(one_rule("preemption.allow", "match:\n  - output: '[\"queue\"]'"), a=gpus(8))
    site.queue()
    site.submit(job(8))
    return site, site.submit(job(8, priority=9))


def provisioning() -> tuple[Place, int]:
    site = Place(one_rule("burst", "match:\n  - output: offer.cost_micro_usd"), a=gpus(1))
    site.tell(ClusterConfigured(spec=ClusterSpec(name=CLOUD, site=Site.CLOUD, offers=(offer("a", 8_000_000),))))
    site.tell(BudgetConfigured(spec=Budget(name="money", limit_micro_usd=10**12, window_ms=HOUR)))
    site.queue()
    id_ = site.submit(job(8, estimate_ms=HOUR))
    site.go_on()
    return site, id_


CASES = {
    Reason.RULE_FAILED: Case("a rule erred", "a rule that does not err on it", rule_failed),
    Reason.REFUSED_BY_POLICY: Case(
        "name your team", "another job, or an admission rule that lets it in", refused_by_policy
    ),
    Reason.UNKNOWN_QUEUE: Case(
        "there is no queue 'taem'", "a queue of that name, or a job for one of the queues", unknown_queue
    ),
    Reason.DEPENDENCY_FAILED: Case(
        "ended otherwise", "submitting it again, after a job that finishes", dependency_failed
    ),
    Reason.EXCEEDS_QUOTA_CEILING: Case("more than its queue could ever use", "higher by 2 GPUs", exceeds_quota_ceiling),
    Reason.NO_NODE_OF_MODEL: Case(
        "no node has a GPU of a model", "a node of a model that it accepts", no_node_of_model
    ),
    Reason.EXCEEDS_EVERY_NODE: Case("no node is large enough", "a larger node", exceeds_every_node),
    Reason.EXCEEDS_CAPACITY: Case("no cluster holds the whole gang", "more nodes in one cluster", exceeds_capacity),
    Reason.EXCEEDS_TOPOLOGY: Case("no one domain", "a larger rack, a smaller gang", exceeds_topology),
    Reason.NOT_ELIGIBLE: Case("the eligibility rules refuse", "an eligibility rule that lets it onto", not_eligible),
    Reason.QUEUE_HELD: Case("held by the operator", "releasing the hold", queue_held),
    Reason.DEPENDENCY: Case("jobs that must be over", "the end of the jobs that it waits for", dependency),
    Reason.ARRAY_FULL: Case("as many jobs of its array", "the end of one job of its array", array_full),
    Reason.QUOTA: Case("short of 1 GPU", "1 GPU more quota", quota),
    Reason.BUDGET: Case("no budget is left", "$9.13 more in budget money", budget),
    Reason.TOPOLOGY: Case("not within one domain", "more of its members in", topology),
    Reason.RESERVED: Case(
        "kept for a job that goes first", "an estimate that ends before the reserved start", reserved
    ),
    Reason.HELD_WARM: Case("held warm for services", "a smaller warm pool", held_warm),
    Reason.BEHIND_HEAD: Case("who goes before it waits", "the start of the job in front", behind_head),
    Reason.CAPACITY: Case("what is free does not hold", "2 GPUs more free on a", capacity),
    Reason.ROOM_PROMISED: Case("room is promised to it", "the end of what stands in the way", room_promised),
    Reason.PROVISIONING: Case("cloud capacity was asked for", "the arrival of the nodes", provisioning),
}


OF_REPLICAS = {Reason.TAKE_LIMIT}
"""For which a service that runs lacks replicas, and no job waits."""


def test_why_tells_why_a_service_lacks_replicas() -> None:
    rules = one_rule("service.replicas", "match:\n  - output: '3'")
    rules["bundle.yaml"] += "  preemption.allow: [allow.yaml]\n  service.take: [take.yaml]\n"
    rules["allow.yaml"] = "name: allow\npoint: preemption.allow\nrule:\n  match:\n    - output: \"['queue']\"\n"
    rules["take.yaml"] = "name: take\npoint: service.take\nrule:\n  match:\n    - output: '1000'\n"
    site = Place(rules, a=gpus(4))
    site.queue()
    site.submit(job(2))
    role = Role(count=3, min_count=1, gpus=2)
    chat = site.submit(JobSpec(name="chat", queue="team", roles=(role,), priority=9, service=ServiceSpec()))
    lease = site.plane.state.jobs[chat].lease or ""
    site.tell(ServiceObserved(cluster=HOME, lease=lease, observed_ms=site.now_ms, p99_ms=900))
    site.go_on()
    account = why(site.log, chat)
    [line] = [line for line in account.sentences() if "lacks 2 replicas: take-limit: " in line]
    assert line.endswith("no room is free, and the rules let it take no more from others, by take.yaml:5")


def test_there_is_a_case_for_every_reason() -> None:
    assert {*CASES, *OF_REPLICAS} == set(Reason)


@pytest.mark.parametrize("reason", list(CASES), ids=lambda reason: reason.slug)
def test_why_tells_the_cause_and_the_smallest_change(reason: Reason) -> None:
    case = CASES[reason]
    site, id_ = case.play()
    account = why(site.log, id_)
    answer = "\n".join(account.sentences())
    assert account.reason is reason, answer
    assert case.cause in answer
    [change] = [line for line in account.sentences() if line.startswith("Smallest change")] or [answer]
    assert case.change in change
