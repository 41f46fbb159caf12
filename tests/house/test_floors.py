"""The import contracts say nothing about a room that they do not name, so every room must be named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

PURE = {"domain", "scheduler"}


@pytest.fixture(scope="module")
def rooms(project_root: Path) -> set[str]:
    """The packages of controlplane."""
    return {path.parent.name for path in (project_root / "controlplane").glob("*/__init__.py")}


@pytest.fixture(scope="module")
def contracts(project_root: Path) -> dict[str, dict[str, list[str]]]:
    """The import contracts of pyproject.toml, by id."""
    settings = tomllib.loads((project_root / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["id"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}


def named(modules: list[str]) -> set[str]:
    return {module.removeprefix("controlplane.") for module in modules if module.startswith("controlplane.")}


def test_federation_is_kept_out_of_every_room_but_the_domain(
    rooms: set[str], contracts: dict[str, dict[str, list[str]]]
) -> None:
    assert named(contracts["federation-stands-alone"]["forbidden_modules"]) == rooms - {"domain"}


@pytest.mark.parametrize(
    ("contract", "home"), [("sql-lives-in-eventlog", "eventlog"), ("cel-lives-in-policy", "policy")]
)
def test_a_library_with_one_home_is_kept_out_of_every_other_room(
    contract: str, home: str, rooms: set[str], contracts: dict[str, dict[str, list[str]]]
) -> None:
    assert named(contracts[contract]["source_modules"]) == rooms - PURE - {home}


def test_the_pure_core_is_both_of_its_rooms(contracts: dict[str, dict[str, list[str]]]) -> None:
    assert named(contracts["pure-core"]["source_modules"]) == PURE
