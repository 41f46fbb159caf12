"""Kueue's ClusterQueue, LocalQueue, Cohort and ResourceFlavor as one tree of queues.

A cohort is an interior node, a cluster queue hangs under its cohort, a local queue under its cluster queue. What
Kueue's admission and preemption settings decide is decided by policy files here; such fields are noted.
"""

from __future__ import annotations

from pydantic import ValidationError

from controlplane.domain.queues import QueueSpec, Quota
from controlplane.intake.manifests.amounts import quantity
from controlplane.intake.manifests.documents import Field
from controlplane.intake.manifests.jobs import name_of, namespaced
from controlplane.intake.manifests.pods import our_name, quota_of
from controlplane.intake.manifests.submission import READ, Draft, Fates, Noted, Refused
from controlplane.intake.tables import domain_fault, shown

_POLICY = Noted("is decided by policy files here")
_CHECKS = Refused("lets others hold jobs back, which is not supported", "write an admission rule")
_CLUSTER_QUEUE: Fates = {
    **dict.fromkeys(("cohort", "cohortName", "fairSharing", "namespaceSelector", "resourceGroups", "stopPolicy"), READ),
    **dict.fromkeys(("queueingStrategy", "preemption", "flavorFungibility", "admissionScope"), _POLICY),
    "concurrentAdmissionPolicy": _POLICY,
    "admissionChecks": _CHECKS,
    "admissionChecksStrategy": _CHECKS,
}
_COHORT: Fates = dict.fromkeys(("parent", "parentName", "fairSharing", "resourceGroups"), READ)
_LOCAL_QUEUE: Fates = dict.fromkeys(("clusterQueue", "fairSharing", "stopPolicy"), READ)
_GROUP: Fates = dict.fromkeys(("coveredResources", "flavors"), READ)
_FLAVOR: Fates = dict.fromkeys(("name", "resources"), READ)
_QUOTA: Fates = dict.fromkeys(("name", "nominalQuota", "borrowingLimit", "lendingLimit"), READ)
_UNCOUNTED = {"pods": "how many members run"}
_MAX_WEIGHT = 1_000_000


def convert_cluster_queue(document: Field, draft: Draft) -> None:
    """``kueue.x-k8s.io`` ClusterQueue."""
    spec = document.get("spec")
    draft.survey(spec, _CLUSTER_QUEUE)
    selector = spec.get("namespaceSelector")
    if not selector.is_empty:
        draft.refuse(selector, "limits who may use the queue", "write an admission rule")
    cohort = spec.get("cohortName") if spec.get("cohortName").is_present else spec.get("cohort")
    _add(document, cohort, draft)


def convert_cohort(document: Field, draft: Draft) -> None:
    """``kueue.x-k8s.io`` Cohort."""
    spec = document.get("spec")
    draft.survey(spec, _COHORT)
    _add(document, spec.get("parentName") if spec.get("parentName").is_present else spec.get("parent"), draft)


def convert_local_queue(document: Field, draft: Draft) -> None:
    """``kueue.x-k8s.io`` LocalQueue."""
    spec = document.get("spec")
    draft.survey(spec, _LOCAL_QUEUE)
    if namespaced(document, name_of(document)) == spec.get("clusterQueue").text():
        draft.note(spec.get("clusterQueue"), "has the same name as this local queue: they are one queue here")
        return
    _add(document, spec.get("clusterQueue"), draft, name=namespaced(document, name_of(document)))


def note_flavor(document: Field, draft: Draft) -> None:
    """``kueue.x-k8s.io`` ResourceFlavor: nodes carry their flavor here, so there is nothing to configure."""
    draft.note(document.at("metadata", "name"), f"is the flavor {name_of(document)}: an agent gives it to its nodes")


def _add(document: Field, parent: Field, draft: Draft, name: str = "") -> None:
    spec = document.get("spec")
    above = parent.text("")
    try:
        queue = QueueSpec(
            name=name or name_of(document),
            parent=above or None,
            weight=_weight(spec.at("fairSharing", "weight")),
            quotas=_quotas(spec.get("resourceGroups"), draft),
            held=_is_held(spec.get("stopPolicy"), draft),
        )
        if above and document.get("kind").text() != "LocalQueue":
            draft.implied.setdefault(above, QueueSpec(name=above))
    except ValidationError as error:
        raise domain_fault(document.file, document.line, error) from error
    draft.queues.append(queue)


def _weight(weight: Field) -> int:
    if not weight.is_present:
        return 1
    value = quantity(weight)
    if value.denominator != 1 or value > _MAX_WEIGHT:
        what = f"is {shown(weight.text())}, not a whole number up to {_MAX_WEIGHT:,}"
        raise weight.fault(what, "multiply the weights of all siblings")
    return int(value)


def _is_held(stop: Field, draft: Draft) -> bool:
    value = stop.text("None")
    if value == "HoldAndDrain":
        draft.note(stop, "holds the queue, but nothing that runs is ended here")
    if value not in {"None", "Hold", "HoldAndDrain"}:
        raise stop.fault(f"is {shown(value)}", "use None or Hold")
    return value != "None"


def _quotas(groups: Field, draft: Draft) -> dict[str, dict[str, Quota]]:
    quotas: dict[str, dict[str, Quota]] = {}
    for group in groups.items():
        draft.survey(group, _GROUP)
        covered = {resource.text() for resource in group.get("coveredResources").items()}
        for flavor in group.get("flavors").items():
            draft.survey(flavor, _FLAVOR)
            of_flavor = quotas.setdefault(flavor.get("name").text(), {})
            for resource in flavor.get("resources").items():
                draft.survey(resource, _QUOTA)
                name = resource.get("name").text()
                if name not in covered:
                    raise resource.get("name").fault(f"({name}) is not in coveredResources", "add it there")
                if name in _UNCOUNTED:
                    draft.refuse(resource, f"limits {_UNCOUNTED[name]}, which quotas do not count here")
                elif our_name(name) in of_flavor:
                    raise resource.get("name").fault(f"({name}) has a quota of this flavor already", "keep one")
                else:
                    of_flavor[our_name(name)] = _quota(resource, name)
    return quotas


def _quota(resource: Field, name: str) -> Quota:
    def limit(field: Field) -> int | None:
        return quota_of(name, field) if field.is_present else None

    return Quota(
        nominal=quota_of(name, resource.get("nominalQuota")),
        borrowing_limit=limit(resource.get("borrowingLimit")),
        lending_limit=limit(resource.get("lendingLimit")),
    )
