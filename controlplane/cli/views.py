"""``tidegate top``, ``jobs``, ``queues`` and ``clusters``: what a log says is so, at its head or before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.console import print_json, print_sentences, print_table, progress
from controlplane.cli.faults import DONE, WrongUse
from controlplane.cli.options import At, Json, LogUrl, open_for_reading, position_of
from controlplane.cli.words import gpus, instant, money, percent, span

if TYPE_CHECKING:
    from controlplane.cli.past import Past
    from controlplane.domain.events import OverPromise
    from controlplane.eventlog.port import Head
    from controlplane.scheduler.quota import QueueNode
    from controlplane.scheduler.state import BudgetAccount, Job, Lease, Pool, Seat, State

Row = dict[str, object]
RULE_FAULTS = 8
"""So many rules that erred are told."""
BUSY_MS = 18 * 3_600_000
"""A moment at which a day's log has something to show: evening."""


def top(log: LogUrl, at: At = None, json: Json = False) -> int:
    """Show everything at a glance.

    Clusters, queues, budgets, who waits longest, and rules that err.
    """
    view = _view(log, at, quiet=json)
    waiting = _waiting(view.state)[:5]
    if json:
        parts = {"clusters": view.clusters(), "queues": view.queues(), "budgets": view.budgets()}
        more = {"longest_waiting": view.listed(waiting), "rule_faults": [fault.as_dict() for fault in view.past.faults]}
        print_json({**view.head_dict(), **parts, **more})
        return DONE
    view.print_head()
    _print_clusters(view.clusters())
    print()
    _print_queues(view.queues())
    if view.state.budgets:
        print()
        _print_budgets(view.budgets())
    if waiting or not view.state.jobs:
        print()
        _print_jobs(view.listed(waiting), view.idle())
    if view.past.faults:
        print()
        print_rule_faults([fault.sentence("since before the snapshot") for fault in view.past.faults])
    return DONE


def jobs(
    log: LogUrl,
    at: At = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this queue.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, metavar="N", help="At most so many.")] = 50,
    json: Json = False,
) -> int:
    """List the jobs that have not ended.

    Those that wait stand first, in order of arrival, then those that run; of all others it is said how they ended.
    """
    view = _view(log, at, quiet=json)
    if queue is not None and queue not in view.state.queues:
        known = ", ".join(sorted(view.state.queues)) or "none"
        raise WrongUse(f"--queue {queue!r}: the log has no such queue (it has: {known})")
    held = sorted((job for job in view.state.jobs.values() if job.lease is not None), key=lambda job: job.id)
    live = [job for job in [*_waiting(view.state), *held] if queue is None or job.cls.spec.queue == queue]
    listed = view.listed(live[:limit])
    if json:
        print_json({**view.head_dict(), "live": len(live), "listed": listed})
        return DONE
    view.print_head()
    if listed or not live:
        _print_jobs(listed, view.idle(queue))
    if len(live) > len(listed):
        print(f"... and {len(live) - len(listed):,} more; --limit {len(live)} shows all")
    return DONE


def queues(log: LogUrl, at: At = None, json: Json = False) -> int:
    """Show the tree of queues.

    What each uses, what it is entitled to, and what waits in it. Figures of a queue include all below it.
    """
    view = _view(log, at, quiet=json)
    if json:
        promises = [promise.model_dump() for promise in view.state.over_promised]
        print_json({**view.head_dict(), "queues": view.queues(), "over_promised": promises})
    else:
        view.print_head()
        _print_queues(view.queues())
        print_over_promised(view.state.over_promised)
    return DONE


def clusters(log: LogUrl, at: At = None, json: Json = False) -> int:
    """Show the clusters.

    Their nodes, what is in use, and what is rented or on its way.
    """
    view = _view(log, at, quiet=json)
    if json:
        print_json({**view.head_dict(), "clusters": view.clusters()})
    else:
        view.print_head()
        _print_clusters(view.clusters())
    return DONE


