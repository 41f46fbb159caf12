"""``policy diff``: what a person, a script and a browser are told, and what is refused."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import cast

import pytest

from tests.cli.conftest import Said, Tidegate
from tests.cli.worlds import POLICIES

Plain = dict[str, object]
KEYS = {
    "ok", "position", "digest", "since", "from_ms", "end_ms", "candidate", "policies", "exact", "simulated",
    "first_change", "compared", "changed", "changes", "by_rule", "courses", "jobs", "curves", "notes", "fail_if", "log",
    "against", "wall_s",
}  # fmt: skip
"""As docs/policy-diff.md lists them."""


@pytest.fixture(scope="session")
def diffed(tidegate: Tidegate, finished_day: Path) -> Said:
    """The small world's day against strict-fifo, as JSON."""
    return tidegate(
        "policy", "diff", "--log", finished_day, "--against", POLICIES / "examples" / "strict-fifo", "--json"
    )


def test_a_bundle_against_itself(tidegate: Tidegate, finished_day: Path) -> None:
    said = tidegate("policy", "diff", "--log", finished_day, "--against", POLICIES / "default")
    assert (said.code, said.err) == (0, "")
    assert "Nothing changes: the candidate decides what the log says, to its end." in said.out
    answer = tidegate("policy", "diff", "--log", finished_day, "--against", POLICIES / "default", "--json").answer()
    assert (answer["ok"], answer["changed"], answer["first_change"]) == (True, 0, None)
    assert cast("Plain", answer["exact"])["whole"] is True


def test_the_answer_is_one_object_with_the_documented_keys(diffed: Said, project_root: Path) -> None:
    answer = diffed.answer()
    assert set(answer) == KEYS
    page = (project_root / "docs" / "policy-diff.md").read_text(encoding="utf-8")
    assert [key for key in sorted(KEYS) if f"`{key}`" not in page] == []
    courses = cast("dict[str, Plain]", answer["courses"])
    assert [key for key in courses["recorded"] if f"`{key}`" not in page] == []
    assert courses["recorded"].keys() == courses["candidate"].keys()


def test_every_figure_of_a_threshold_is_documented(tidegate: Tidegate, project_root: Path) -> None:
    from controlplane.audit.thresholds import FIGURES

    page = (project_root / "docs" / "policy-diff.md").read_text(encoding="utf-8")
    told = tidegate("policy", "diff", "--help").out
    assert [name for name in FIGURES if f"`{name}`" not in page] == []
    assert [name for name in FIGURES if name not in told] == []


def test_it_is_told_to_a_person(tidegate: Tidegate, finished_day: Path, diffed: Said) -> None:
    said = tidegate("policy", "diff", "--log", finished_day, "--against", POLICIES / "examples" / "strict-fifo")
    assert (said.code, said.err) == (0, "")
    answer = diffed.answer()
    first = cast("Plain", answer["first_change"])
    assert f"(position {first['position']:,})" in said.out
    assert f"Changed      {answer['changed']:,} of {answer['compared']:,} decisions" in said.out
    because = cast("list[Plain]", first["because"])
    assert because
    assert f"Because of {because[0]['point']}: " in said.out
    for queue in ("research", "product", "(all)"):
        assert re.search(rf"^{re.escape(queue)} +\d", said.out, re.MULTILINE), queue
    assert "loses most" in said.out


def test_an_exported_file_gives_the_same_answer(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path, diffed: Said
) -> None:
    file = tmp_path / "day.jsonl.gz"
    assert tidegate("log", "export", file, "--log", finished_day).code == 0
    again = tidegate("policy", "diff", "--log", file, "--against", POLICIES / "examples" / "strict-fifo", "--json")
    answers = [said.answer() for said in (diffed, again)]
    for answer in answers:
        del answer["wall_s"], answer["log"]
    assert answers[0] == answers[1]


def test_the_log_is_as_it_was(tidegate: Tidegate, day: Path) -> None:
    before = day.read_bytes()
    assert tidegate("policy", "diff", "--log", day, "--against", POLICIES / "examples" / "strict-fifo").code == 0
    assert day.read_bytes() == before


# --- thresholds -------------------------------------------------------------------------------------------------------


def test_a_threshold_that_holds_is_told_and_fails(tidegate: Tidegate, finished_day: Path) -> None:
    words = ("policy", "diff", "--log", finished_day, "--against", POLICIES / "examples" / "strict-fifo")
    said = tidegate(*words, "--fail-if", "changed_decisions>0", "--fail-if", "money_increase>$1000000")
    assert (said.code, said.err) == (1, "")
    assert re.search(r"^FAILS +changed_decisions>0 holds: \d+ of \d+ decisions differ$", said.out, re.MULTILINE)
    assert re.search(r"^passes +money_increase>\$1000000 does not hold: ", said.out, re.MULTILINE)
    said = tidegate(*words, "--fail-if", "changed_decisions>0", "--json")
    assert said.code == 1
    answer = said.answer()
    assert answer["ok"] is False
    assert [verdict["holds"] for verdict in cast("list[Plain]", answer["fail_if"])] == [True]
    assert tidegate(*words, "--fail-if", "money_increase>$1000000").code == 0


