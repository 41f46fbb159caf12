"""Kubernetes' own Job and Pod, and JobSet, with or without Kueue's labels."""

from __future__ import annotations

from controlplane.domain.quantities import MAX_MEMBERS
from controlplane.domain.workloads import Role
from controlplane.intake.manifests import pods
from controlplane.intake.manifests.documents import Field
from controlplane.intake.manifests.jobs import KUEUE_QUEUE, add_job, seconds
from controlplane.intake.manifests.submission import PROGRAM, READ, Draft, Fates, Noted, Refused

_RETRIES = Noted("is decided by the rules for retries here")
_JOB: Fates = {
    **dict.fromkeys(
        ("parallelism", "completions", "suspend", "template", "backoffLimit", "activeDeadlineSeconds"), READ
    ),
    **dict.fromkeys(("completionMode", "manualSelector", "selector", "ttlSecondsAfterFinished"), PROGRAM),
    **dict.fromkeys(("podFailurePolicy", "backoffLimitPerIndex", "maxFailedIndexes", "podReplacementPolicy"), _RETRIES),
    "successPolicy": Noted("is not used: the job is finished when its members are"),
    "managedBy": Refused("gives the job to another controller"),
}
_JOBSET: Fates = {
    **dict.fromkeys(("replicatedJobs", "suspend", "startupPolicy", "failurePolicy"), READ),
    **dict.fromkeys(("coordinator", "network", "ttlSecondsAfterFinished", "volumeClaimPolicies"), PROGRAM),
    "successPolicy": Noted("is not used: the job is finished when its members are"),
    "managedBy": Refused("gives the job to another controller"),
}
_REPLICATED: Fates = {
    **dict.fromkeys(("name", "replicas", "template"), READ),
    "groupName": PROGRAM,
    "dependsOn": Refused("starts jobs one after the other, but a gang starts together", "submit them separately"),
}


def convert_pod(document: Field, draft: Draft) -> None:
    """A Pod: a gang of one."""
    role = pods.role_of("main", 1, document, draft)
    estimate_ms = seconds(document.at("spec", "activeDeadlineSeconds"))
    add_job(document, [role], draft, priorities=[pods.priority_class(document)], estimate_ms=estimate_ms)


def convert_job(document: Field, draft: Draft) -> None:
    """A Job: a gang of ``parallelism`` pods, which is what Kueue counts, too."""
    spec = document.get("spec")
    check_suspended(document, spec.get("suspend"), draft)
    retries = spec.get("backoffLimit")
    add_job(
        document,
        [_job_role("main", 1, spec, draft)],
        draft,
        priorities=[pods.priority_class(spec.get("template"))],
        estimate_ms=seconds(spec.get("activeDeadlineSeconds")),
        max_attempts=retries.whole(2**31) + 1 if retries.is_present else None,
    )


def _job_role(name: str, replicas: int, spec: Field, draft: Draft) -> Role:
    """The pods of so many alike Jobs."""
    draft.survey(spec, _JOB)
    parallel = spec.get("parallelism").whole(MAX_MEMBERS, least=1, default=1)
    completions = spec.get("completions")
    if completions.is_present:
        wanted = completions.whole(2**31, least=1)
        if wanted > parallel:
            draft.note(completions, f"is {wanted:,} with parallelism {parallel:,}: {parallel:,} members are placed")
        parallel = min(parallel, wanted)
    if replicas * parallel > MAX_MEMBERS:
        raise spec.fault(f"asks for {replicas * parallel:,} members, above the limit of {MAX_MEMBERS:,}", "split it")
    return pods.role_of(name, replicas * parallel, spec.get("template"), draft)


def convert_jobset(document: Field, draft: Draft) -> None:
    """A JobSet: a gang over its replicated jobs."""
    spec = document.get("spec")
    draft.survey(spec, _JOBSET)
    check_suspended(document, spec.get("suspend"), draft)
    order = spec.at("startupPolicy", "startupPolicyOrder")
    if order.text("AnyOrder") != "AnyOrder":
        draft.refuse(order, f"is {order.text()}, but a gang starts together", "use AnyOrder")
    replicated = spec.get("replicatedJobs").items()
    if not replicated:
        raise spec.fault("has no replicatedJobs", "give at least one")
    restarts = spec.at("failurePolicy", "maxRestarts")
    rules = spec.at("failurePolicy", "rules")
    if rules.is_present:
        draft.note(rules, _RETRIES.what)
    deadlines = [seconds(each.at("template", "spec", "activeDeadlineSeconds")) for each in replicated]
    add_job(
        document,
        [_replicated_role(each, draft) for each in replicated],
        draft,
        priorities=[pods.priority_class(each.at("template", "spec", "template")) for each in replicated],
        estimate_ms=None if None in deadlines else max(filter(None, deadlines), default=None),
        max_attempts=restarts.whole(2**31) + 1 if restarts.is_present else None,
    )


def _replicated_role(each: Field, draft: Draft) -> Role:
    draft.survey(each, _REPLICATED)
    replicas = each.get("replicas").whole(MAX_MEMBERS, least=1, default=1)
    return _job_role(each.get("name").text(), replicas, each.at("template", "spec"), draft)


def check_suspended(document: Field, suspend: Field, draft: Draft) -> None:
    """Kueue has its jobs submitted suspended; any other suspended job waits for somebody's word."""
    queued = document.at("metadata", "labels").get(KUEUE_QUEUE)
    if suspend.flag(default=False) and not queued.is_present:
        draft.refuse(suspend, "is true, so that the job would wait for somebody's word", "remove it")
