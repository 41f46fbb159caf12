"""A bundle as the scheduler asks it: answers, memory, faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.domain.topology import Level
from controlplane.domain.workloads import GangTerms
from controlplane.policy.bundle import load_bundle
from controlplane.policy.rules import BEST_SCORE, MEMO_LIMIT
from controlplane.scheduler.rules import WORST_SCORE, Rules
from tests.policy.bundles import (
    BUDGET,
    CANDIDATE,
    CLOUD_CLUSTER,
    HOME,
    HOME_CLUSTER,
    OFFER,
    ROLE,
    bundle,
    job,
    node,
    output,
    queue,
    shipped,
)

STAY = {"tidegate/stay-home": "true"}


def default_rules() -> Rules:
    return load_bundle(shipped("default")).rules()


def test_the_default_bundle_decides_as_it_says() -> None:
    rules = default_rules()
    assert rules.admission(job(), queue(), 5).value is None
    refused = rules.admission(job(members=5000), queue(), 5)
    assert refused.value == "the gang has more members than the 4096 that this policy allows"
    assert refused.rule == "admission.yaml:6"
    assert rules.queue_order(queue(weighted_share_ppb=7), 5).value == (7,)
    assert rules.job_order(job(priority=3, submitted_ms=9), queue(), 5).value == (-3,)
    assert rules.eligibility(job(labels=STAY), ROLE, CLOUD_CLUSTER, node()).value is False
    assert rules.eligibility(job(labels=STAY), ROLE, HOME_CLUSTER, node()).value is True
    assert rules.burst(job(), queue(), HOME, OFFER, BUDGET, 1001).value == OFFER.cost_micro_usd
    assert rules.burst(job(labels=STAY), queue(), HOME, OFFER, BUDGET, 1001).value is None
    assert rules.burst(job(), queue(), HOME, OFFER, None, 1001).value is None


def test_home_comes_before_cloud_and_the_tighter_node_first() -> None:
    rules = default_rules()
    loose = rules.scoring(ROLE, HOME_CLUSTER, node(), node(60_000, 7_000), None)
    tight = rules.scoring(ROLE, HOME_CLUSTER, node(), node(60_000, 1_000), None)
    cloud = rules.scoring(ROLE, CLOUD_CLUSTER, node(), node(0, 0), None)
    assert tight.value > loose.value > cloud.value


def test_best_fit_is_the_published_formula_in_exact_numbers() -> None:
    rules = load_bundle(shipped("examples/best-fit")).rules()
    for cpu_left in range(0, 128_001, 4_000):
        for gpu_left in range(0, 8_001, 250):
            exact = int(100 * (1 - (cpu_left / 256_000 + gpu_left / 16_000)) + 1e-9)
            assert rules.scoring(ROLE, HOME_CLUSTER, node(), node(cpu_left, gpu_left), None).value == exact


def test_a_point_without_a_rule_has_its_default() -> None:
    rules = load_bundle({"bundle.yaml": "name: empty\n"}).rules()
    assert rules.admission(job(), queue(), 5).value is None
    assert rules.queue_order(queue(weighted_share_ppb=7), 5).value == (7,)
    assert rules.job_order(job(priority=3), queue(), 5).value == (-3,)
    assert rules.eligibility(job(), ROLE, CLOUD_CLUSTER, node()).value is True
    assert rules.scoring(ROLE, HOME_CLUSTER, node(), node(), None).value == 0
    assert rules.burst(job(), queue(), HOME, OFFER, BUDGET, 5).value is None
    assert rules.job_order_reads == {"job.priority"}
    assert rules.queue_order_reads == {"queue.weighted_share_ppb"}
    assert rules.scoring_reads == frozenset()


def test_reads_are_the_paths_that_the_rules_name() -> None:
    rules = default_rules()
    assert rules.job_order_reads == {"job.priority"}
    assert rules.queue_order_reads == {"queue.weighted_share_ppb"}
    assert "candidate.lottery" not in rules.scoring_reads
    assert load_bundle(shipped("examples/random")).rules().scoring_reads == {"candidate.lottery"}


def test_a_bare_field_needs_no_engine() -> None:
    rules = load_bundle(shipped("examples/random")).rules()
    assert rules.scoring(ROLE, HOME_CLUSTER, node(), node(), CANDIDATE).value == 77
    counter = rules.counters.points["scoring"]
    assert (counter.asked, counter.direct, counter.evaluated) == (1, 1, 0)


def test_the_engine_is_asked_once_per_distinct_tuple_of_what_is_read() -> None:
    rules = load_bundle(shipped("default")).rules()
    for number in range(100):
        rules.eligibility(job(id=f"j{number}", labels={"team": str(number)}), ROLE, CLOUD_CLUSTER, node(number))
    rules.eligibility(job(labels={**STAY, "team": "x"}), ROLE, CLOUD_CLUSTER, node())
    counter = rules.counters.points["eligibility"]
    assert (counter.asked, counter.remembered) == (101, 2)


def test_what_is_not_read_does_not_reach_the_engine_and_what_is_read_does() -> None:
    rules = output("eligibility", "'a' in job.gpu_models && node.labels['zone'] == job.labels['zone']").rules()
    here, there = {"zone": "z1", "x": "y"}, {"zone": "z2"}
    assert rules.eligibility(job(gpu_models=("a", "b"), labels=here), ROLE, HOME_CLUSTER, node(labels=here)).value
    assert not rules.eligibility(job(gpu_models=("b",), labels=here), ROLE, HOME_CLUSTER, node(labels=here)).value
    assert not rules.eligibility(job(gpu_models=("a",), labels=here), ROLE, HOME_CLUSTER, node(labels=there)).value


def test_equal_labels_in_another_order_are_one_key() -> None:
    rules = output("eligibility", "job.labels.exists(k, k == 'b')").rules()
    rules.eligibility(job(labels={"a": "1", "b": "2"}), ROLE, HOME_CLUSTER, node())
    rules.eligibility(job(labels={"b": "2", "a": "1"}), ROLE, HOME_CLUSTER, node())
    assert rules.counters.points["eligibility"].remembered == 1


def test_memory_is_bounded_and_forgetting_changes_no_answer() -> None:
    rules = output("scoring", "after.cpu_free_milli >= 0 ? after.cpu_free_milli + 1 : 0").rules()
    for cpu in range(MEMO_LIMIT + 10):
        rules.scoring(ROLE, HOME_CLUSTER, node(), node(cpu), None)
    assert rules.scoring(ROLE, HOME_CLUSTER, node(), node(3), None).value == 4
    assert rules.counters.points["scoring"].remembered == MEMO_LIMIT + 11


@pytest.mark.parametrize(
    ("expression", "score"), [("9223372036854775807", BEST_SCORE), ("-9223372036854775807", WORST_SCORE + 1)]
)
def test_scores_are_clamped_above_the_score_of_a_failed_rule(expression: str, score: int) -> None:
    assert output("scoring", expression).rules().scoring(ROLE, HOME_CLUSTER, node(), node(), None).value == score
    wide = output("scoring", f"{expression} + (after.gpus - after.gpus)").rules()
    assert wide.scoring(ROLE, HOME_CLUSTER, node(), node(), None).value == score


FAULTY = "1 / (job.priority - 5)"


def test_a_rule_that_errs_fails_closed_and_says_where() -> None:
    refused = output("admission", f"string({FAULTY})").rules().admission(job(), queue(), 5)
    sentence = "rule.yaml:5: the rule failed, so the submission is refused: a number was divided by zero"
    assert (refused.value, refused.rule, refused.fault) == (sentence, "rule.yaml:5", sentence)
    eligible = output("eligibility", f"{FAULTY} > 0").rules().eligibility(job(), ROLE, HOME_CLUSTER, node())
    assert (eligible.value, eligible.fault is not None) == (False, True)
    ordered = output("ordering.job", f"[{FAULTY}]").rules().job_order(job(), queue(), 5)
    assert (ordered.value, ordered.fault is not None) == ((2**62,), True)
    score = output("scoring", "1 / (after.gpus - 8)").rules().scoring(ROLE, HOME_CLUSTER, node(), node(), None)
    assert (score.value, score.fault is not None) == (WORST_SCORE, True)
    burst = output("burst", FAULTY).rules().burst(job(), queue(), HOME, OFFER, BUDGET, 5)
    assert (burst.value, burst.fault is not None) == (None, True)
    terms = output("gang", f"{{'hold_ms': {FAULTY}}}").rules().gang(job(), queue(), None, 5)
    assert (terms.value, terms.fault is not None) == (GangTerms(), True)


def test_terms_that_no_job_could_ask_for_fail_closed_and_say_which() -> None:
    terms = output("gang", "{'max_attempts': 2, 'hold_ms': job.priority - 9}").rules().gang(job(), queue(), None, 5)
    assert terms.value == GangTerms()
    assert terms.fault == (
        "rule.yaml:5: the rule failed, so the submission is refused (a job that waits keeps its terms): "
        "hold_ms is -4, and it should be greater than or equal to 1"
    )


def test_terms_are_the_map_that_the_rule_writes() -> None:
    rules = output("gang", "{'topology_required': 'rack', 'wait_limit_ms': home.pressure_ppm + now}").rules()
    answer = rules.gang(job(), queue(), HOME, 5)
    assert answer.value == GangTerms(topology_required=Level.RACK, wait_limit_ms=HOME.pressure_ppm + 5)
    assert answer.rule == "rule.yaml:5"
    assert rules.may_give_terms
    assert rules.gang_reads == {"home.pressure_ppm", "now"}
    none = load_bundle({"bundle.yaml": "name: empty\n"}).rules()
    assert (none.may_give_terms, none.gang(job(), queue(), None, 5).value) == (False, GangTerms())


def test_an_absent_fact_is_absent() -> None:
    asked = output("ordering.job", "[has(job.estimate_ms) ? job.estimate_ms : -1]").rules()
    assert asked.job_order(job(), queue(), 5).value == (-1,)
    assert asked.job_order(job(estimate_ms=0), queue(), 5).value == (0,)
    unasked = output("ordering.job", "[job.estimate_ms]").rules().job_order(job(), queue(), 5)
    assert unasked.fault is not None
    assert "absent" in unasked.fault


def test_a_fault_in_a_variable_that_does_not_matter_is_none() -> None:
    rule = (
        "variables:\n  - name: bad\n    expression: 1 / (job.priority - 5) > 0\nmatch:\n  - output: {} || variables.bad"
    )
    assert (
        bundle("eligibility", rule.replace("{}", "job.members == 1"))
        .rules()
        .eligibility(job(), ROLE, HOME_CLUSTER, node())
        .value
    )
    assert (
        bundle("eligibility", rule.replace("{}", "job.members == 2"))
        .rules()
        .eligibility(job(), ROLE, HOME_CLUSTER, node())
        .fault
    )


def test_hostile_text_reaches_the_engine_whole() -> None:
    rules = output("eligibility", "size(job.name) == 3").rules()
    assert rules.eligibility(job(name="a\0b"), ROLE, HOME_CLUSTER, node()).value
    assert rules.eligibility(job(name="a\udc80b"), ROLE, HOME_CLUSTER, node()).value
    assert rules.eligibility(job(name="añ😀"), ROLE, HOME_CLUSTER, node()).value


ELSEWHERE = """
import json
from tests.policy.bundles import *
from controlplane.policy.bundle import load_bundle
rules = load_bundle(shipped("default")).rules()
LABELS = output("eligibility", "job.labels.exists(k, int(k) > 0)")
busy = {"b": "2", "a": "1", "tidegate/stay-home": "false"}
print(json.dumps([
    rules.digest,
    rules.engine,
    sorted(rules.scoring_reads),
    repr(rules.admission(job(members=9999, labels=busy), queue(), 7)),
    repr(rules.eligibility(job(labels=busy), ROLE, CLOUD_CLUSTER, node(labels=busy))),
    [rules.scoring(ROLE, HOME_CLUSTER, node(), node(c, g), None).value for c in range(0, 99999, 777) for g in (0, 500)],
    repr(rules.burst(job(labels=busy), queue(), HOME, OFFER, BUDGET, 7)),
    repr(LABELS.rules().eligibility(job(labels=busy), ROLE, HOME_CLUSTER, node())),
]))
"""


def in_another_process(seed: str) -> list[object]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    answers: list[object] = json.loads(done.stdout)
    return answers


def test_a_fresh_process_under_another_hash_seed_gives_the_same_digest_and_answers() -> None:
    first = in_another_process("1")
    assert first == in_another_process("4242")
    assert first[0] == load_bundle(shipped("default")).digest