def _view(log: str, at: str | None, *, quiet: bool) -> _View:
    from controlplane.cli.past import state_at

    with open_for_reading(log) as opened, progress("reading", quiet=quiet) as show:
        past = state_at(opened, position_of(opened, at), show)
    return _View(past.state, past.head, past)


def _waiting(state: State) -> list[Job]:
    """Those without a lease, in order of arrival."""
    return sorted((job for job in state.jobs.values() if job.lease is None), key=lambda job: (job.submitted_ms, job.id))


# --- what a state says, JSON-ready ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _View:
    """A state and where it was taken."""

    state: State
    head: Head
    past: Past
    """What else is known of that moment."""

    def head_dict(self) -> Row:
        """What every answer begins with. ``position`` and ``digest`` are of the record it was taken at."""
        state = self.state
        return {
            "ok": True,
            "digest": self.head.digest,
            "position": self.head.position,
            "events": self.head.position,
            "snapshot": self.past.snapshot or None,
            "virtual_s": state.now_ms / 1_000,
            "policy": {"name": state.policy_name, "digest": state.policy_digest},
            "shadow": self.shadow_dict(),
            "jobs": self.phases(),
            "placements": state.counts.placements,
        }

    def shadow_dict(self) -> Row | None:
        """What the bundle that is asked beside the active one would have decided so far."""
        if self.state.shadow is None:
            return None
        from controlplane.audit.policies import shadow_dict

        return shadow_dict(self.state)

    def phases(self) -> dict[str, int]:
        """Jobs by phase, those that have ended included."""
        from controlplane.scheduler.state import Phase

        state, counts = self.state, self.state.counts
        live = {str(phase): 0 for phase in Phase}
        for job in state.jobs.values():
            live[str(job.phase)] += 1
        ended = ("finished", "failed", "cancelled", "expired", "refused")
        return {**live, **{outcome: int(getattr(counts, outcome)) for outcome in ended}}

    def print_head(self) -> None:
        """Where and when this is, and the counts of jobs."""
        begun = f" (from the snapshot at {self.past.snapshot:,})" if self.past.snapshot else ""
        where = f"Position {self.head.position:,}{begun}, {instant(self.state.now_ms)} on the log's clock"
        policy = f", policy {self.state.policy_name}" if self.state.policy_name else ""
        counts = ", ".join(f"{count:,} {phase}" for phase, count in self.phases().items() if count)
        print(f"{where}{policy}\nJobs: {counts or 'none'}")
        if self.state.shadow is not None:
            from controlplane.audit.policies import shadow_sentence

            print_sentences([f"Shadow: {shadow_sentence(self.state)}"])
        print()

    def idle(self, queue: str | None = None) -> str:
        """Said where no job waits or runs."""
        now_ms = self.state.now_ms
        earlier_ms = BUSY_MS if now_ms >= BUSY_MS else now_ms // 2
        hint = f"; --at {instant(earlier_ms)} shows an earlier moment" if self.state.counts.submitted else ""
        return f"No job{f' of queue {queue}' if queue is not None else ''} waits or runs at this moment{hint}."

    def queues(self) -> list[Row]:
        """The tree, parents before children."""
        waits = self._oldest_ms()
        return [self._queue(node, waits) for node in _tree_order(self.state.tree.root)]

    def _queue(self, node: QueueNode, oldest_ms: Mapping[str, int]) -> Row:
        state = self.state
        spec = node.spec
        assert spec is not None, "only the root has no specification"
        nominal: dict[str, int] = {}
        for quotas in spec.quotas.values():
            for resource, quota in quotas.items():
                nominal[resource] = nominal.get(resource, 0) + quota.nominal
        return {
            "queue": node.name,
            "parent": spec.parent,
            "depth": len(node.path) - 2,
            "weight": spec.weight,
            "held": node.is_held,
            "used": {resource: amount for resource, amount in sorted(state.used[node.index].items()) if amount},
            "nominal": dict(sorted(nominal.items())),
            "warm_pools": [_pool(pool) for pool in state.pools.values() if pool.spec.queue == node.name],
            "running": state.running[node.index],
            "waiting": state.pending[node.index],
            "oldest_wait_ms": state.now_ms - oldest_ms[node.name] if node.name in oldest_ms else None,
        }

    def _oldest_ms(self) -> dict[str, int]:
        """When the longest waiting job of each queue was submitted, all below included."""
        oldest: dict[str, int] = {}
        for job in _waiting(self.state):
            node = self.state.tree.by_name.get(job.cls.spec.queue)
            for up in node.path if node is not None else ():
                oldest.setdefault(up.name, job.submitted_ms)
        return oldest

    def clusters(self) -> list[Row]:
        """In the order in which they were configured."""
        return [self._cluster(name) for name in self.state.clusters]

    def _cluster(self, name: str) -> Row:
        from controlplane.domain.clusters import NodeState
        from controlplane.domain.quantities import GPU, MILLI

        state = self.state
        nodes = [node for node in state.nodes.values() if node.build.cluster == name]
        there = [node for node in nodes if node.state is not NodeState.LOST]
        leases = [lease for lease in state.leases.values() if lease.cluster == name]
        requests = [request for request in state.requests.values() if request.cluster == name]
        pools = [pool for pool in state.pools.values() if pool.spec.cluster == name]
        return {
            "cluster": name,
            "site": str(state.clusters[name].site),
            "nodes": {str(kind): sum(node.state is kind for node in nodes) for kind in NodeState},
            "gpus_milli": sum(node.build.gpus for node in there) * MILLI,
            "gpus_used_milli": sum(dict(seat.ask.resources).get(GPU, 0) for lease in leases for seat in lease.seats),
            "gpus_warm_milli": sum(_warm_milli(pool) for pool in pools),
            "warm_pools": [_pool(pool) for pool in pools],
            "leases": len(leases),
            "requests": _count(str(request.phase) for request in requests),
            "promised_micro_usd": sum(request.promised_micro_usd for request in requests),
        }

    def budgets(self) -> list[Row]:
        """What each budget has left in the window that the state stands in."""
        return [self._budget(account) for account in self.state.budgets.values()]

    def _budget(self, account: BudgetAccount) -> Row:
        window = account.window(self.state.now_ms)
        return {
            "budget": account.spec.name,
            "queue": account.spec.queue,
            "limit_micro_usd": account.spec.limit_micro_usd,
            "spent_micro_usd": account.settled.get(window, 0),
            "promised_micro_usd": account.promised.get(window, 0),
            "left_micro_usd": account.left(self.state.now_ms),
            "window_ends_ms": (window + 1) * account.spec.window_ms,
        }

    def listed(self, live: Iterable[Job]) -> list[Row]:
        """Jobs one by one."""
        return [self._job(job) for job in live]

    def _job(self, job: Job) -> Row:
        from controlplane.domain.ids import JobId, job_label

        lease = self.state.leases.get(job.lease) if job.lease is not None else None
        spec, facts = job.cls.spec, job.cls.facts
        seats = lease.seats if lease is not None else ()
        return {
            "job": job_label(JobId(job.id)),
            "name": job.name,
            "queue": spec.queue,
            "user": spec.user,
            "priority": spec.priority,
            "phase": str(job.phase),
            "members": len(seats) if lease is not None else facts.members,
            "gpus_milli": _gpus_milli(seats) if lease is not None else facts.gpus_milli,
            "attempts": job.attempts,
            "age_ms": self.state.now_ms - job.submitted_ms,
            "cluster": lease.cluster if lease is not None else None,
            "service": _service(lease) if lease is not None else None,
        }


