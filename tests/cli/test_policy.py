"""``tidegate policy``: what an author sees, and what a pipeline reads."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.cli.watching import LOOK_S, SETTLE_S, Looks
from tests.cli.conftest import Tidegate
from tests.cli.worlds import POLICIES, part
from tests.policy.bundles import SHIPPED

ORDER = "name: order\npoint: ordering.job\nrule:\n  match:\n    - output: '[{}]'\n"
TESTS = """description: order
section:
  - name: order
    tests:
      - name: the most important first
        input: {job: {value: {priority: 5}}}
        output: '[%s]'
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of one rule and one test."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "bundle.yaml").write_text("name: mine\npoints:\n  ordering.job: [order.yaml]\n")
    (folder / "order.yaml").write_text(ORDER.format("-job.priority"))
    (folder / "order.tests.yaml").write_text(TESTS % "-5")
    return folder


def test_a_good_bundle_is_good(tidegate: Tidegate, bundle: Path) -> None:
    said = tidegate("policy", "check", bundle)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{bundle}: good; digest ")
    answer = tidegate("policy", "check", bundle, "--json").answer()
    assert (answer["ok"], answer["problems"]) == (True, [])
    assert str(answer["digest"]) in said.out


def test_a_typo_is_shown_as_a_compiler_shows_it(tidegate: Tidegate, bundle: Path) -> None:
    (bundle / "order.yaml").write_text(ORDER.format("-job.priorty"))
    said = tidegate("policy", "check", bundle)
    assert (said.code, said.err) == (1, "")
    assert f"{bundle}/order.yaml:5:" in said.out
    assert "^" in said.out
    assert "did you mean 'priority'?" in said.out
    answer = tidegate("policy", "check", bundle, "--json")
    assert (answer.code, answer.answer()["ok"]) == (1, False)
    sarif = tidegate("policy", "check", bundle, "--sarif").answer()
    assert sarif["version"] == "2.1.0"
    assert str(bundle).strip("/") in str(sarif)


def test_a_bundle_that_does_not_load_has_no_tests_to_run(tidegate: Tidegate, bundle: Path) -> None:
    (bundle / "order.yaml").write_text(ORDER.format("-job.priorty"))
    assert "order.yaml:5:" in tidegate("policy", "test", bundle).sentence()


def test_tests_pass(tidegate: Tidegate, bundle: Path) -> None:
    said = tidegate("policy", "test", bundle)
    assert (said.code, said.out) == (0, f"{bundle}: 1 of 1 test passed\n")
    answer = tidegate("policy", "test", bundle, "--json").answer()
    assert (answer["ok"], answer["tests"], answer["passed"]) == (True, 1, 1)


def test_a_test_that_fails_is_named_with_what_came_instead(tidegate: Tidegate, bundle: Path) -> None:
    (bundle / "order.tests.yaml").write_text(TESTS % "5")
    said = tidegate("policy", "test", bundle)
    assert (said.code, said.err) == (1, "")
    assert f"{bundle}/order.tests.yaml:5: failed" in said.out
    assert (
        f"    expected: [5]\n    got:      [-5], by {bundle}/order.yaml:5\n    why:      -> order.yaml:5: yes"
        in said.out
    )
    assert "job.priority = 5\n" in said.out
    assert tidegate("policy", "test", bundle, "--json").code == 1


def test_coverage_names_what_no_test_shows(tidegate: Tidegate, bundle: Path) -> None:
    (bundle / "order.tests.yaml").unlink()
    said = tidegate("policy", "test", bundle, "--coverage")
    assert said.code == 0
    assert f"{bundle}/order.yaml:5:" in said.out
    assert "no test reaches this match" in said.out
    answer = tidegate("policy", "test", bundle, "--coverage", "--json").answer()
    bundles = answer["bundles"]
    assert isinstance(bundles, list)
    assert part(bundles[0], "coverage")["reached"] == 0


def test_all_bundles_that_ship_pass_and_go_into_one_file_of_results(tidegate: Tidegate, tmp_path: Path) -> None:
    folders = [POLICIES / name for name in SHIPPED]
    said = tidegate("policy", "test", *folders, "--junit", tmp_path / "results.xml")
    assert (said.code, said.err) == (0, "")
    assert len(said.out.splitlines()) == len(SHIPPED)
    root = ET.parse(tmp_path / "results.xml").getroot()
    cases = root.findall("testsuite/testcase")
    assert len(cases) == int(root.attrib["tests"]) > len(SHIPPED)
    assert all(any(case.attrib["classname"].startswith(f"{folder}/") for folder in folders) for case in cases)


def test_results_that_cannot_be_written_are_one_sentence(tidegate: Tidegate, bundle: Path, tmp_path: Path) -> None:
    said = tidegate("policy", "test", bundle, "--junit", tmp_path / "no" / "results.xml").sentence()
    assert "results.xml" in said


