"""Blocks of warm pools: what one takes of its node, and which of them a node still has room for.

A block is some whole GPUs of one node with their part of its CPU and memory. It is held by nobody placing anything else
there; on the node itself nothing is taken, so that a service that takes it finds it free.
"""

from __future__ import annotations

from controlplane.domain.clusters import WarmPool
from controlplane.domain.quantities import MILLI
from controlplane.scheduler.kinds import Amounts, Build, KindTable, can_sit
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.state import Block, Node, State


def amounts_of(kinds: KindTable, build: Build, gpus: int) -> Amounts:
    """What a block of so many GPUs takes of a node of the build. Shares of CPU and memory are rounded down."""
    cpu, memory = build.cpu_milli * gpus // build.gpus, build.memory_bytes * gpus // build.gpus
    return kinds.amounts(cpu, memory, MILLI, ())


def suits(spec: WarmPool, build: Build, *, is_rented: bool) -> bool:
    """Whether the pool may hold anything of a node of the build."""
    return (
        build.is_open
        and not is_rented
        and (build.cluster, build.flavor) == (spec.cluster, spec.flavor)
        and build.gpus >= spec.gpus
    )


def is_open_to(spec: WarmPool, queue: QueueNode) -> bool:
    """Whether services of the queue may take from the pool."""
    return spec.queue is None or any(node.name == spec.queue for node in queue.path)


def let_go_of(state: State, node: Node, queue: QueueNode | None = None) -> None:
    """The node has changed, or a service of the queue took room on it: the pools (those that are open to the queue)
    hold no more of it than is free."""
    kind = node.kind
    for pool in state.pools.values():
        if queue is not None and not is_open_to(pool.spec, queue):
            continue
        kept: list[Block] = []
        for block in pool.blocks:
            if block[0] != node.id:
                kept.append(block)
                continue
            if not suits(pool.spec, node.build_now, is_rented=node.request is not None):
                continue
            amounts = amounts_of(state.kinds, node.build, len(block[1]))
            if can_sit(state.kinds.kinds[kind], amounts, block[1]):
                kind = state.kinds.take(kind, amounts, block[1])
                kept.append(block)
        if len(kept) < len(pool.blocks):
            pool.blocks = tuple(kept)
