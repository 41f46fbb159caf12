"""What all job manifests have in common: name, queue, priority, labels, limits; and the checks of a whole gang."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pydantic import ValidationError

from controlplane.domain.quantities import MAX_MS
from controlplane.domain.workloads import JobSpec, Role
from controlplane.intake.manifests.documents import Field
from controlplane.intake.manifests.submission import Draft
from controlplane.intake.tables import domain_fault, shown

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
KUEUE_MAX_RUNTIME = "kueue.x-k8s.io/max-exec-time-seconds"
VOLCANO_QUEUE = "volcano.sh/queue-name"
YUNIKORN_QUEUE = "yunikorn.apache.org/queue"

MAX_ATTEMPTS = 1_000
_NO_NAME = re.compile(r"[^A-Za-z0-9]+\Z")
_REFUSED_MARKS = {
    "alpha.jobset.sigs.k8s.io/exclusive-topology": "asks for a topology domain of its own, which is not supported",
    "kueue.x-k8s.io/pod-group-name": "joins pods of several documents to a gang, which is not supported",
}
_NOTED_MARKS = {
    "kueue.x-k8s.io/elastic-job": "allows the job to change its size: it keeps the size asked for",
    "kueue.x-k8s.io/job-min-parallelism": "allows fewer members: the whole gang starts together",
}


def name_of(document: Field) -> str:
    """``metadata.name``, or ``generateName`` without its trailing dash."""
    metadata = document.get("metadata")
    generated = _NO_NAME.sub("", metadata.get("generateName").text(""))
    return metadata.get("name").text(generated or None)


def namespaced(document: Field, name: str) -> str:
    """Kueue's local queues belong to a namespace: ``<namespace>/<name>``; the namespace ``default`` is left out."""
    namespace = document.at("metadata", "namespace").text("default")
    return name if namespace == "default" else f"{namespace}/{name}"


def seconds(field: Field) -> int | None:
    """A field in seconds as milliseconds; ``None`` if it is absent."""
    return field.whole(MAX_MS // 1_000) * 1_000 if field.is_present else None


def add_job(
    document: Field,
    roles: Sequence[Role],
    draft: Draft,
    *,
    queue: str = "",
    priorities: Sequence[Field] = (),
    estimate_ms: int | None = None,
    max_attempts: int | None = None,
) -> None:
    """Puts the job of a document into the draft.

    ``queue`` is what the manifest's own kind names, if it does; ``priorities`` are fields that name priority classes.
    """
    marked = _marks(document, draft)
    repeated = sorted(name for name, times in Counter(role.name for role in roles).items() if times > 1)
    if repeated:
        raise document.get("spec").fault(f"has two roles named {shown(repeated[0])}", "give each its own name")
    if estimate_ms is None:
        estimate_ms = seconds(document.at("metadata", "labels").get(KUEUE_MAX_RUNTIME))
    try:
        spec = JobSpec(
            name=name_of(document),
            queue=_queue(document, draft, queue),
            user=draft.context.user,
            priority=_priority([document.at("metadata", "labels").get(KUEUE_PRIORITY), *priorities], draft),
            roles=tuple(roles),
            labels=marked,
            estimate_ms=estimate_ms,
        )
        if max_attempts is not None:
            spec = spec.model_copy(update={"max_attempts": min(MAX_ATTEMPTS, max(1, max_attempts))})
    except ValidationError as error:
        raise domain_fault(document.file, document.line, error) from error
    draft.jobs.append(spec)


def _marks(document: Field, draft: Draft) -> dict[str, str]:
    """The labels; labels and annotations that mean something to a scheduler are refused or noted."""
    metadata = document.get("metadata")
    for kind in ("labels", "annotations"):
        for key, value in metadata.get(kind).fields():
            if key in _REFUSED_MARKS:
                draft.refuse(value, _REFUSED_MARKS[key])
            elif key in _NOTED_MARKS:
                draft.note(value, _NOTED_MARKS[key])
    return {key: value.text() for key, value in metadata.get("labels").fields()}


def _queue(document: Field, draft: Draft, own: str) -> str:
    labels, annotations = document.at("metadata", "labels"), document.at("metadata", "annotations")
    kueue = labels.get(KUEUE_QUEUE)
    if kueue.is_present:
        return namespaced(document, kueue.text())
    for name in (own, labels.get(VOLCANO_QUEUE).text(""), annotations.get(VOLCANO_QUEUE).text("")):
        if name:
            return name
    yunikorn = labels.get(YUNIKORN_QUEUE)
    if yunikorn.is_present:
        return yunikorn.text().removeprefix("root.")
    if draft.context.queue is None:
        raise document.fault("names no queue", f"set the label {KUEUE_QUEUE}, or give the queue when submitting")
    return draft.context.queue


def _priority(fields: Sequence[Field], draft: Draft) -> int:
    """The priority that all fields that are there agree on; 0 if none is."""
    named = [field for field in fields if field.is_present]
    values = [_class_value(field, draft) for field in named]
    for field, value in zip(named, values, strict=True):
        if value != values[0]:
            first = f"{named[0].path} ({named[0].text()}, line {named[0].line})"
            raise field.fault(f"({field.text()}) gives another priority than {first}", "give the gang one priority")
    return values[0] if values else 0


def _class_value(field: Field, draft: Draft) -> int:
    value = draft.priorities.get(field.text())
    if value is None:
        what = f"names the priority class {shown(field.text())}, whose value is not known"
        raise field.fault(what, "put its PriorityClass into the file")
    return value