# --- scenarios, filters, coverage ------------------------------------------------------------------------------------

STORY = """story: The most important goes first.
given:
  clusters: {home: {nodes: {n: {gpus: 1}}}}
  queues: {team: {}}
when:
  - at: 0s
    submit: {usual: {gpus: 1}, urgent: {gpus: 1, priority: 5}}
then:
  - at: 1m
    running: [urgent]
    because: it is urgent
"""


@pytest.fixture
def played(bundle: Path) -> Path:
    """The same with a scenario."""
    (bundle / "scenarios").mkdir()
    (bundle / "scenarios" / "urgent.yaml").write_text(STORY)
    return bundle


def test_rule_tests_and_scenarios_are_run_by_one_command(tidegate: Tidegate, played: Path) -> None:
    said = tidegate("policy", "test", played)
    assert (said.code, said.out) == (0, f"{played}: 2 of 2 tests passed (1 scenario among them)\n")
    bundles = tidegate("policy", "test", played, "--json").answer()["bundles"]
    assert isinstance(bundles, list)
    assert [case["kind"] for case in bundles[0]["cases"]] == ["rule", "scenario"]


def test_a_scenario_that_goes_otherwise_is_told_as_a_story(tidegate: Tidegate, played: Path) -> None:
    (played / "order.yaml").write_text(ORDER.format("job.priority"))
    said = tidegate("policy", "test", played, "-k", "urgent.yaml")
    assert (said.code, said.err) == (1, "")
    lines = said.out.split("\n")
    assert lines[0] == f"{played}/scenarios/urgent.yaml:10: failed: The most important goes first: at 1m, running"
    assert lines[1:5] == [
        "    expected: urgent",
        "    got:      usual",
        "    why:      urgent waits: capacity",
        "              usual is seen running (at 1s)",
    ]
    assert lines[5:7] == ["    because:  it is urgent", "    what happened:"]
    assert any("usual is placed on n" in line for line in lines)


def test_a_scenario_that_cannot_be_read_is_a_problem_of_check_and_test(tidegate: Tidegate, played: Path) -> None:
    (played / "scenarios" / "urgent.yaml").write_text(STORY.replace("running:", "runing:"))
    for command in ("check", "test"):
        said = tidegate("policy", command, played)
        assert (said.code, said.err) == (1, "")
        assert f"{played}/scenarios/urgent.yaml:10" in said.out
        assert "runing is not known; use running" in said.out
    assert str(tidegate("policy", "check", played, "--sarif").answer()).count("scenarios/urgent.yaml") == 1


def test_only_chosen_tests_are_run(tidegate: Tidegate, played: Path) -> None:
    assert tidegate("policy", "test", played, "--only", "IMPORTANT FIRST").out == f"{played}: 1 of 1 test passed\n"
    both = tidegate("policy", "test", played, "-k", "important first", "-k", "scenarios/").out
    assert both.startswith(f"{played}: 2 of 2")
    sentence = tidegate("policy", "test", played, "-k", "nobody").sentence()
    assert sentence == f"--only: no test of {played} has 'nobody' in file, section or name"


def test_coverage_is_an_annotated_page_too(tidegate: Tidegate, played: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert tidegate("policy", "test", played, POLICIES / "default", "--html", page).code == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "in tests: applied 1; in scenarios: applied 2" in text
    assert "Coverage of mine, default" in text
    bundles = tidegate("policy", "test", played, "--coverage", "--json").answer()["bundles"]
    assert isinstance(bundles, list)
    [match] = bundles[0]["coverage"]["by_match"]
    assert (match["tests"], match["scenarios"]) == ({"held": 1, "failed": 0}, {"held": 2, "failed": 0})


# --- explain ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """The facts of one question."""
    path = tmp_path / "facts.yaml"
    path.write_text("job: {value: {priority: 5}}\n")
    return path


def test_explain_shows_the_case_that_fired_and_what_it_read(tidegate: Tidegate, bundle: Path, facts: Path) -> None:
    said = tidegate("policy", "explain", "ordering.job", "--input", facts, "--policies", bundle)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"ordering.job: [-5]  ({bundle}/order.yaml:5)\n")
    assert f"-> {bundle}/order.yaml:5: yes: otherwise" in said.out
    assert "job.priority = 5" in said.out
    answer = tidegate("policy", "explain", "ordering.job", "--input", facts, "--policies", bundle, "--json").answer()
    assert (answer["ok"], answer["answer"], answer["rule"]) == (True, "[-5]", "order.yaml:5")
    assert answer["facts"] == [{"name": "job.priority", "value": "5", "unit": ""}]


