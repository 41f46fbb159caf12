"""Volcano's Job and Queue."""

from __future__ import annotations

from pydantic import ValidationError

from controlplane.domain.quantities import MAX_MEMBERS
from controlplane.domain.queues import ANY_FLAVOR, QueueSpec, Quota
from controlplane.domain.workloads import Role
from controlplane.intake.manifests import pods
from controlplane.intake.manifests.documents import Field
from controlplane.intake.manifests.jobs import MAX_ATTEMPTS, add_job, name_of
from controlplane.intake.manifests.pods import our_name, quota_of
from controlplane.intake.manifests.submission import PROGRAM, READ, Draft, Fates, Noted, Refused
from controlplane.intake.tables import domain_fault, shown

DEFAULT_QUEUE = "default"
_LIFECYCLE = Noted("is decided by the rules for retries here")
_JOB: Fates = {
    **dict.fromkeys(("minAvailable", "queue", "tasks", "maxRetry", "priorityClassName"), READ),
    **dict.fromkeys(("plugins", "schedulerName", "ttlSecondsAfterFinished", "volumes"), PROGRAM),
    "policies": _LIFECYCLE,
    "minSuccess": Noted("is not used: the job is finished when its members are"),
    "runningEstimate": Noted("is not used"),
    "networkTopology": Refused("asks for a topology, which is not supported"),
}
_TASK: Fates = {
    **dict.fromkeys(("name", "replicas", "minAvailable", "template"), READ),
    "policies": _LIFECYCLE,
    "maxRetry": _LIFECYCLE,
    "dependsOn": Refused(
        "starts tasks one after the other, but a gang starts together", "submit them as separate jobs"
    ),
    "topologyPolicy": Refused("asks for a NUMA topology, which is not supported"),
    "partitionPolicy": Refused("splits the task into groups, which is not supported"),
}
_QUEUE: Fates = {
    **dict.fromkeys(("weight", "capability", "deserved", "guarantee", "parent"), READ),
    "priority": Noted("is not used: the ordering rules decide between queues"),
    "reclaimable": Noted("is not used: the rules decide what may be reclaimed"),
    "type": Noted("is not used"),
    "extendClusters": Refused("names clusters, which a queue cannot do here"),
    "affinity": Refused("names node groups, which a queue cannot do here"),
    "dequeueStrategy": Noted("is not used: the ordering rules decide"),
}
_HIERARCHY = "volcano.sh/hierarchy"
_WEIGHTS = "volcano.sh/hierarchy-weights"
_MAX_WEIGHT = 1_000_000


def convert_job(document: Field, draft: Draft) -> None:
    """``batch.volcano.sh`` Job: a gang of its tasks."""
    spec = document.get("spec")
    draft.survey(spec, _JOB)
    tasks = spec.get("tasks").items()
    if not tasks:
        raise spec.fault("has no tasks", "give at least one")
    roles = [_role(task, index, draft) for index, task in enumerate(tasks)]
    _check_events(spec.get("policies"))
    _check_minimum(spec.get("minAvailable"), sum(role.count for role in roles), draft)
    priorities = [spec.get("priorityClassName"), *(pods.priority_class(task.get("template")) for task in tasks)]
    retries = spec.get("maxRetry")
    add_job(
        document,
        roles,
        draft,
        queue=spec.get("queue").text("" if draft.context.queue else DEFAULT_QUEUE),
        priorities=priorities,
        max_attempts=retries.whole(MAX_ATTEMPTS) if retries.is_present else None,
    )


def _role(task: Field, index: int, draft: Draft) -> Role:
    draft.survey(task, _TASK)
    _check_events(task.get("policies"))
    role = pods.role(task.get("name").text(f"task-{index}"), task.get("replicas"), task.get("template"), draft)
    _check_minimum(task.get("minAvailable"), role.count, draft)
    return role


