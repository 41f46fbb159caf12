"""Thousands of queues: configuring them costs what they are, and the tree is built when it is looked at."""

from __future__ import annotations

import pytest

from controlplane.domain.events import QueueConfigured
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.scheduler import quota as quota_module
from controlplane.scheduler import state as state_module
from controlplane.scheduler.quota import MAX_DEPTH, QueueTree
from tests.scheduler.core import Core, gpus, job

MANY = 2_000


def test_a_tree_is_built_once_for_all_that_is_configured_before_the_first_job(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    class Counting(QueueTree):
        def __init__(self, specs: dict[str, QueueSpec]) -> None:
            built.append(len(specs))
            super().__init__(specs)

    monkeypatch.setattr(state_module, "QueueTree", Counting)
    core = Core(is_checked=False)
    core.home(n1=gpus(8))
    for number in range(MANY):
        core.queue(f"q{number}", {"gpu": Quota(nominal=1_000)})
    core.submit(job(1, queue="q7"))
    core.cycle(1)
    assert [size for size in built if size] == [MANY]
    assert len(core.placed()) == 1


def test_a_queue_that_is_configured_while_jobs_wait_counts_them_at_once() -> None:
    core = Core()
    core.home(n1=gpus(8))
    core.queue("a", parent=None)
    core.submit(job(1, queue="a"))
    core.submit(job(1, queue="b"))
    core.queue("b")
    assert core.state.pending[core.state.tree.by_name["b"].index] == 1
    assert core.state.pending[0] == 2


def chain(length: int) -> list[QueueSpec]:
    """Each below the one before it."""
    return [QueueSpec(name=f"q{at}", parent=f"q{at - 1}" if at else None) for at in range(length)]


def test_a_tree_may_be_as_deep_as_the_limit_and_no_deeper() -> None:
    core = Core(is_checked=False)
    for spec in chain(MAX_DEPTH):
        core.tell(QueueConfigured(spec=spec))
    with pytest.raises(ValueError, match="more than 64 levels below the root; make the tree flatter"):
        core.tell(QueueConfigured(spec=QueueSpec(name="last", parent=f"q{MAX_DEPTH - 1}")))
    assert quota_module.MAX_DEPTH == 64
