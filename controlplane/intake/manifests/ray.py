"""KubeRay's RayJob: a gang of the head, the workers of each group, and the pod that submits the entry point."""

from __future__ import annotations

from controlplane.domain.quantities import MAX_MEMBERS
from controlplane.domain.workloads import Role
from controlplane.intake.manifests import pods
from controlplane.intake.manifests.batch import check_suspended
from controlplane.intake.manifests.documents import Field
from controlplane.intake.manifests.jobs import add_job, seconds
from controlplane.intake.manifests.submission import PROGRAM, READ, Draft, Fates, Noted, Refused

_ELASTIC = Noted("lets the cluster change its size: it keeps the replicas asked for")
_SPEC: Fates = {
    **dict.fromkeys(("rayClusterSpec", "suspend", "submissionMode", "submitterPodTemplate"), READ),
    **dict.fromkeys(("activeDeadlineSeconds", "backoffLimit"), READ),
    **dict.fromkeys(("entrypoint", "entrypointNumCpus", "entrypointNumGpus", "entrypointResources"), PROGRAM),
    **dict.fromkeys(("jobId", "metadata", "runtimeEnvYAML", "shutdownAfterJobFinishes", "submitterConfig"), PROGRAM),
    **dict.fromkeys(("ttlSecondsAfterFinished", "deletionStrategy", "preRunningDeadlineSeconds"), PROGRAM),
    "clusterSelector": Refused("runs the job on a Ray cluster that is there already", "give its rayClusterSpec"),
    "managedBy": Refused("gives the job to another controller"),
}
_CLUSTER: Fates = {
    **dict.fromkeys(("headGroupSpec", "workerGroupSpecs"), READ),
    **dict.fromkeys(("rayVersion", "headServiceAnnotations", "gcsFaultToleranceOptions", "authOptions"), PROGRAM),
    "enableInTreeAutoscaling": _ELASTIC,
    "autoscalerOptions": PROGRAM,
    "managedBy": Refused("gives the cluster to another controller"),
}
_HEAD: Fates = {
    "template": READ,
    **dict.fromkeys(("rayStartParams", "serviceType", "headService", "enableIngress", "labels", "resources"), PROGRAM),
}
_GROUP: Fates = {
    **dict.fromkeys(("groupName", "replicas", "minReplicas", "numOfHosts", "template"), READ),
    **dict.fromkeys(("maxReplicas", "rayStartParams", "scaleStrategy", "labels", "resources"), PROGRAM),
    "idleTimeoutSeconds": _ELASTIC,
    "suspend": Refused("holds the group back until somebody else releases it"),
}
_SUBMITTER_CPU_MILLI = 500
_SUBMITTER_MEMORY_BYTES = 200 * 2**20
"""What KubeRay asks for the pod that submits the entry point, if the manifest gives no template for it."""


def convert_job(document: Field, draft: Draft) -> None:
    """``ray.io`` RayJob."""
    spec = document.get("spec")
    draft.survey(spec, _SPEC)
    check_suspended(document, spec.get("suspend"), draft)
    cluster = spec.get("rayClusterSpec")
    if not cluster.is_present:
        if not spec.get("clusterSelector").is_present:
            draft.refuse(spec, "has no rayClusterSpec", "give it")
        return
    draft.survey(cluster, _CLUSTER)
    head = cluster.get("headGroupSpec")
    draft.survey(head, _HEAD)
    groups = cluster.get("workerGroupSpecs").items()
    roles = [pods.role_of("head", 1, head.get("template"), draft)]
    roles.extend(role for group in groups for role in _group(group, draft))
    if spec.get("submissionMode").text("K8sJobMode") == "K8sJobMode":
        roles.append(_submitter(spec.get("submitterPodTemplate"), draft))
    retries = spec.get("backoffLimit")
    add_job(
        document,
        roles,
        draft,
        priorities=[pods.priority_class(each.get("template")) for each in (head, *groups)],
        estimate_ms=seconds(spec.get("activeDeadlineSeconds")),
        max_attempts=retries.whole(2**31) + 1 if retries.is_present else None,
    )


def _group(group: Field, draft: Draft) -> list[Role]:
    """The workers of a group; none, with a note, if it starts empty."""
    draft.survey(group, _GROUP)
    fewest = group.get("minReplicas").whole(MAX_MEMBERS, default=0)
    replicas = group.get("replicas").whole(MAX_MEMBERS, default=fewest)
    hosts = group.get("numOfHosts").whole(MAX_MEMBERS, least=1, default=1)
    if replicas * hosts > MAX_MEMBERS:
        raise group.fault(f"has {replicas * hosts:,} members, above the limit of {MAX_MEMBERS:,}", "split it")
    if replicas == 0:
        draft.note(group, "starts without workers: left out, since a job keeps its size")
        return []
    return [pods.role_of(group.get("groupName").text(), replicas * hosts, group.get("template"), draft)]


def _submitter(template: Field, draft: Draft) -> Role:
    if template.is_present:
        return pods.role_of("submitter", 1, template, draft)
    return Role(name="submitter", cpu_milli=_SUBMITTER_CPU_MILLI, memory_bytes=_SUBMITTER_MEMORY_BYTES)