def test_explain_takes_the_bundle_that_is_here(
    tidegate: Tidegate, bundle: Path, facts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bundle)
    assert "(./order.yaml:5)" in tidegate("policy", "explain", "ordering.job", "--input", facts).out
    monkeypatch.chdir(POLICIES.parent)
    assert "policies/default/ordering-job.yaml:6" in tidegate("policy", "explain", "ordering.job", "--input", facts).out
    monkeypatch.chdir(facts.parent)
    sentence = tidegate("policy", "explain", "ordering.job", "--input", facts).sentence()
    assert sentence == "there is no bundle here, nor in policies/default; name one with --policies DIR"


def test_a_rule_that_errs_is_explained_and_the_answer_is_no(tidegate: Tidegate, bundle: Path, facts: Path) -> None:
    (bundle / "order.yaml").write_text(ORDER.format("job.members / (job.priority - 5)"))
    facts.write_text("job: {priority: 5, members: 1}")
    said = tidegate("policy", "explain", "ordering.job", "--input", facts, "--policies", bundle)
    assert said.code == 1
    assert "the rule failed, so the job goes last: a number was divided by zero" in said.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("job: {prio: 1}", ["facts.yaml:1:7: job has no field 'prio'; did you mean 'priority'?"]),
        ("jbo: {}", ["facts.yaml:1:6: the point 'ordering.job' has no 'jbo'"]),
        ("", ["facts.yaml:1:1: the file is empty"]),
        ("\0", ["facts.yaml:1:1: the control character U+0000"]),
        (None, ["facts.yaml: No such file or directory"]),
    ],
)
def test_facts_that_do_not_fit_are_one_sentence(
    tidegate: Tidegate, bundle: Path, facts: Path, text: str | None, words: list[str]
) -> None:
    facts.unlink() if text is None else facts.write_text(text)
    sentence = tidegate("policy", "explain", "ordering.job", "--input", facts, "--policies", bundle).sentence()
    assert all(word in sentence for word in words), sentence


def test_a_point_that_is_not_there_is_one_sentence(tidegate: Tidegate, bundle: Path, facts: Path) -> None:
    sentence = tidegate("policy", "explain", "ordering.jbo", "--input", facts, "--policies", bundle).sentence()
    assert sentence.startswith("there is no decision point 'ordering.jbo'; did you mean 'ordering.job'?")


def test_a_file_in_place_of_a_bundle_is_one_sentence(tidegate: Tidegate, bundle: Path) -> None:
    for command in ("check", "test"):
        sentence = tidegate("policy", command, bundle / "order.yaml").sentence()
        assert sentence.startswith(
            f"{bundle}/order.yaml is a file: name the folder of its bundle, or give --environment"
        )


# --- policies of other hosts -----------------------------------------------------------------------------------------

ENVIRONMENT = """name: bank
variables:
  - {name: ip, type_name: string}
functions:
  - name: country
    overloads:
      - {id: country_string, args: [{type_name: string}], return: {type_name: string}}
"""
ELSEWHERE = """name: home_only
rule:
  variables:
    - name: from
      expression: country(ip)
  match:
    - condition: variables.from != 'us'
      output: "'no: ' + variables.from"
    - output: "'yes'"
"""
ELSEWHERE_TESTS = """description: who may come in
section:
  - name: countries
    tests:
      - {name: abroad, input: {ip: {value: 10.0.0.2}}, output: "'no: de'"}
      - {name: at home, input: {ip: 10.0.0.1}, output: {expr: "'yes'"}}
"""
FUNCTIONS = "FUNCTIONS = {'country_string': lambda ip: {'10.0.0.1': 'us', '10.0.0.2': 'de'}.get(ip, 'zz')}\n"


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """A folder as other tools of the format have it, with functions of its host."""
    folder = tmp_path / "bank"
    folder.mkdir()
    files = {"policy.yaml": ELSEWHERE, "config.yaml": ENVIRONMENT, "tests.yaml": ELSEWHERE_TESTS, "host.py": FUNCTIONS}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def options(bank: Path) -> list[str | Path]:
    return ["--environment", bank / "config.yaml", "--functions", bank / "host.py"]


def test_a_policy_of_another_host_is_checked_and_tested(tidegate: Tidegate, bank: Path) -> None:
    said = tidegate("policy", "check", bank, *options(bank))
    assert (said.code, said.out, said.err) == (0, f"{bank}: good\n", "")
    for path in (bank, bank / "policy.yaml"):
        said = tidegate("policy", "test", path, *options(bank))
        assert (said.code, said.out) == (0, f"{path}: 2 of 2 tests passed\n")
    covered = tidegate("policy", "test", bank, *options(bank), "--coverage").out
    assert "2 of 2 matches reached; 2 of 2 sides of conditions seen" in covered
    assert list(bank.glob("__pycache__")) == []


