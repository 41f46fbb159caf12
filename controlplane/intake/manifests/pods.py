"""A pod template to one role: what a member asks for, and which GPU models it accepts.

Amounts are those by which Kubernetes schedules a pod: the sum over its containers (a request that is missing is its
limit), or the largest of its init containers if that is more; init containers that keep running (``restartPolicy:
Always``) add to both; overhead comes on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pydantic import ValidationError

from controlplane.domain.quantities import CPU, GPU, MAX_AMOUNT, MAX_GPUS_PER_NODE, MAX_MEMBERS, MEMORY, MILLI
from controlplane.domain.workloads import Role
from controlplane.intake.manifests.amounts import bytes_of, count, cpu_milli
from controlplane.intake.manifests.documents import Field
from controlplane.intake.manifests.submission import PROGRAM, READ, Draft, Fates, Noted, Refused
from controlplane.intake.tables import domain_fault, shown

GPU_RESOURCE = "nvidia.com/gpu"
"""The extended resource that is counted as GPUs; others are named resources, which a node must declare."""
MODEL_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name")
"""Node labels that name a GPU's model: NVIDIA's feature discovery, GKE, Karpenter."""

_NO_LABELS = "asks for nodes by their labels, which a job cannot do here"
_POD: Fates = {
    **dict.fromkeys(("containers", "initContainers", "overhead", "priorityClassName", "resources"), READ),
    **dict.fromkeys(("nodeSelector", "affinity", "topologySpreadConstraints"), READ),
    **dict.fromkeys(("activeDeadlineSeconds", "restartPolicy"), PROGRAM),
    **dict.fromkeys(
        ("automountServiceAccountToken", "serviceAccount", "serviceAccountName", "imagePullSecrets"), PROGRAM
    ),
    **dict.fromkeys(("dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases", "hostname", "subdomain"), PROGRAM),
    **dict.fromkeys(("hostIPC", "hostNetwork", "hostPID", "hostUsers", "setHostnameAsFQDN"), PROGRAM),
    **dict.fromkeys(("securityContext", "shareProcessNamespace", "terminationGracePeriodSeconds", "volumes"), PROGRAM),
    **dict.fromkeys(("os", "readinessGates", "runtimeClassName", "ephemeralContainers"), PROGRAM),
    # Tolerations and the scheduler's name widen or route what Kubernetes does; placement is decided here.
    **dict.fromkeys(("tolerations", "schedulerName", "preemptionPolicy", "priority"), PROGRAM),
    "nodeName": Refused("binds the pod to one node", "let Tidegate place it"),
    "resourceClaims": Refused("asks for devices by claim, which is not supported", "ask for nvidia.com/gpu"),
    "schedulingGates": Refused("holds the pod back until somebody else releases it"),
    "schedulingGroup": Refused("belongs to Kubernetes' own gang scheduling", "remove it: a job is a gang here"),
    "workloadRef": Refused("belongs to Kubernetes' own gang scheduling", "remove it: a job is a gang here"),
}
_AFFINITIES: Fates = dict.fromkeys(("nodeAffinity", "podAffinity", "podAntiAffinity"), READ)
_PREFERRED = Noted("is only a preference: left out")
_POD_AFFINITY: Fates = {
    "requiredDuringSchedulingIgnoredDuringExecution": Refused("ties pods to each other, which is not supported"),
    "preferredDuringSchedulingIgnoredDuringExecution": _PREFERRED,
}
_NODE_AFFINITY: Fates = {
    "requiredDuringSchedulingIgnoredDuringExecution": READ,
    "preferredDuringSchedulingIgnoredDuringExecution": _PREFERRED,
}
_TEMPLATE: Fates = {"metadata": READ, "spec": READ, **dict.fromkeys(("apiVersion", "kind", "status"), PROGRAM)}
_TOPOLOGY = "kueue.x-k8s.io/podset-"
"""Prefix of Kueue's topology annotations."""

Needs = Counter[str]
"""Resource -> amount: milli-CPU, bytes, pieces."""


def role(name: str, members: Field, template: Field, draft: Draft, *, default: int = 1) -> Role:
    """The role of ``members`` pods (a field with their number) of a template."""
    return role_of(name, members.whole(MAX_MEMBERS, least=1, default=default), template, draft)


def role_of(name: str, members: int, template: Field, draft: Draft) -> Role:
    """The same for a number that was worked out."""
    draft.survey(template, _TEMPLATE)
    _survey_annotations(template.at("metadata", "annotations"), draft)
    spec = template.get("spec")
    draft.survey(spec, _POD)
    needs = _needs(spec)
    gpus = needs.pop(GPU_RESOURCE, 0)
    if gpus > MAX_GPUS_PER_NODE:
        what = f"asks for {gpus:,} of {GPU_RESOURCE}, above the limit of {MAX_GPUS_PER_NODE:,} in one node"
        raise spec.fault(what, "spread them over several members")
    models = _models(spec, draft)
    try:
        return Role(
            name=name,
            count=members,
            cpu_milli=needs.pop(CPU, 0),
            memory_bytes=needs.pop(MEMORY, 0),
            gpus=gpus,
            gpu_models=models if gpus else (),
            other={resource: amount for resource, amount in sorted(needs.items()) if amount},
        )
    except ValidationError as error:
        raise domain_fault(spec.file, spec.line, error) from error


