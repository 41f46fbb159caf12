"""Queues of Kueue and Volcano as one tree, with their quotas in our units."""

from __future__ import annotations

import textwrap

import pytest

from controlplane.domain.queues import QueueSpec, Quota
from controlplane.intake.manifests.reading import read_manifest
from controlplane.intake.manifests.submission import Submission

KUEUE = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lq, namespace: ml}
spec: {clusterQueue: team}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team}
spec:
  cohortName: company
  namespaceSelector: {}
  fairSharing: {weight: "3"}
  stopPolicy: Hold
  resourceGroups:
  - coveredResources: [cpu, memory, nvidia.com/gpu]
    flavors:
    - name: a100
      resources:
      - {name: cpu, nominalQuota: 1500m}
      - {name: memory, nominalQuota: 36Gi, lendingLimit: 0}
      - {name: nvidia.com/gpu, nominalQuota: 8, borrowingLimit: 4}
"""


def read(text: str) -> Submission:
    return read_manifest("f.yaml", textwrap.dedent(text))


def refusals(text: str) -> list[str]:
    return [str(refusal) for refusal in read(text).refusals]


def test_kueue() -> None:
    found = read(KUEUE)
    assert found.refusals == ()
    team, local = found.queues
    assert team == QueueSpec(
        name="team",
        parent="company",
        weight=3,
        held=True,
        quotas={
            "a100": {
                "cpu": Quota(nominal=1_500),
                "memory": Quota(nominal=36 * 2**30, lending_limit=0),
                "gpu": Quota(nominal=8_000, borrowing_limit=4_000),
            }
        },
    )
    assert local == QueueSpec(name="ml/lq", parent="team")
    assert found.implied_queues == (QueueSpec(name="company"),)


def test_a_cohort_of_the_file_is_not_implied_and_parents_come_first() -> None:
    text = KUEUE + "---\n{apiVersion: kueue.x-k8s.io/v1beta2, kind: Cohort, metadata: {name: company}, spec: {}}\n"
    found = read(text)
    assert [queue.name for queue in found.queues] == ["company", "team", "ml/lq"]
    assert found.implied_queues == ()


def test_a_local_queue_of_the_same_name_is_the_same_queue() -> None:
    text = "{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: q}, spec: {clusterQueue: q}}"
    assert read(text).queues == ()
    assert len(read(text).notes) == 1


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('weight: "3"', "weight: 500m", "spec.fairSharing.weight is '500m', not a whole number up to 1,000,000; "),
        ("stopPolicy: Hold", "stopPolicy: Hodl", "spec.stopPolicy is 'Hodl'; use None or Hold"),
        ("namespaceSelector: {}", "namespaceSelector: {matchLabels: {a: b}}", "spec.namespaceSelector limits who may "),
        ("[cpu, memory,", "[memory,", "resources[0].name (cpu) is not in coveredResources; add it there"),
        ("name: memory, nom", "name: cpu, nom", "resources[1].name (cpu) has a quota of this flavor already; keep one"),
        ("nominalQuota: 36Gi", "nominalQuota: 36Gib", "resources[1].nominalQuota is '36Gib', not a quantity; "),
        ("nominalQuota: 36Gi", "nominalQuota: 9E", "resources[1].nominalQuota is '9E', above the limit of 2^53; "),
        ("nominalQuota: 36Gi", "nominalquota: 36Gi", "resources[1].nominalquota is not a field that Tidegate knows; "),
        ("cohortName: company", "cohortName: company\n  admissionChecks: [x]", "spec.admissionChecks lets others hold"),
        ("cohortName: company", "cohortName: team", "queue team is above itself; correct the parents"),
        ("name: lq, namespace: ml", "name: team", ""),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, sentence: str) -> None:
    assert old in KUEUE
    found = refusals(KUEUE.replace(old, new))
    assert sentence in " ".join(found)
    assert bool(found) == bool(sentence)


def test_pods_are_not_counted_by_quotas() -> None:
    text = KUEUE.replace("[cpu, ", "[pods, cpu, ").replace(
        "      - {name: cpu", "      - {name: pods, nominalQuota: 5}\n      - {name: cpu"
    )
    (sentence,) = refusals(text)
    assert "limits how many members run, which quotas do not count here" in sentence


def test_two_queues_of_one_name_are_refused() -> None:
    assert (
        refusals(KUEUE + "---\n" + KUEUE.split("---\n")[1])[0]
        == "f.yaml: two queues are named team; rename one of them"
    )


VOLCANO = """\
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: v}
spec:
  weight: 4
  parent: dept
  capability: {cpu: "16", nvidia.com/gpu: 8}
  deserved: {nvidia.com/gpu: 6}
  guarantee: {resource: {nvidia.com/gpu: 2}}
"""


def test_volcano() -> None:
    assert read(VOLCANO).queues == (
        QueueSpec(
            name="v",
            parent="dept",
            weight=4,
            quotas={
                "any": {
                    "cpu": Quota(nominal=16_000, borrowing_limit=0),
                    "gpu": Quota(nominal=6_000, borrowing_limit=2_000, lending_limit=4_000),
                }
            },
        ),
    )


def test_a_capability_below_what_is_deserved_is_refused() -> None:
    (sentence,) = refusals(VOLCANO.replace("nvidia.com/gpu: 8", "nvidia.com/gpu: 5"))
    assert sentence == "f.yaml:7: spec.capability['nvidia.com/gpu'] is below what is deserved; raise it"


HIERARCHY = """\
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata:
  name: dev
  annotations: {volcano.sh/hierarchy: root/eng/dev, volcano.sh/hierarchy-weights: 1/2/8}
spec: {weight: 1}
"""


def test_volcanos_older_hierarchy_gives_parents_and_weights() -> None:
    found = read(HIERARCHY)
    assert found.queues == (QueueSpec(name="dev", parent="eng", weight=8),)
    assert found.implied_queues == (QueueSpec(name="eng", weight=2),)


@pytest.mark.parametrize("weights", ["1/2", "1/2/x", "1/2/99999999"])
def test_a_hierarchy_with_wrong_weights_is_refused(weights: str) -> None:
    assert len(refusals(HIERARCHY.replace("1/2/8", weights))) == 1
