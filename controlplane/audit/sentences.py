"""Turns a watched job's account into sentences. Words only: every figure was computed where it was decided."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from controlplane.audit.spans import instant, span
from controlplane.domain.events import OverPromise, Tally, TopologyShort
from controlplane.domain.ids import JobId, job_label
from controlplane.domain.quantities import MILLI
from controlplane.domain.reasons import Reason
from controlplane.domain.topology import Level
from controlplane.domain.workloads import GangTerms, JobSpec, Role
from controlplane.scheduler.verdicts import Hold, OfferVerdict, QuotaStanding, RoleStanding, WarmHold, Watch

_MEANING = {
    Reason.RULE_FAILED: "a rule erred, and the decision failed closed",
    Reason.REFUSED_BY_POLICY: "the admission rules refused it",
    Reason.UNKNOWN_QUEUE: "there is no such queue",
    Reason.DEPENDENCY_FAILED: "a job that had to finish before it ended otherwise: it can never run",
    Reason.DEPENDENCY: "jobs that must be over before it starts are not",
    Reason.ARRAY_FULL: "as many jobs of its array as may run at once hold a place",
    Reason.EXCEEDS_QUOTA_CEILING: "it asks for more than its queue could ever use, lending included: it can never run",
    Reason.NO_NODE_OF_MODEL: "no node has a GPU of a model that it accepts",
    Reason.EXCEEDS_EVERY_NODE: "no node is large enough for one of its members, even empty",
    Reason.EXCEEDS_CAPACITY: "every member fits some node, but no cluster holds the whole gang, even empty",
    Reason.EXCEEDS_TOPOLOGY: "no one domain of a level that it requires holds it, even empty",
    Reason.NOT_ELIGIBLE: "nodes are large enough, but the eligibility rules refuse all of them",
    Reason.QUEUE_HELD: "its queue, or one above, is held by the operator",
    Reason.QUOTA: "its queue's quota is used up, borrowing included",
    Reason.BUDGET: "it may burst, but no budget is left in this window",
    Reason.HELD_WARM: "room is free, but it is held warm for services, and not for this one",
    Reason.TOPOLOGY: "what is free holds the whole gang, but not within one domain of a level that it requires",
    Reason.RESERVED: "room is free, but it is kept for a job that goes first and that this one would delay",
    Reason.BEHIND_HEAD: "who goes before it waits for room or quota, and the rules do not let it pass",
    Reason.ROOM_PROMISED: "room is promised to it and held until what stands in the way has ended",
    Reason.CAPACITY: "it is entitled to run, but what is free does not hold the whole gang",
    Reason.TAKE_LIMIT: "no room is free, and the rules let it take no more from others",
    Reason.PROVISIONING: "cloud capacity was asked for and is on its way",
}
_CHANGES = {
    Reason.RULE_FAILED: "a rule that does not err on it",
    Reason.REFUSED_BY_POLICY: "another job, or an admission rule that lets it in",
    Reason.UNKNOWN_QUEUE: "a queue of that name, or a job for one of the queues that there are",
    Reason.DEPENDENCY_FAILED: "submitting it again, after a job that finishes",
    Reason.ROOM_PROMISED: "the end of what stands in the way, which was told to leave",
    Reason.PROVISIONING: "the arrival of the nodes that were asked for",
    Reason.DEPENDENCY: "the end of the jobs that it waits for",
    Reason.ARRAY_FULL: "the end of one job of its array, or a higher max_running",
    Reason.QUEUE_HELD: "releasing the hold on the queue",
    Reason.NO_NODE_OF_MODEL: "a node of a model that it accepts, or a longer list of models in the job",
    Reason.EXCEEDS_EVERY_NODE: "a larger node, or members that ask for less",
    Reason.EXCEEDS_CAPACITY: "more nodes in one cluster, or a smaller gang",
    Reason.HELD_WARM: "a smaller warm pool, or room that no pool holds",
    Reason.TAKE_LIMIT: "a higher answer of service.take, or room that nobody has",
    Reason.RESERVED: "an estimate that ends before the reserved start, or nodes that are not reserved",
    Reason.BEHIND_HEAD: "the start of the job in front, or a rule about overtaking that lets it pass",
    Reason.NOT_ELIGIBLE: "an eligibility rule that lets it onto one of these nodes",
}
"""What would have sufficed, where it is the same for every job."""
LEVEL_NAMES = {level: "NVLink domain" if level is Level.NVLINK else level.value for level in Level}
NAMED_NODES = 8
_CAUSES = {
    "not_eligible": "refused by the eligibility rules",
    "wrong_model": "of another GPU model",
    "cordoned": "cordoned",
    "too_small": "too small even when empty",
    "no_cpu": "without enough free CPU",
    "no_memory": "without enough free memory",
    "mig_misplaced": "with enough free MIG slices in the wrong places",
    "no_gpu": "without enough free GPUs",
    "no_other": "without enough of a named resource",
    "fitting": "with room for a member",
}


_SHORT = re.compile(r"budget (?P<budget>\S+) has (?P<left>-?\d+) micro-dollars left, (?P<needed>\d+) are needed")
_MICRO = re.compile(r"(-?\d+) micro-dollars left, (\d+)")
LABELS = 4
"""So many labels of a job are named; those that rules know, ``tidegate/...``, first."""


def asks(spec: JobSpec) -> str:
    """What a job asks for, and what else of it the rules may look at."""
    total = sum(role.count * role.gpus * (role.gpu_milli if not role.mig_profile else MILLI) for role in spec.roles)
    roles = "; ".join(_asked_role(role, named=len(spec.roles) > 1) for role in spec.roles)
    if spec.members > 1 and total and not any(role.mig_profile or role.gpu_memory_bytes for role in spec.roles):
        roles += f"; {amount('gpu', total)} in all"
    parts = [roles, f"priority {spec.priority}"]
    if spec.service is not None:
        objective = (
            f" whose p99 should stay within {spec.service.objective_ms:,} ms" if spec.service.objective_ms else ""
        )
        parts.insert(0, f"{_article(spec.service.latency_class.value)} service{objective}")
    if spec.estimate_ms is not None:
        parts.append(f"estimated to run {span(spec.estimate_ms)}")
    if spec.wait_limit_ms is not None:
        parts.append(f"gives up after waiting {span(spec.wait_limit_ms)}")
    if spec.time_limit_ms is not None:
        parts.append(f"stopped after running {span(spec.time_limit_ms)}")
    if spec.hold_ms is not None:
        parts.append(f"to be running {span(spec.hold_ms)} after it was placed")
    if spec.labels:
        ordered = sorted(spec.labels.items(), key=lambda label: (not label[0].startswith("tidegate/"), label))
        more = [f"{len(ordered) - LABELS} more"] if len(ordered) > LABELS else []
        parts.append("labels " + ", ".join([f"{key}={value}" for key, value in ordered[:LABELS]] + more))
    return f"It asks for {'; '.join(parts)}."


def given(terms: GangTerms) -> str:
    """What the rules give a job in place of what it asked for."""
    words = {
        "min_members": "at least {} members",
        "topology_required": "one {} for all of it",
        "topology_preferred": "one {} if there is room",
        "arrangement": "its members {}",
        "max_attempts": "{} starts in all",
        "wait_limit_ms": "{} to wait",
        "start_by_ms": "until {} to start",
        "hold_ms": "{} to come up once it is placed",
        "time_limit_ms": "{} to run",
        "grace_ms": "{} to stop",
        "max_running": "{} jobs of its array at once",
    }
    told: list[str] = []
    for name, words_of in words.items():
        value = getattr(terms, name)
        if value is not None:
            shown = instant(value) if name == "start_by_ms" else span(value) if name.endswith("_ms") else value
            told.append(words_of.format(LEVEL_NAMES.get(value, shown) if isinstance(value, Level) else shown))
    return ", ".join(told) or "the terms that it asked for"


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _asked_role(role: Role, *, named: bool) -> str:
    count = f"{role.count}" if role.least == role.count else f"{role.least} to {role.count}"
    who = f"{count} {'member' if role.count == 1 else 'members'}{f' of role {role.name}' if named else ''}"
    models = f" of model {' or '.join(role.gpu_models)}" if role.gpu_models else ""
    if role.gpus == 0:
        gpus = "no GPU"
    elif role.mig_profile:
        gpus = f"{role.gpus} MIG instances {role.mig_profile}{models}"
    elif role.gpu_memory_bytes:
        gpus = f"{amount('memory', role.gpu_memory_bytes)} of one GPU{models}"
    else:
        gpus = f"{amount('gpu', role.gpus * role.gpu_milli)}{models}"
    rest = [amount("cpu", role.cpu_milli)] if role.cpu_milli else []
    rest += [amount("memory", role.memory_bytes)] if role.memory_bytes else []
    return f"{who} with {', '.join([gpus, *rest])}{' each' if role.count > 1 else ''}"


def tell(watch: Watch, errors: Sequence[str] = ()) -> list[str]:
    """The account, the binding reason first; behind it, as the likely cause, the rules that erred about the job."""
    lines: list[str] = []
    if watch.is_granted:
        lines.append("This cycle placed it.")
    elif watch.refusal is not None:
        short = f" (short of {_amounts(watch.refusal.short)})" if watch.refusal.short else ""
        rule = f", by {watch.refusal.rule}" if watch.refusal.rule else ""
        detail = f": {watch.detail}" if watch.detail else ""
        lines.append(f"Reason {watch.refusal.reason.slug}: {_MEANING[watch.refusal.reason]}{short}{detail}{rule}.")
    else:
        lines.append("The cycle was not asked about it: it did not wait then.")
    lines.extend(errors)
    if watch.detail:  # of who was turned away, what there is is of no interest
        return [*lines, *_change(watch)]
    if not watch.is_granted:
        # After a placement these would tell what is left for another such job.
        lines.extend(_quota(quota) for quota in watch.quotas)
        lines.extend(_role(role) for role in watch.roles)
    if watch.topology is not None and not watch.is_granted:
        lines.append(_topology(watch.topology))
    if watch.ahead:
        named = ", ".join(job_label(JobId(id_)) for id_ in watch.first_ahead)
        jobs = "1 waiting job is" if watch.ahead == 1 else f"{watch.ahead:,} waiting jobs are"
        lines.append(f"In its queue {jobs} ahead: {named}{', ...' if watch.ahead > len(watch.first_ahead) else ''}.")
    for level in watch.queues:
        order = ", ".join(f"{s.queue} (share {s.share_ppb / 1e7:.2f}%, {s.pending} waiting)" for s in level)
        lines.append(f"Order of queues: {order}.")
    lines.extend(_hold(hold, watch.job) for hold in watch.reservations)
    lines.extend(_warm(held) for held in watch.warm)
    lines.extend(_awaited(watch))
    if watch.served_by is not None:
        lines.append(f"Capacity request {watch.served_by} is under way for it.")
    lines.extend(tell_offer(offer) for offer in watch.offers)
    return [*lines, *_change(watch)]


def _change(watch: Watch) -> list[str]:
    change = smallest_change(watch)
    return [f"Smallest change that would have let it run: {change}."] if change else []


def tell_offer(offer: OfferVerdict) -> str:
    """What became of one offer."""
    rule = f", by {offer.rule}" if offer.rule else ""
    answer = _MICRO.sub(
        lambda found: f"{amount('micro-usd', int(found[1]))} left, {amount('micro-usd', int(found[2]))}", offer.answer
    )
    return f"Offer {offer.offer}: {answer}{rule}."


def _awaited(watch: Watch) -> list[str]:
    """Whose end it waits for: of other jobs, or of the leases where its place will be."""
    lines: list[str] = []
    if watch.after and not watch.is_granted:
        jobs = ", ".join(job_label(JobId(id_)) for id_ in watch.after)
        lines.append(f"It starts only after these jobs are over: {jobs}.")
    if watch.waits_for:
        lines.append(f"Its place is free once these leases have ended: {', '.join(watch.waits_for)}.")
    return lines


def _hold(hold: Hold, job: int) -> str:
    whose = "Its own start is reserved" if hold.job == job else f"A start of {job_label(JobId(hold.job))} is reserved"
    when = "as soon as they have drained" if hold.start_ms is None else f"at {instant(hold.start_ms)}"
    nodes = ", ".join(hold.nodes[:NAMED_NODES]) + (", ..." if len(hold.nodes) > NAMED_NODES else "")
    return f"{whose} on {nodes}, {when}."


def _warm(held: WarmHold) -> str:
    nodes = ", ".join(held.nodes[:NAMED_NODES]) + (", ..." if len(held.nodes) > NAMED_NODES else "")
    whose = f"services of queue {held.queue}" if held.queue is not None else "services"
    return f"Warm pool {held.pool} holds {amount('gpu', held.gpus * MILLI)} on {nodes} for {whose}."


def meaning(reason: Reason) -> str:
    """What a reason says, in words."""
    return _MEANING[reason]


def signal(p99_ms: int | None, objective_ms: int | None, queue_depth: int | None) -> str:
    """How a service does; empty if nothing is known."""
    against = f" against {objective_ms:,} ms" if objective_ms is not None else ""
    parts = [f"p99 {p99_ms:,} ms{against}"] if p99_ms is not None else []
    if queue_depth is not None:
        parts.append(f"{queue_depth:,} {'request waits' if queue_depth == 1 else 'requests wait'}")
    return ", ".join(parts)


def smallest_change(watch: Watch) -> str:
    """What would have sufficed; empty if it ran, or if nothing that is known here would have."""
    refusal = watch.refusal
    if refusal is None or watch.is_granted:
        return ""
    match refusal.reason:
        case Reason.EXCEEDS_QUOTA_CEILING:
            return f"a ceiling of its queue that is higher by {_amounts(refusal.short)}, or a gang smaller by that"
        case Reason.QUOTA:
            return f"{_amounts(refusal.short)} more quota, or that much less in use by those who share it"
        case Reason.EXCEEDS_TOPOLOGY:
            return f"a larger {_level(watch)}, a smaller gang, or a wider level to require"
        case Reason.TOPOLOGY:
            return _nearer(watch)
        case Reason.CAPACITY:
            return _freed(watch)
        case Reason.BUDGET:
            return _more_money(watch)
        case Reason.NOT_ELIGIBLE if watch.faults:
            return "an eligibility rule that does not err, or lets it onto one of these nodes"
        case _:
            return _CHANGES.get(refusal.reason, "")


def _more_money(watch: Watch) -> str:
    """The least that a budget is short of for one of the offers."""
    found = (_SHORT.search(offer.answer) for offer in watch.offers)
    short = min(((int(one["needed"]) - int(one["left"]), one["budget"]) for one in found if one), default=None)
    if short is None:
        return "more budget in this window, or the next window"
    return f"{amount('micro-usd', short[0])} more in budget {short[1]} in this window"


def _freed(watch: Watch) -> str:
    tightest = min(watch.roles, key=lambda role: role.would_fit - role.members, default=None)
    if tightest is None or tightest.nearest is None:
        return ""
    missing = tightest.members - tightest.would_fit
    if missing <= 0:
        return ""
    if missing == 1 and not tightest.lacks and tightest.tally.mig_misplaced:
        return f"MIG instances that lie elsewhere on {tightest.nearest}: enough of its slices are free"
    if missing == 1 and tightest.lacks:
        return f"{_amounts(tightest.lacks)} more free on {tightest.nearest}"
    return f"room for {missing} more {'member' if missing == 1 else 'members'} of role {tightest.role}"


def _level(watch: Watch) -> str:
    return LEVEL_NAMES[watch.topology.level] if watch.topology is not None else "domain"


def _nearer(watch: Watch) -> str:
    short = watch.topology
    if short is None or not short.domain:
        return ""
    missing = short.members - short.room
    room = f"room for {missing} more of its members" if missing > 0 else "more room"
    return f"{room} in {short.domain}, or a wider level to require"


def _topology(short: TopologyShort) -> str:
    who = f"the {short.members} members of role {short.role}" if short.role else f"its {short.members} members"
    asked = f"Topology: it requires one {LEVEL_NAMES[short.level]} for {who}"
    if not short.domain:
        return f"{asked}; none has room for any."
    if short.room < short.members:
        return f"{asked}; {short.domain} comes nearest, with room for {short.room}."
    return f"{asked}; {short.domain} has room for each role alone, not for all of them at once."


def _quota(quota: QuotaStanding) -> str:
    flavor = "" if quota.flavor == "any" else f" of {quota.flavor}"
    asked, left = amount(quota.resource, quota.asked), amount(quota.resource, quota.available)
    return (
        f"Quota: it asks {asked}{flavor}; {left} are available, {amount(quota.resource, quota.ceiling)} at most ever."
    )


def _role(role: RoleStanding) -> str:
    fitted = f"{role.would_fit} of {role.members} members" if role.members > 1 else f"{role.would_fit} of 1 member"
    lacks = f"; {role.nearest} came nearest, lacking {_amounts(role.lacks)}" if role.lacks else ""
    return f"Role {role.role}: {fitted} would fit; {_tally(role.tally)}{lacks}."


def _tally(tally: Tally) -> str:
    parts = [f"{count} {words}" for cause, words in _CAUSES.items() if (count := getattr(tally, cause))]
    return f"of {tally.nodes} nodes " + ", ".join(parts) if parts else f"{tally.nodes} nodes"


def _amounts(amounts: Mapping[str, int]) -> str:
    return " and ".join(amount(resource, amounts[resource]) for resource in sorted(amounts))


def over_promise(promise: OverPromise) -> str:
    """Quota that is promised beyond what there is."""
    flavor = "" if promise.flavor == "any" else f" of flavor {promise.flavor}"
    promised, there = amount(promise.resource, promise.promised), amount(promise.resource, promise.there)
    return f"Over-promised: queues are promised {promised}{flavor}, and there are {there}."


def amount(resource: str, value: int) -> str:
    """An amount with its unit, for people."""
    match resource:
        case "gpu":
            return f"{value / MILLI:g} GPU{'' if value == MILLI else 's'}"
        case "cpu":
            return f"{value / MILLI:g} CPU{'' if value == MILLI else 's'}"
        case "memory":
            return f"{value / 2**30:.1f} GiB"
        case "micro-usd":
            return f"${value / 1e6:,.2f}"
        case _:
            return f"{value} {resource}"
