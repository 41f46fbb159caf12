"""A file to a submission: finds out what each document is, and gives it to its converter. Pure: text in, values out.

One document that is refused does not hide the faults of the others: all refusals of a file are collected, so that its
author sees them at once. Whoever submits must not submit anything of a file with refusals.
"""

from __future__ import annotations

from collections.abc import Callable

from controlplane.domain.queues import QueueSpec
from controlplane.intake.manifests import batch, kubeflow, kueue, ray, slurm, volcano
from controlplane.intake.manifests.documents import Field, documents
from controlplane.intake.manifests.submission import Context, Draft, Submission
from controlplane.intake.tables import shown
from controlplane.intake.traces import IntakeError

Converter = Callable[[Field, Draft], None]

_MAX_PRIORITY = 10**9

CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Pod"): batch.convert_pod,
    ("batch", "Job"): batch.convert_job,
    ("jobset.x-k8s.io", "JobSet"): batch.convert_jobset,
    ("batch.volcano.sh", "Job"): volcano.convert_job,
    ("scheduling.volcano.sh", "Queue"): volcano.convert_queue,
    ("kueue.x-k8s.io", "ClusterQueue"): kueue.convert_cluster_queue,
    ("kueue.x-k8s.io", "LocalQueue"): kueue.convert_local_queue,
    ("kueue.x-k8s.io", "Cohort"): kueue.convert_cohort,
    ("kueue.x-k8s.io", "ResourceFlavor"): kueue.note_flavor,
    **{("kubeflow.org", kind): kubeflow.convert_job for kind in kubeflow.REPLICA_SPECS},
    ("ray.io", "RayJob"): ray.convert_job,
}
"""(API group, kind) -> converter; all versions of a group that are in use agree in what is read."""
PRIORITY_CLASSES = {("scheduling.k8s.io", "PriorityClass"), ("kueue.x-k8s.io", "WorkloadPriorityClass")}
"""Read before everything else."""
ENDLESS = {
    *(("apps", kind) for kind in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")),
    *(("ray.io", kind) for kind in ("RayCluster", "RayService")),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
}
"""Services: refused with a reason of their own."""
SUPPORTING = {
    *(("", kind) for kind in ("ConfigMap", "Namespace", "PersistentVolume", "PersistentVolumeClaim", "Secret")),
    *(("", kind) for kind in ("Service", "ServiceAccount")),
    *(("rbac.authorization.k8s.io", f"{scope}{kind}") for scope in ("", "Cluster") for kind in ("Role", "RoleBinding")),
    *(("networking.k8s.io", kind) for kind in ("Ingress", "NetworkPolicy")),
}
"""What stands beside jobs in their files and is no work itself: noted, if the file has work."""


def read_manifest(file: str, text: str, context: Context | None = None) -> Submission:
    """Jobs and queues of a YAML file or an sbatch script (a text that begins with ``#!``).

    ``file`` is the name in sentences. Faults come back in ``refusals``; only a text that cannot be taken apart at all,
    or in which there is nothing to submit, raises :class:`IntakeError`.
    """
    draft = Draft(file, context or Context())
    draft.priorities.update(draft.context.priorities)
    if text.startswith("#!"):
        try:
            draft.jobs.extend(slurm.jobs_of_script(file, text, draft))
        except IntakeError as error:
            draft.refusals.append(error)
        return _submission(draft)
    found = [part for document in documents(file, text) for part in _parts(document)]
    if all(_kind(document) in SUPPORTING | PRIORITY_CLASSES for document in found):
        kinds = ", ".join(dict.fromkeys(_kind(document)[1] for document in found))
        what = f"the file holds only {kinds}" if found else "the file holds no documents"
        raise IntakeError(file, 0, what, "give a job or a queue")
    for document in sorted(found, key=lambda each: _kind(each) not in PRIORITY_CLASSES):
        _convert(document, draft)
    return _submission(draft)


def _parts(document: Field) -> list[Field]:
    """A ``List`` is its items."""
    if not document.is_mapping:
        raise document.fault("is not a mapping", "give objects with apiVersion and kind")
    parts = document.get("items").items() if document.get("kind").text("") == "List" else [document]
    for part in parts:
        if not part.is_mapping:
            raise part.fault("is not a mapping", "give objects with apiVersion and kind")
    return parts


def _kind(document: Field) -> tuple[str, str]:
    """(API group, kind); the core group is empty."""
    group, slash, _ = document.get("apiVersion").text().partition("/")
    return (group if slash else "", document.get("kind").text())


def _convert(document: Field, draft: Draft) -> None:
    """One document; if anything of it is refused, nothing of it is left in the draft but the refusals."""
    jobs, queues, refusals = len(draft.jobs), len(draft.queues), len(draft.refusals)
    try:
        _converter(document)(document, draft)
    except IntakeError as error:
        draft.refusals.append(error)
    if len(draft.refusals) > refusals:
        del draft.jobs[jobs:]
        del draft.queues[queues:]


def _converter(document: Field) -> Converter:
    kind = _kind(document)
    if kind in PRIORITY_CLASSES:
        return _read_priority
    if kind in SUPPORTING:
        return _note_supporting
    converter = CONVERTERS.get(kind)
    if converter is None:
        why = "never ends by itself, so it is no job" if kind in ENDLESS else "is not supported"
        of_group = f" of {kind[0]}" if kind[0] else ""
        fix = "remove the document, or write its work as a job"
        raise document.get("kind").fault(f"{shown(kind[1])}{of_group} {why}", fix)
    return converter


def _note_supporting(document: Field, draft: Draft) -> None:
    draft.note(document.get("kind"), f"{_kind(document)[1]} is not submitted: give it to the cluster")


def _read_priority(document: Field, draft: Draft) -> None:
    value = document.get("value").whole(_MAX_PRIORITY, least=-_MAX_PRIORITY)
    draft.priorities[document.at("metadata", "name").text()] = value


# --- queues ----------------------------------------------------------------------------------------------------------


def _submission(draft: Draft) -> Submission:
    queues: dict[str, QueueSpec] = {}
    for queue in draft.queues:
        if queues.setdefault(queue.name, queue) is not queue:
            draft.refusals.append(
                IntakeError(draft.file, 0, f"two queues are named {queue.name}", "rename one of them")
            )
    implied = {name: queue for name, queue in draft.implied.items() if name not in queues}
    return Submission(
        jobs=tuple(draft.jobs),
        queues=tuple(_parents_first(queues, draft)),
        implied_queues=tuple(implied.values()),
        notes=tuple(draft.notes),
        refusals=tuple(draft.refusals),
    )


def _parents_first(queues: dict[str, QueueSpec], draft: Draft) -> list[QueueSpec]:
    """The queues with every parent before its children, otherwise in the order of the file."""
    ordered: dict[str, QueueSpec] = {}
    for start in queues:
        line: dict[str, QueueSpec] = {}
        name: str | None = start
        while name in queues and name not in ordered:
            if name in line:
                what = f"queue {name} is above itself"
                draft.refusals.append(IntakeError(draft.file, 0, what, "correct the parents"))
                return []
            line[name] = queues[name]
            name = queues[name].parent
        ordered.update(reversed(line.items()))
    return list(ordered.values())
