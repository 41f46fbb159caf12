"""Thousands of queues: configuring them costs what they are, and the tree is built when it is looked at.

What is guarded is counted, not timed: how many trees are built, and how many groups of jobs are asked for their first.
"""

from __future__ import annotations

import re

import pytest

from controlplane.domain.events import QueueConfigured
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.domain.reasons import Reason
from controlplane.scheduler import state as state_module
from controlplane.scheduler.agenda import Entry, Group
from controlplane.scheduler.invariants import check_all
from controlplane.scheduler.quota import MAX_DEPTH, QueueTree, check_depth
from controlplane.scheduler.snapshot import restore, take
from tests.scheduler.core import Core, gpus, job
from tests.twins.plain_rules import PlainRules

MANY = 2_000


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all trees that are built."""
    sizes: list[int] = []

    class Counting(QueueTree):
        def __init__(self, specs: dict[str, QueueSpec]) -> None:
            sizes.append(len(specs))
            super().__init__(specs)

    monkeypatch.setattr(state_module, "QueueTree", Counting)
    return sizes


def test_a_tree_is_built_once_for_all_that_is_configured(built: list[int]) -> None:
    core = Core(is_checked=False)
    core.home(n1=gpus(8))
    for number in range(MANY):
        core.queue(f"q{number}", {"gpu": Quota(nominal=1_000)})
    core.submit(job(1, queue="q7"))
    core.cycle(1)
    assert built == [MANY]
    assert len(core.placed()) == 1


def test_so_it_is_while_jobs_wait_and_run(built: list[int]) -> None:
    core = Core(is_checked=False)
    core.home(n1=gpus(8))
    core.queue("first", {"gpu": 4_000})
    for _ in range(6):
        core.submit(job(1, queue="first"))
    core.cycle(1)
    built.clear()
    for number in range(MANY):
        core.queue(f"q{number}", {"gpu": Quota(nominal=1_000)}, parent="first" if number % 2 else None)
    assert built == []
    core.cycle(2)
    assert built == [MANY + 1]
    first = core.state.tree.by_name["first"].index
    assert (core.state.running[first], core.state.pending[first]) == (4, 0), "who waited in what is a cohort is refused"
    assert core.state.used[first]["gpu"] == core.state.charged[0]["any", "gpu"] == 4_000


def test_what_happens_before_the_new_tree_is_looked_at_is_counted_once() -> None:
    """Kills: books that are opened in the middle of an event, from jobs and leases that have changed already."""
    core = Core(is_checked=False)
    core.home(n1=gpus(8))
    core.queue("a", {"gpu": 8_000})
    over = core.submit(job(2, queue="a"))
    core.cycle(1)
    core.queue("b")
    core.finish(over)
    check_all(core.state)
    core.queue("b", {"gpu": 1_000})
    core.submit(job(1, queue="b"))
    check_all(core.state)
    core.cycle(2)
    core.queue("c")
    core.cycle(3)
    check_all(core.state)


def test_a_queue_that_is_configured_while_jobs_wait_counts_them_at_once() -> None:
    core = Core()
    core.home(n1=gpus(8))
    core.queue("a", parent=None)
    core.submit(job(1, queue="a"))
    core.submit(job(1, queue="b"))
    core.queue("b")
    assert core.state.pending[core.state.tree.by_name["b"].index] == 1
    assert core.state.pending[0] == 2


def test_a_queue_is_a_cohort_as_long_as_a_queue_is_below_it() -> None:
    """Kills: a cohort that is remembered as one after its last queue has moved away."""
    core = Core()
    core.queue("a")
    core.queue("b", parent="a")
    core.queue("b")
    waits = core.submit(job(1, queue="a"))
    core.cycle(1)
    core = restored(core)
    core.queue("b", parent="a")
    [refused] = [event for event in core.cycle(2) if event.TYPE == "job_refused/1"]
    assert (getattr(refused, "job", 0), getattr(refused, "reason", 0)) == (waits, Reason.UNKNOWN_QUEUE)


def restored(core: Core) -> Core:
    """The same, opened anew from a snapshot."""
    core.state = restore(take(core.state))
    return core


def test_rules_that_ask_for_the_oldest_job_look_at_each_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    head = Group.head

    def counting(self: Group) -> Entry | None:
        nonlocal asked
        asked += 1
        return head(self)

    monkeypatch.setattr(Group, "head", counting)
    rules = PlainRules(queue_order_reads=frozenset({"queue.oldest_ms"}), order_queue=lambda queue: (queue.oldest_ms,))
    core = Core(rules, is_checked=False)
    core.home(n1=gpus(8))
    queues = 200
    for number in range(queues):
        core.queue(f"q{number:03}")
    last_first = reversed(range(queues))
    jobs = [core.submit(job(1, queue=f"q{number:03}"), at_ms=queues - number) for number in last_first]
    core.cycle(1_000)
    assert core.placed() == jobs[:8]
    assert asked < 10 * queues


# --- depth -----------------------------------------------------------------------------------------------------------


def chain(length: int) -> list[QueueSpec]:
    """Each below the one before it."""
    quotas = {"any": {"gpu": Quota(nominal=1_000)}}
    return [QueueSpec(name=f"q{at}", parent=f"q{at - 1}" if at else None, quotas=quotas) for at in range(length)]


def test_who_lets_queues_in_refuses_a_tree_that_is_too_deep() -> None:
    specs = {spec.name: spec for spec in chain(MAX_DEPTH + 1)}
    check_depth(specs, specs[f"q{MAX_DEPTH - 1}"])
    with pytest.raises(ValueError, match=re.escape("queue 'q64' is more than 64 levels below the root; make the tree")):
        check_depth(specs, specs["q64"])


def test_a_log_with_a_deeper_tree_is_folded_and_decided_upon(built: list[int]) -> None:
    """Core 1 let it in, and a queue with all that is below it may be moved. Kills: quota asked by recursion, and a
    tree that is refused when it is built, where nobody is there to be told."""
    length = 1_200
    core = Core(is_checked=False)
    core.home(n1=gpus(8))
    for spec in chain(length):
        core.tell(QueueConfigured(spec=spec))
    core.queue("top", {"gpu": 0})
    core.queue("q0", {"gpu": 1_000}, parent="top")
    jobs = [core.submit(job(2, queue=f"q{length - 1}")), core.submit(job(9, queue="q0"))]
    core.cycle(1)
    assert core.placed() == jobs[:1]
    assert core.state.charged[0]["any", "gpu"] == 2_000
    assert built == [length + 1]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (QueueSpec(name="a", parent="b"), "queue 'a' is below itself by way of 'a'; break the cycle"),
        (QueueSpec(name="a", parent="a"), "queue 'a' is below itself by way of 'a'; break the cycle"),
        (QueueSpec(name="c", parent="d"), "queue 'c' is below 'd', which is not a queue; configure 'd' first"),
    ],
)
def test_a_queue_that_cannot_be_is_refused_and_leaves_no_trace(spec: QueueSpec, says: str) -> None:
    core = Core()
    core.queue("a")
    core.queue("b", parent="a")
    before = dict(core.state.queues)
    with pytest.raises(ValueError, match=re.escape(says)):
        core.tell(QueueConfigured(spec=spec))
    assert core.state.queues == before
    assert set(core.state.tree.by_name) == {"a", "b"}