def _check_minimum(minimum: Field, members: int, draft: Draft) -> None:
    """Fewer than all is noted, since a gang starts whole here; more than all can never start."""
    if not minimum.is_present:
        return
    wanted = minimum.whole(MAX_MEMBERS)
    if wanted > members:
        raise minimum.fault(f"is {wanted:,}, but there are {members:,} members", "lower it or add members")
    if wanted < members:
        draft.note(minimum, f"is {wanted:,} of {members:,} members: all of them start together here")


def _check_events(policies: Field) -> None:
    """Two reactions to one event contradict each other; Volcano refuses them, too."""
    seen: dict[str, Field] = {}
    for policy in policies.items():
        for event in (policy.get("event"), *policy.get("events").items()):
            if event.is_present and seen.setdefault(event.text(), event) is not event:
                raise event.fault(f"({event.text()}) has a policy already", "keep one policy for each event")


def convert_queue(document: Field, draft: Draft) -> None:
    """``scheduling.volcano.sh`` Queue. Its capability is a ceiling over all flavors, deserved is nominal quota."""
    spec = document.get("spec")
    draft.survey(spec, _QUEUE)
    weight = spec.get("weight").whole(_MAX_WEIGHT, default=1)
    parent = spec.get("parent").text("root")
    path = document.at("metadata", "annotations").get(_HIERARCHY)
    if path.is_present:
        parent, weight = _hierarchy(path, document.at("metadata", "annotations").get(_WEIGHTS), draft)
    quotas = {our_name(name): _quota(spec, name) for name in _resources(spec)}
    try:
        queue = QueueSpec(
            name=name_of(document),
            parent=None if parent == "root" else parent,
            weight=weight,
            quotas={ANY_FLAVOR: quotas} if quotas else {},
        )
    except ValidationError as error:
        raise domain_fault(document.file, document.line, error) from error
    draft.queues.append(queue)


def _hierarchy(path: Field, weights: Field, draft: Draft) -> tuple[str, int]:
    """The parent and the weight of a queue by the annotations ``root/eng/dev`` and ``1/2/8``."""
    names = path.text().split("/")
    shares = weights.text("/".join("1" for _ in names)).split("/")
    if names[0] != "root" or len(names) < 2 or len(shares) != len(names):
        what = f"is {shown(path.text())} with weights {shown('/'.join(shares))}"
        raise path.fault(what, "write it as root/team/queue, with as many weights")
    numbers = [_weight(weights, share) for share in shares]
    above: str | None = None
    for name, number in zip(names[1:-1], numbers[1:-1], strict=True):
        try:
            draft.implied.setdefault(name, QueueSpec(name=name, parent=above, weight=number))
        except ValidationError as error:
            raise domain_fault(path.file, path.line, error) from error
        above = name
    return above or "root", numbers[-1]


def _weight(field: Field, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 7 or int(text) > _MAX_WEIGHT:
        raise field.fault(f"has the weight {shown(text)}", f"use whole numbers up to {_MAX_WEIGHT:,}")
    return int(text)


def _resources(spec: Field) -> list[str]:
    """Resources that any of the three tables names, in the order of the file."""
    tables = (spec.get("capability"), spec.get("deserved"), spec.at("guarantee", "resource"))
    return list(dict.fromkeys(name for table in tables for name, _ in table.fields()))


def _quota(spec: Field, resource: str) -> Quota:
    """Nominal is what is deserved (or else the whole capability), up to the capability is borrowed, and what is
    guaranteed is not lent."""
    ceiling, deserved, guaranteed = (
        _amount(table.get(resource), resource)
        for table in (spec.get("capability"), spec.get("deserved"), spec.at("guarantee", "resource"))
    )
    nominal = next(amount for amount in (deserved, ceiling, guaranteed) if amount is not None)
    if ceiling is not None and ceiling < nominal:
        raise spec.at("capability", resource).fault("is below what is deserved", "raise it")
    return Quota(
        nominal=nominal,
        borrowing_limit=None if ceiling is None else ceiling - nominal,
        lending_limit=None if guaranteed is None else max(0, nominal - guaranteed),
    )


def _amount(field: Field, resource: str) -> int | None:
    return quota_of(resource, field) if field.is_present else None
