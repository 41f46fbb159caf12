"""Small bundles and facts for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

from controlplane.policy.bundle import Bundle, load_bundle, read_bundle_folder
from controlplane.policy.check import check
from controlplane.policy.problems import Problem
from controlplane.scheduler.facts import (
    BudgetFacts,
    CandidateFacts,
    ClusterFacts,
    HomeFacts,
    JobFacts,
    NodeFacts,
    OfferFacts,
    QueueFacts,
    RoleFacts,
)

POLICIES = Path(__file__).parents[2] / "policies"
SHIPPED = sorted(found.parent.relative_to(POLICIES).as_posix() for found in POLICIES.rglob("bundle.yaml"))
"""Every bundle of the repository, so that a new one is held to the same as the others."""


def shipped(name: str) -> dict[str, str]:
    return read_bundle_folder(POLICIES / name)


def one_rule(point: str, rule: str, params: str = "") -> dict[str, str]:
    """A bundle of one rule file. ``rule`` is what stands below ``rule:``, from column one."""
    body = "".join(f"  {line}\n" if line else "\n" for line in rule.strip("\n").split("\n"))
    manifest = f"name: test\npoints:\n  {point}: [rule.yaml]\n"
    if params:
        manifest += "params:\n" + "".join(f"  {line}\n" for line in params.strip().split("\n"))
    return {"bundle.yaml": manifest, "rule.yaml": f"name: rule\npoint: {point}\nrule:\n{body}"}


def bundle(point: str, rule: str, params: str = "") -> Bundle:
    return load_bundle(one_rule(point, rule, params))


def output(point: str, expression: str, params: str = "") -> Bundle:
    """A bundle whose one rule is one expression, written as a block."""
    return bundle(point, f"match:\n  - output: |\n      {expression}", params)


def problems(point: str, rule: str, params: str = "") -> list[Problem]:
    return check(one_rule(point, rule, params))


def only_problem(point: str, rule: str, params: str = "") -> Problem:
    found = problems(point, rule, params)
    assert len(found) == 1, "\n".join(map(str, found)) or "nothing was refused"
    return found[0]


def job(**changes: object) -> JobFacts:
    values: dict[str, object] = {
        "id": "j1",
        "name": "train",
        "queue": "research",
        "user": "ada",
        "priority": 5,
        "labels": {},
        "members": 1,
        "gpus_milli": 1000,
        "cpu_milli": 8000,
        "memory_bytes": 2**30,
        "gpu_models": (),
        "submitted_ms": 1000,
        "attempts": 0,
    }
    return JobFacts(**{**values, **changes})  # type: ignore[arg-type]


def queue(**changes: object) -> QueueFacts:
    values: dict[str, object] = {
        "name": "research",
        "parent": "",
        "weight": 1,
        "share_ppb": 10,
        "weighted_share_ppb": 10,
        "gpu_used_milli": 0,
        "gpu_nominal_milli": 0,
        "gpu_borrowed_milli": 0,
        "pending": 1,
        "running": 0,
        "oldest_ms": 1000,
    }
    return QueueFacts(**{**values, **changes})  # type: ignore[arg-type]


def node(cpu_free: int = 64_000, gpu_free: int = 4_000, **changes: object) -> NodeFacts:
    values: dict[str, object] = {
        "cluster": "idc",
        "flavor": "a100",
        "gpu_model": "A100",
        "labels": {},
        "cpu_milli": 128_000,
        "memory_bytes": 2**40,
        "gpus": 8,
        "cpu_free_milli": cpu_free,
        "memory_free_bytes": 2**39,
        "gpu_free_milli": gpu_free,
        "gpus_free": gpu_free // 1000,
        "gpu_free_largest_milli": min(1000, gpu_free),
    }
    return NodeFacts(**{**values, **changes})  # type: ignore[arg-type]


ROLE = RoleFacts("main", 1, 8000, 2**30, 1, 1000, ())
HOME_CLUSTER = ClusterFacts("idc", "home", {})
CLOUD_CLUSTER = ClusterFacts("aws", "cloud", {})
CANDIDATE = CandidateFacts("node-1", -1, 77)
HOME = HomeFacts(8000, 0, 16000, 3_000_000)
OFFER = OfferFacts("aws", "p4d", "a100", "spot", "A100", 8, 10_000_000, 120_000, 1, 4, 5_000_000)
BUDGET = BudgetFacts("monthly", 100_000_000, 50_000_000, 86_400_000)
