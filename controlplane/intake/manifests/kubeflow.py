"""Kubeflow's training jobs: PyTorchJob, TFJob, MPIJob, XGBoostJob, PaddleJob, JAXJob. One field's name differs."""

from __future__ import annotations

from controlplane.domain.quantities import MAX_MEMBERS
from controlplane.domain.workloads import Role
from controlplane.intake.manifests import pods
from controlplane.intake.manifests.batch import check_suspended
from controlplane.intake.manifests.documents import Field
from controlplane.intake.manifests.jobs import add_job, seconds
from controlplane.intake.manifests.submission import PROGRAM, READ, Draft, Fates, Noted, Refused

REPLICA_SPECS = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
}
_ELASTIC = Noted("allows the job to change its size: it keeps the replicas asked for")
_SPEC: Fates = {
    "runPolicy": READ,
    "elasticPolicy": _ELASTIC,
    "enableDynamicWorker": _ELASTIC,
    "successPolicy": Noted("is not used: the job is finished when its members are"),
    **dict.fromkeys(("nprocPerNode", "slotsPerWorker", "sshAuthMountPath", "mpiImplementation"), PROGRAM),
    **dict.fromkeys(("mainContainer", "runLauncherAsWorker"), PROGRAM),
    # In the first version of MPIJob this field of the run policy stood one level higher.
    "cleanPodPolicy": PROGRAM,
    "launcherCreationPolicy": Noted("is not used: a gang starts together"),
}
_REPLICA: Fates = {"replicas": READ, "template": READ, "restartPolicy": PROGRAM}
_RUN: Fates = {
    **dict.fromkeys(("suspend", "backoffLimit", "activeDeadlineSeconds", "schedulingPolicy"), READ),
    **dict.fromkeys(("cleanPodPolicy", "ttlSecondsAfterFinished"), PROGRAM),
    "managedBy": Refused("gives the job to another controller"),
}
_SCHEDULING: Fates = {
    **dict.fromkeys(("queue", "priorityClass"), READ),
    "minAvailable": Noted("is not used: the whole gang starts together"),
    "minResources": Noted("is not used: the whole gang starts together"),
    "scheduleTimeoutSeconds": Noted("is not used"),
}


def convert_job(document: Field, draft: Draft) -> None:
    """A gang over its replica types."""
    spec = document.get("spec")
    replica_specs = REPLICA_SPECS[document.get("kind").text()]
    draft.survey(spec, {**_SPEC, replica_specs: READ})
    replicas = list(spec.get(replica_specs).fields())
    if not replicas:
        raise spec.fault(f"has no {replica_specs}", "give at least one")
    policy = spec.get("runPolicy")
    draft.survey(policy, _RUN)
    check_suspended(document, policy.get("suspend"), draft)
    scheduling = policy.get("schedulingPolicy")
    draft.survey(scheduling, _SCHEDULING)
    retries = policy.get("backoffLimit")
    classes = [scheduling.get("priorityClass"), *(pods.priority_class(each.get("template")) for _, each in replicas)]
    add_job(
        document,
        [_role(kind, each, draft) for kind, each in replicas],
        draft,
        queue=scheduling.get("queue").text(""),
        priorities=classes,
        estimate_ms=seconds(policy.get("activeDeadlineSeconds")),
        max_attempts=retries.whole(2**31) + 1 if retries.is_present else None,
    )


def _role(kind: str, replica: Field, draft: Draft) -> Role:
    draft.survey(replica, _REPLICA)
    count = replica.get("replicas").whole(MAX_MEMBERS, least=1, default=1)
    return pods.role_of(kind.lower(), count, replica.get("template"), draft)
