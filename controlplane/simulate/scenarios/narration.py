"""The log of a played story in sentences, for whoever reads why it went otherwise."""

from __future__ import annotations

import re

from controlplane.domain.events import (
    CapacityObserved,
    CapacityReleased,
    CapacityRequested,
    ClusterConfigured,
    Event,
    JobCancelRequested,
    JobEnded,
    JobRefused,
    JobRequeued,
    JobSubmitted,
    JobsWaiting,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeaseRevoked,
    LeaseShrunk,
    NodeObserved,
    PromiseReleased,
    QueueConfigured,
    ReservationMade,
    ReservationReleased,
    RoomPromised,
    ServiceScaled,
    ServiceShort,
    WarmPoolConfigured,
    WarmPoolsHeld,
)
from controlplane.domain.reasons import Reason
from controlplane.simulate.scenarios.stage import Stage
from controlplane.simulate.scenarios.words import clock, dollars, said


class Narration:
    """The log of a stage in sentences."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def told(self) -> list[tuple[int, str]]:
        """The instant and a sentence, for each event that a person would tell."""
        lines = [(at_ms, self._sentence(position, event)) for at_ms, position, event in self._stage.told]
        return [(at_ms, text) for at_ms, text in lines if text]

    def last_of(self, name: str) -> str | None:
        """The last sentence that names a job."""
        pattern = re.compile(rf"(?<![\w./@:+-]){re.escape(name)}(?![\w/@+-])")
        return next(
            (f"{text} (at {clock(at_ms)})" for at_ms, text in reversed(self.told()) if pattern.search(text)), None
        )

    def _job(self, id_: int) -> str:
        return self._stage.names.get(id_, f"j{id_}")

    def _sentence(self, position: int, event: Event) -> str:
        match event:
            case JobSubmitted():
                roles = " and ".join(f"{role.count} x {role.gpus} GPU" for role in event.spec.roles)
                return f"{self._job(position)} is submitted to {event.spec.queue}: {roles}"
            case JobCancelRequested():
                return f"{self._job(event.job)} is cancelled by its client"
            case QueueConfigured():
                return f"queue {event.spec.name} is configured"
            case ClusterConfigured():
                return f"cluster {event.spec.name} is configured"
            case WarmPoolConfigured():
                return f"warm pool {event.spec.name} is configured"
            case NodeObserved() if len(self._stage.story.nodes) <= 20:
                return f"node {event.node} of {event.cluster} is {event.state.value}"
            case LeaseGranted():
                where = f"{_nodes([m.node for m in event.members])} of {event.cluster}"
                return f"{self._job(event.job)} is placed on {where}{_by(event.rule)}"
            case LeaseRevoked():
                return f"{self._job(job_of(event.lease))} is told to stop: {event.cause}"
            case LeaseObserved():
                return f"{self._job(job_of(event.lease))} is seen {event.phase.value}"
            case _:
                return self._decision(event)

    def _decision(self, event: Event) -> str:
        match event:
            case JobRefused():
                return (
                    f"{self._job(event.job)} is refused: {Reason(event.reason).slug}: {event.detail}{_by(event.rule)}"
                )
            case JobRequeued():
                return f"{self._job(event.job)} waits again: {event.cause}"
            case JobEnded():
                return f"{self._job(event.job)} is over: {event.outcome}"
            case JobsWaiting():
                return waits(self._job(event.head), event, event.count - 1)
            case CapacityRequested():
                promising = f"promising {dollars(event.promised_micro_usd)}{_by(event.rule)}"
                return (
                    f"{event.nodes} of {event.cluster}/{event.offer} are asked for, for {self._job(event.for_job)}, "
                    f"until {clock(event.deadline_ms)}, {promising}"
                )
            case CapacityObserved():
                return f"rent {event.request} is seen {event.phase.value}"
            case CapacityReleased():
                return f"rent {event.request} is given back: {event.cause}"
            case _:
                return self._promise(event)

    def _promise(self, event: Event) -> str:
        match event:
            case ReservationMade():
                start = f"at {clock(event.start_ms)}" if event.start_ms is not None else "as soon as they have drained"
                where = f"{_nodes(list(event.nodes))}, {start}{_by(event.rule)}"
                return f"a start of {self._job(event.job)} is reserved on {where}"
            case ReservationReleased():
                return f"the reservation of {self._job(event.job)} is released: {event.cause}"
            case RoomPromised():
                whose = ", ".join(self._job(job_of(lease)) for lease in event.victims) or "those who shrink"
                return f"room is promised to {self._job(event.job)} once {whose} left{_by(event.rule)}"
            case PromiseReleased():
                return f"the room promised to {self._job(event.job)} is held no longer: {event.cause}"
            case LeaseGrown():
                return f"{self._job(job_of(event.lease))} grows by {len(event.members)}{_by(event.rule)}"
            case LeaseShrunk():
                who = self._job(job_of(event.lease))
                return f"{who} shrinks by {len(event.members)}: {event.cause}{_by(event.rule)}"
            case _:
                return self._service(event)

    def _service(self, event: Event) -> str:
        match event:
            case ServiceScaled():
                who = self._job(event.job)
                return f"{who} has {event.replicas} replicas and is to have {event.wanted}{_by(event.rule)}"
            case ServiceShort():
                return f"{self._job(event.job)} lacks {event.missing} replicas: {Reason(event.reason).slug}"
            case WarmPoolsHeld():
                held = (
                    f"{pool.pool} holds {_nodes([b.node for b in pool.blocks]) or 'nothing'}" for pool in event.pools
                )
                return f"warm pool {'; '.join(held)}"
            case _:
                return "" if event.TYPE in _UNTOLD else f"{event.TYPE} {event.model_dump_json(exclude_defaults=True)}"


def waits(name: str, event: JobsWaiting, alike: int = 0) -> str:
    """Why a job waits, and how many others for the same."""
    short = ", ".join(f"{said(res, units)} {res} short" for res, units in event.short.items())
    who = f"{name} and {alike} alike wait" if alike else f"{name} waits"
    return f"{who}: {f'{Reason(event.reason).slug} {short}'.rstrip()}{_by(event.rule)}"


_UNTOLD = (
    "ticked/1",
    "cycle_decided/1",
    "policy_activated/1",
    "budget_configured/1",
    "node_observed/1",
    "service_observed/1",
)


def _by(rule: str | None) -> str:
    return f", by {rule}" if rule else ""


def job_of(lease: str) -> int:
    return int(lease[1 : lease.index(".")])


def _nodes(names: list[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return (
        ", ".join(distinct) if len(distinct) <= 6 else f"{', '.join(distinct[:3])} and {len(distinct) - 3} more nodes"
    )