# --- since ------------------------------------------------------------------------------------------------------------


def test_since_takes_a_position_and_a_time(tidegate: Tidegate, finished_day: Path) -> None:
    words = ("policy", "diff", "--log", finished_day, "--against", POLICIES / "examples" / "strict-fifo", "--json")
    by_time = tidegate(*words, "--since", "00:05:00").answer()
    assert cast("int", by_time["from_ms"]) >= 300_000
    by_position = tidegate(*words, "--since", str(cast("int", by_time["since"]) + 1)).answer()
    for answer in (by_time, by_position):
        del answer["wall_s"]
    assert by_position == by_time
    whole, first = (tidegate(*words, *more).answer() for more in ((), ("--since", "1")))
    assert whole["since"] == first["since"]


# --- the page ---------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "line", "rect", "path", "circle"):
            self.open.append(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href", "data")]
        self.loads += [f"{name}={value}" for name, value in attrs if "url(" in (value or "")]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone(tidegate: Tidegate, finished_day: Path, tmp_path: Path) -> None:
    file = tmp_path / "diff.html"
    words = ("policy", "diff", "--log", finished_day, "--against", POLICIES / "examples" / "strict-fifo")
    said = tidegate(*words, "--html", file, "--fail-if", "changed_decisions>0")
    assert said.code == 1
    assert f"Page         {file}" in said.out
    assert [path.name for path in tmp_path.iterdir()] == ["diff.html"]
    page = Page()
    page.feed(file.read_text(encoding="utf-8"))
    assert page.open == []
    assert page.loads == []
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(page.tags)
    assert page.tags.count("svg") >= 5
    for words_ in ("The first change", "Jobs that wait", "Mean wait by queue", "simulated from here", "research, log"):
        assert words_ in page.text
    assert "changed_decisions>0 holds" in page.text


def test_the_page_of_no_change_says_so(tidegate: Tidegate, finished_day: Path, tmp_path: Path) -> None:
    file = tmp_path / "diff.html"
    assert (
        tidegate("policy", "diff", "--log", finished_day, "--against", POLICIES / "default", "--html", file).code == 0
    )
    assert "Nothing changes" in file.read_text(encoding="utf-8")


def test_what_a_bundle_says_is_not_markup(tidegate: Tidegate, finished_day: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(POLICIES / "default", tmp_path / "bundle"))
    (folder / "admission.yaml").write_text(
        "name: admission\npoint: admission\nrule:\n  match:\n"
        "    - condition: job.queue == 'product'\n      output: \"'<script>alert(1)</script>'\"\n",
        encoding="utf-8",
    )
    file = tmp_path / "diff.html"
    assert tidegate("policy", "diff", "--log", finished_day, "--against", folder, "--html", file).code == 0
    page = Page()
    page.feed(file.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--fail-if", "share_loss"], "is no threshold"),
        (["--fail-if", "wait_increase[nobody]>1s"], "no job of the log is of queue 'nobody' (it has nowhere, product"),
        (["--since", "99999"], "--since 99999: the log has positions 1 to"),
        (["--since", "soon"], "--since 'soon' is neither a position nor a time"),
        (["--since", "900d"], "the log has no cycle after position"),
        (["--html", "{tmp}"], "is a folder; name a file for the page"),
        (["--html", "{tmp}/nowhere/diff.html"], "there is no folder"),
        (["--against", "{tmp}"], "a bundle needs a file 'bundle.yaml'"),
        (["--against", "{tmp}/nowhere"], "there is no such folder of policies"),
        (["--log", "{tmp}/nowhere.db"], "nowhere.db"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    given = {"--log": str(finished_day), "--against": str(POLICIES / "examples" / "strict-fifo")}
    given.update(zip(words[::2], (word.format(tmp=tmp_path) for word in words[1::2]), strict=True))
    said = tidegate("policy", "diff", *(word for pair in given.items() for word in pair))
    assert sentence in said.sentence()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_log_is_told_with_code_1(tidegate: Tidegate, finished_day: Path, tmp_path: Path) -> None:
    file = tmp_path / "day.jsonl"
    assert tidegate("log", "export", file, "--log", finished_day).code == 0
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if "job_submitted" in line)
    file.write_text("".join([*lines[:at], *lines[at + 1 :]]), encoding="utf-8")
    said = tidegate("policy", "diff", "--log", file, "--against", POLICIES / "default")
    assert said.sentence(1).startswith("the log is damaged: position ")
