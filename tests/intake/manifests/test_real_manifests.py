"""Every manifest of the projects' own examples converts, or is refused with the field or kind that is in the way."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from controlplane.domain.workloads import JobSpec
from controlplane.intake.manifests.reading import read_manifest
from controlplane.intake.manifests.submission import Context, Submission
from controlplane.intake.traces import IntakeError

SENTENCE = re.compile(r"[\w.-]+\.ya?ml(:[0-9]+)?: .+; .+\Z")
CONTEXT = Context(queue="batch")


@cache
def read(path: Path) -> Submission:
    try:
        return read_manifest(path.name, path.read_text(), CONTEXT)
    except IntakeError as error:
        return Submission(refusals=(error,))


@pytest.fixture
def manifests(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "manifests").rglob("*.yaml"))


def test_all_convert_or_say_why_not(manifests: list[Path]) -> None:
    assert len(manifests) == 293
    found = {path: read(path) for path in manifests}
    for submission in found.values():
        assert all(SENTENCE.match(str(refusal)) for refusal in submission.refusals)
        assert submission.refusals or submission.jobs or submission.queues or submission.notes
    assert sum(not submission.refusals for submission in found.values()) == 121


def test_no_part_of_a_refused_document_is_left(manifests: list[Path]) -> None:
    """A job is in the result only if its own document was taken whole; so names of refused jobs do not appear."""
    for path in manifests:
        submission = read(path)
        for job in submission.jobs:
            assert JobSpec.model_validate(job.model_dump()) == job
        if len(re.findall(r"^kind:", path.read_text(), re.MULTILINE)) == 1 and submission.refusals:
            assert not submission.jobs
            assert not submission.queues


@pytest.mark.parametrize(
    ("file", "roles"),
    [
        ("volcano/volcano/example/job.yaml", {"default-nginx": (6, 1_000, 0)}),
        ("kueue/kueue/site/static/examples/jobs/sample-job.yaml", {"main": (3, 1_000, 0)}),
        (
            "kueue/kueue/site/static/examples/jobs/sample-mpijob.yaml",
            {"launcher": (1, 1_000, 0), "worker": (2, 1_000, 0)},
        ),
        (
            (
                "kuberay/kuberay/ray-operator/config/samples/pytorch-resnet-image-classifier/"
                "ray-job.pytorch-image-classifier.yaml"
            ),
            {"head": (1, 1_000, 0), "gpu-group": (4, 1_000, 1), "submitter": (1, 500, 0)},
        ),
        ("kubeflow/kubeflow/examples/paddlepaddle/simple-gpu.yaml", {"worker": (2, 0, 2)}),
        ("jobset/jobset/site/static/examples/simple/paralleljobs.yaml", {"workers": (4, 0, 0), "driver": (1, 0, 0)}),
    ],
)
def test_known_jobs(data_dir: Path, file: str, roles: dict[str, tuple[int, int, int]]) -> None:
    (job,) = read(data_dir / "manifests" / file).jobs
    assert {role.name: (role.count, role.cpu_milli, role.gpus) for role in job.roles} == roles


def test_what_volcano_itself_denies_is_refused(data_dir: Path) -> None:
    folder = data_dir / "manifests/volcano/volcano/example/invalid_jobs"
    sentences = {path.name: str(read(path).refusals[0]) for path in folder.glob("*.yaml")}
    assert {name: text.split(": ", 1)[1] for name, text in sentences.items()} == {
        "duplicatedPolicyEvent-webhook-deny.yaml": (
            "spec.policies[1].event (PodFailed) has a policy already; keep one policy for each event"
        ),
        "duplicatedTaskName-webhook-deny.yaml": "spec has two roles named 'task-1'; give each its own name",
        "minAvailable-webhook-deny.yaml": "spec.minAvailable is 5, but there are 4 members; lower it or add members",
    }