def priority_class(template: Field) -> Field:
    """The field that names the template's priority class."""
    return template.at("spec", "priorityClassName")


# --- amounts ---------------------------------------------------------------------------------------------------------


def _needs(spec: Field) -> Needs:
    containers = spec.get("containers").items()
    if not containers:
        raise spec.fault("has no containers", "give at least one")
    total: Needs = sum((_container(container) for container in containers), Counter())
    sidecars: Needs = Counter()
    peak: Needs = Counter()
    for container in spec.get("initContainers").items():
        needs = _container(container)
        if container.get("restartPolicy").text("") == "Always":
            sidecars += needs
        else:
            peak |= sidecars + needs
    needed = (total + sidecars) | peak
    of_pod = _resources(spec.get("resources"))
    for resource, amount in of_pod.items():
        needed[resource] = amount
    return needed + Counter(dict(_amounts(spec.get("overhead"))))


def _container(container: Field) -> Needs:
    claims = container.at("resources", "claims")
    if claims.is_present:
        raise claims.fault("asks for devices by claim, which is not supported", "ask for nvidia.com/gpu")
    return _resources(container.get("resources"))


def _resources(resources: Field) -> Needs:
    return Counter(dict(_amounts(resources.get("limits"))) | dict(_amounts(resources.get("requests"))))


def _amounts(amounts: Field) -> Iterable[tuple[str, int]]:
    for resource, amount in amounts.fields():
        yield resource, amount_of(resource, amount)


def amount_of(resource: str, amount: Field) -> int:
    """One amount in the unit of its resource: milli-CPU, bytes, or pieces."""
    if resource == CPU:
        return cpu_milli(amount)
    if resource in {MEMORY, "ephemeral-storage"} or resource.startswith("hugepages-"):
        return bytes_of(amount)
    if resource == GPU:
        raise amount.fault("is no resource of Kubernetes", f"ask for {GPU_RESOURCE}")
    return count(amount)


def our_name(resource: str) -> str:
    """A resource as the domain names it."""
    return GPU if resource == GPU_RESOURCE else resource


def quota_of(resource: str, amount: Field) -> int:
    """An amount in the unit of quotas, which count GPUs in thousandths."""
    value = amount_of(resource, amount) * (MILLI if resource == GPU_RESOURCE else 1)
    if value > MAX_AMOUNT:
        raise amount.fault("is above the limit of 2^53", "correct it")
    return value


# --- where -----------------------------------------------------------------------------------------------------------


def _models(spec: Field, draft: Draft) -> tuple[str, ...]:
    """The GPU models that a pod insists on; any other demand on nodes is refused."""
    chosen: list[str] = []
    for label, value in spec.get("nodeSelector").fields():
        if label in MODEL_LABELS:
            chosen.append(value.text())
        elif (label, value.text()) != ("kubernetes.io/os", "linux"):
            draft.refuse(value, _NO_LABELS)
    affinity = spec.get("affinity")
    draft.survey(affinity, _AFFINITIES)
    for kind in ("podAffinity", "podAntiAffinity"):
        draft.survey(affinity.get(kind), _POD_AFFINITY)
    node_affinity = affinity.get("nodeAffinity")
    draft.survey(node_affinity, _NODE_AFFINITY)
    chosen.extend(_affine_models(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution"), draft))
    for constraint in spec.get("topologySpreadConstraints").items():
        if constraint.get("whenUnsatisfiable").text("DoNotSchedule") == "ScheduleAnyway":
            draft.note(constraint, "is only a preference: left out")
        else:
            draft.refuse(constraint, "spreads the pods over a topology, which is not supported")
    return tuple(dict.fromkeys(draft.context.model(name) for name in chosen))


def _affine_models(required: Field, draft: Draft) -> list[str]:
    """The models of a required affinity, if it is one list of models and nothing else."""
    if not required.is_present:
        return []
    terms = required.get("nodeSelectorTerms").items()
    expressions = terms[0].get("matchExpressions").items() if len(terms) == 1 else []
    if len(expressions) == 1 and not terms[0].get("matchFields").is_present:
        (expression,) = expressions
        if expression.get("key").text() in MODEL_LABELS and expression.get("operator").text() == "In":
            return [value.text() for value in expression.get("values").items()]
    draft.refuse(required, _NO_LABELS)
    return []


def _survey_annotations(annotations: Field, draft: Draft) -> None:
    """Kueue's topology requests are refused or noted; other annotations are the program's."""
    for key, value in annotations.fields():
        if key == f"{_TOPOLOGY}preferred-topology":
            draft.note(value, "is only a preference: left out")
        elif key == f"{_TOPOLOGY}unconstrained-topology":
            continue
        elif key.startswith(_TOPOLOGY):
            draft.refuse(value, f"asks for topology {shown(value.text())}, which is not supported")
