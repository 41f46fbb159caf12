"""``tidegate policy``: what an author sees, and what a pipeline reads."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.cli.conftest import Tidegate
from tests.cli.worlds import POLICIES, part

SHIPPED = ("default", "examples/best-fit", "examples/random", "examples/strict-fifo")
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
    assert "expected [5], got [-5]" in said.out
    assert f"by {bundle}/order.yaml:5" in said.out
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