def _gpus_milli(seats: Iterable[Seat]) -> int:
    from controlplane.domain.quantities import GPU

    return sum(dict(seat.ask.resources).get(GPU, 0) for seat in seats)


def _warm_milli(pool: Pool) -> int:
    from controlplane.domain.quantities import MILLI

    return sum(len(gpus) for _, gpus in pool.blocks) * MILLI


def _pool(pool: Pool) -> Row:
    """A warm pool: what it is to hold, and what it holds."""
    return {
        "pool": pool.spec.name,
        "cluster": pool.spec.cluster,
        "flavor": pool.spec.flavor,
        "queue": pool.spec.queue,
        "gpus_per_block": pool.spec.gpus,
        "blocks": pool.spec.blocks,
        "held": len(pool.blocks),
        "nodes": sorted({at.name for at, _ in pool.blocks}),
    }


def _service(lease: Lease) -> Row | None:
    """How many replicas a service has and is to have, and what was last observed of it."""
    service = lease.service
    if service is None:
        return None
    signal = service.signal
    return {
        "replicas": len(lease.staying()),
        "wanted": service.wanted,
        "changed_ms": service.changed_ms,
        "observed_ms": signal.observed_ms if signal is not None else None,
        "p99_ms": signal.p99_ms if signal is not None else None,
        "queue_depth": signal.queue_depth if signal is not None else None,
    }


