"""Rules that remember what they were asked answer as those that do not."""

from __future__ import annotations

import inspect

from controlplane.policy.asked import AskedRules
from controlplane.policy.bundle import load_bundle
from controlplane.policy.rules import BundleRules
from controlplane.scheduler.rules import Answer, Rules
from tests.policy.bundles import BUDGET, HOME, HOME_CLUSTER, OFFER, ROLE, job, node, queue, shipped


def members(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of) if not name.startswith("_")}


def test_they_have_everything_that_the_scheduler_asks() -> None:
    assert members(Rules) <= members(AskedRules)
    assert members(Rules) <= members(BundleRules) | {"counters"}


def test_they_say_the_same_and_remember_what_was_asked() -> None:
    bundle = load_bundle(shipped("default"))
    asked, plain = AskedRules(bundle), bundle.rules()
    for rules in (asked, plain):
        assert rules.eligibility(job(), ROLE, HOME_CLUSTER, node()) == Answer(True, "eligibility.yaml:11")
    bursts = [rules.burst(job(), queue(), HOME, OFFER, BUDGET, 5_000) for rules in (asked, plain)]
    assert bursts[0] == bursts[1]
    properties = [name for name, member in inspect.getmembers(Rules) if isinstance(member, property)]
    assert {name: getattr(asked, name) for name in properties} == {name: getattr(plain, name) for name in properties}
    assert [(question.point, question.answer) for question in asked.questions] == [
        ("eligibility", Answer(True, "eligibility.yaml:11")),
        ("burst", bursts[0]),
    ]
    explanation = asked.explain(asked.questions[1])
    assert (explanation.answer, explanation.rule) == (str(OFFER.cost_micro_usd), bursts[0].rule)
    assert asked.reads("ordering.job") == {"job.priority"}
