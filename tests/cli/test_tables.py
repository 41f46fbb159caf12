"""Tables on a narrow terminal: a line to a row, expendable columns left out by name, words cut short, never figures."""

from __future__ import annotations

import pytest

from controlplane.cli import console
from controlplane.cli.console import print_table

COLUMNS = ["job", "name", "user", "GPUs>"]
ROWS = [["j1", "a-name-of-some-length", "somebody", "1,024"], ["j22", "short", "me", "8"]]


def lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    monkeypatch.setattr(console, "WIDE", width)
    print_table(COLUMNS, ROWS, expendable=("user",))
    return capsys.readouterr().out.splitlines()


def test_what_fits_is_shown_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = lines(capsys, monkeypatch, 43)
    assert len(shown) == 3
    assert shown[1].split() == ROWS[0]


def test_the_expendable_goes_first_and_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = lines(capsys, monkeypatch, 42)
    assert shown[1].split() == ["j1", "a-name-of-some-length", "1,024"]
    assert shown[3:] == ["(left out for want of room: user; --json has all)"]


def test_words_are_cut_then_and_figures_never(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = lines(capsys, monkeypatch, 25)
    assert shown[1].split() == ["j1", "a-name-of-so…", "1,024"]
    assert max(map(len, shown[:3])) <= 25