def _count(names: Iterable[str]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for name in names:
        counted[name] = counted.get(name, 0) + 1
    return counted


def _tree_order(root: QueueNode) -> list[QueueNode]:
    """Depth first, children by name, without the root."""
    ordered: list[QueueNode] = []
    stack = list(reversed(root.children))
    while stack:
        node = stack.pop()
        ordered.append(node)
        stack.extend(reversed(node.children))
    return ordered


# --- tables -----------------------------------------------------------------------------------------------------------

Cell = Callable[[Row], str]


def _print_rows(
    columns: Sequence[tuple[str, Cell]], rows: Sequence[Row], nothing: str, expendable: Sequence[str]
) -> None:
    if not rows:
        print(nothing)
        return
    cells = [[cell(row) for _, cell in columns] for row in rows]
    print_table([name for name, _ in columns], cells, expendable=expendable)


def _int(row: Row, key: str) -> int:
    value = row[key]
    assert isinstance(value, int), f"{key} is a number"
    return value


def _of(row: Row, key: str, name: str) -> int:
    table = row[key]
    assert isinstance(table, dict), f"{key} is a table"
    return int(table.get(name, 0))


def _warm_words(pools: object) -> str:
    """``4 of 8 GPUs (serving)`` for each pool."""
    assert isinstance(pools, list), "pools are a list of rows"
    words = []
    for pool in pools:
        each = _int(pool, "gpus_per_block")
        words.append(f"{_int(pool, 'held') * each} of {_int(pool, 'blocks') * each} GPUs ({pool['pool']})")
    return ", ".join(words) or "-"


def _print_queues(rows: Sequence[Row]) -> None:
    def entitled(row: Row) -> str:
        nominal = _of(row, "nominal", "gpu")
        return gpus(nominal) if nominal else "-"

    def warm(row: Row) -> str:
        return _warm_words(row["warm_pools"])

    columns: list[tuple[str, Cell]] = [
        ("queue", lambda row: "  " * _int(row, "depth") + str(row["queue"]) + (" (held)" if row["held"] else "")),
        ("weight>", lambda row: str(row["weight"])),
        ("GPUs>", lambda row: gpus(_of(row, "used", "gpu"))),
        ("nominal>", entitled),
        ("warm", warm),
        ("running>", lambda row: f"{_int(row, 'running'):,}"),
        ("waiting>", lambda row: f"{_int(row, 'waiting'):,}"),
        ("oldest wait>", lambda row: span(_int(row, "oldest_wait_ms")) if row["oldest_wait_ms"] is not None else "-"),
    ]
    columns = [column for column in columns if column[0] != "warm" or any(row["warm_pools"] for row in rows)]
    _print_rows(columns, rows, "No queues are configured.", ("weight", "running", "nominal", "warm"))


def print_over_promised(promises: Iterable[OverPromise]) -> None:
    """A sentence for each promise of quota that is larger than what there is."""
    from controlplane.audit.sentences import over_promise

    for promise in promises:
        print(over_promise(promise))


def print_rule_faults(sentences: Sequence[str]) -> None:
    """A line for each rule that erred, which the one who wrote it must see."""
    print_sentences([f"Rule error   {sentence}" for sentence in sentences[:RULE_FAULTS]])
    if len(sentences) > RULE_FAULTS:
        print(f"             ... and {len(sentences) - RULE_FAULTS} more; --json has all")


def _print_clusters(rows: Sequence[Row]) -> None:
    def others(row: Row) -> str:
        counts = [(kind, _of(row, "nodes", kind)) for kind in ("cordoned", "lost")]
        return ", ".join(f"{count} {kind}" for kind, count in counts if count) or "-"

    def requested(row: Row) -> str:
        table = row["requests"]
        assert isinstance(table, dict)
        return ", ".join(f"{table[phase]} {phase}" for phase in sorted(table)) or "-"

    columns: list[tuple[str, Cell]] = [
        ("cluster", lambda row: str(row["cluster"])),
        ("site", lambda row: str(row["site"])),
        ("nodes>", lambda row: f"{_of(row, 'nodes', 'ready'):,}"),
        ("not ready>", others),
        ("GPUs>", lambda row: gpus(_int(row, "gpus_milli"))),
        ("in use>", lambda row: gpus(_int(row, "gpus_used_milli"))),
        (">", lambda row: percent(_int(row, "gpus_used_milli"), _int(row, "gpus_milli"))),
        ("held warm", lambda row: _warm_words(row["warm_pools"])),
        ("leases>", lambda row: f"{_int(row, 'leases'):,}"),
        ("requests", requested),
        ("promised>", lambda row: money(_int(row, "promised_micro_usd")) if row["promised_micro_usd"] else "-"),
    ]
    columns = [column for column in columns if column[0] != "held warm" or any(row["warm_pools"] for row in rows)]
    _print_rows(columns, rows, "No clusters are configured.", ("leases", "requests", "not ready", "held warm"))


def _print_budgets(rows: Sequence[Row]) -> None:
    columns: list[tuple[str, Cell]] = [
        ("budget", lambda row: str(row["budget"])),
        ("queue", lambda row: str(row["queue"] or "all")),
        ("limit>", lambda row: money(_int(row, "limit_micro_usd"))),
        ("spent>", lambda row: money(_int(row, "spent_micro_usd"))),
        ("promised>", lambda row: money(_int(row, "promised_micro_usd"))),
        ("left>", lambda row: money(_int(row, "left_micro_usd"))),
    ]
    _print_rows(columns, rows, "No budgets are configured.", ("queue", "promised"))


def _members_words(row: Row) -> str:
    """How many there are; of a service that is to have others, how many it is to have."""
    service = row["service"]
    wanted = _int(service, "wanted") if isinstance(service, dict) else None
    count = f"{_int(row, 'members'):,}"
    return f"{count} (to be {wanted:,})" if wanted is not None and wanted != _int(row, "members") else count


def _print_jobs(rows: Sequence[Row], nothing: str) -> None:
    columns: list[tuple[str, Cell]] = [
        ("job", lambda row: str(row["job"])),
        ("name", lambda row: str(row["name"])),
        ("queue", lambda row: str(row["queue"])),
        ("user", lambda row: str(row["user"])),
        ("priority>", lambda row: str(row["priority"])),
        ("GPUs>", lambda row: gpus(_int(row, "gpus_milli"))),
        ("members>", _members_words),
        ("phase", lambda row: str(row["phase"])),
        ("cluster", lambda row: str(row["cluster"] or "-")),
        ("age>", lambda row: span(_int(row, "age_ms"))),
    ]
    _print_rows(columns, rows, nothing, ("members", "user", "priority", "cluster"))