def test_a_failing_test_of_another_host_is_told_with_its_variables(tidegate: Tidegate, bank: Path) -> None:
    (bank / "tests.yaml").write_text(ELSEWHERE_TESTS.replace("no: de", "no: fr"))
    said = tidegate("policy", "test", bank, *options(bank), "--only", "abroad")
    assert said.code == 1
    assert said.out.startswith(f"{bank}/tests.yaml:5: failed: countries: abroad\n    expected: 'no: fr'\n")
    assert f"    got:      'no: de', by {bank}/policy.yaml:7\n" in said.out
    assert "variables.from = 'de'" in said.out


def test_what_is_wrong_with_it_is_shown_as_a_compiler_shows_it(tidegate: Tidegate, bank: Path) -> None:
    (bank / "policy.yaml").write_text(ELSEWHERE.replace("country(ip)", "country(ipp)"))
    (bank / "tests.yaml").write_text("section: 3\n")
    said = tidegate("policy", "check", bank, *options(bank))
    assert (said.code, said.err) == (1, "")
    assert f"{bank}/policy.yaml:5:27: error: the environment has no 'ipp'; did you mean 'ip'?" in said.out
    assert f"{bank}/tests.yaml:1:10: error: 'section' is written as a list" in said.out
    assert said.out.endswith(f"{bank}: 2 problems\n")
    run = tidegate("policy", "check", bank, *options(bank), "--sarif").answer()["runs"]
    assert f"{bank}/policy.yaml" in str(run)
    assert (
        f"{bank}/policy.yaml:5:27: the environment has no 'ipp'"
        in tidegate("policy", "test", bank, *options(bank)).sentence()
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "FUNCTIONS = 3",
            "host.py: FUNCTIONS is missing or not a mapping; write FUNCTIONS = {'overload_id': function}",
        ),
        ("x = 1\ny = x / 0", "host.py:2: ZeroDivisionError: division by zero; correct it"),
        ("def f(:", "host.py:1: SyntaxError: invalid syntax"),
        ("raise SystemExit(0)", "host.py: it ended the program; a file of functions only defines them"),
        (None, "host.py: No such file or directory"),
    ],
)
def test_functions_that_cannot_be_used_are_one_sentence(
    tidegate: Tidegate, bank: Path, text: str | None, sentence: str
) -> None:
    (bank / "host.py").unlink() if text is None else (bank / "host.py").write_text(text)
    assert f"{bank}/{sentence}" in tidegate("policy", "check", bank, *options(bank)).sentence()


def test_tests_that_are_not_there_and_functions_without_environment_are_one_sentence(
    tidegate: Tidegate, bank: Path, bundle: Path
) -> None:
    (bank / "tests.yaml").unlink()
    sentence = tidegate("policy", "test", bank, *options(bank)).sentence()
    assert sentence == f"{bank}/policy.yaml: there are no tests beside it; write tests.yaml"
    sentence = tidegate("policy", "test", bundle, "--functions", bank / "host.py").sentence()
    assert sentence == "--functions belongs to a policy of another host; give its --environment as well"


# --- watching --------------------------------------------------------------------------------------------------------


def test_a_watch_waits_between_two_looks_and_names_what_changed(bundle: Path) -> None:
    """Kills: a loop that looks again at once, a change during a run that is overlooked, half a file that is read."""
    rule, story = bundle / "order.yaml", bundle / "scenarios" / "a.yaml"
    story.parent.mkdir()
    happens: list[Callable[[], object]] = [
        lambda: None,
        lambda: rule.write_text(""),  # a look sees an empty file
        lambda: rule.write_text("name: half"),  # the next one that it is still being written
        lambda: rule.write_text("name: whole"),
        lambda: None,  # and the next that it is at rest
        lambda: rule.rename(story),
        lambda: None,
    ]
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        happens.pop(0)()

    changes = Looks([bundle], wait).changes()
    assert next(changes) == ""
    (bundle / "bundle.yaml").write_text("name: changed while the tests ran")
    assert next(changes) == f"{bundle}/bundle.yaml"
    assert waited == [SETTLE_S]
    assert next(changes) == f"{rule}"
    assert waited == [SETTLE_S, LOOK_S, SETTLE_S, SETTLE_S, SETTLE_S]
    assert next(changes) == f"{rule} and 1 more"  # one went, another came
    assert waited[5:] == [LOOK_S, SETTLE_S]


def test_a_watch_is_not_for_machines(tidegate: Tidegate, bundle: Path) -> None:
    sentence = tidegate("policy", "test", bundle, "--watch", "--json").sentence()
    assert sentence == "--watch is for people and goes on; leave --json out"
