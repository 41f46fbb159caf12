"""Bundles: digests, folders, and what is refused before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.policy.bundle import load_bundle, read_bundle_folder
from controlplane.policy.check import check
from controlplane.policy.problems import BundleRefused
from tests.policy.bundles import HOME_CLUSTER, ROLE, SHIPPED, node, one_rule, shipped

RULE = "match:\n  - output: '1'"


def test_the_digest_follows_rules_and_not_tests_or_line_ends() -> None:
    files = one_rule("scoring", RULE)
    digest = load_bundle(files).digest
    assert load_bundle({**files, "rule.tests.yaml": "description: nothing yet\n"}).digest == digest
    assert load_bundle({path: text.replace("\n", "\r\n") for path, text in files.items()}).digest == digest
    assert load_bundle(dict(reversed(files.items()))).digest == digest
    assert load_bundle({**files, "rule.yaml": files["rule.yaml"].replace("'1'", "'2'")}).digest != digest


@pytest.mark.parametrize("name", SHIPPED)
def test_what_an_activation_carries_loads_to_the_same_digest(name: str) -> None:
    bundle = load_bundle(shipped(name))
    again = load_bundle(bundle.files)
    assert again.digest == bundle.digest
    assert not [path for path in bundle.files if "tests" in path]


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(BundleRefused) as refused:
        read_bundle_folder(folder)
    return str(refused.value)


def test_a_folder_is_read_by_path_inside_it(tmp_path: Path) -> None:
    files = {**one_rule("scoring", RULE), "sub/more.yaml": "name: more\n"}
    write(tmp_path, {**files, "README.md": "words", ".hidden/x.yaml": "a: b"})
    assert read_bundle_folder(tmp_path) == dict(sorted(files.items()))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(tmp_path / "absent")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "bundle", tmp_path / "outside"
    write(inside, one_rule("scoring", RULE))
    write(outside, {"secret.yaml": "name: secret\n"})
    (inside / "file.yaml").symlink_to(outside / "secret.yaml")
    (inside / "folder").symlink_to(outside)
    (inside / "loop.yaml").symlink_to(inside / "loop.yaml")
    said = refusal(inside)
    assert "file.yaml:1:1: error: the link leads out of the bundle" in said
    assert "folder:1:1: error: the link leads out of the bundle" in said
    assert "loop.yaml:1:1: error: the link leads nowhere" in said


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    write(tmp_path, {"a.yaml": "name: a\n"})
    (tmp_path / "b.yaml").symlink_to("a.yaml")
    assert read_bundle_folder(tmp_path)["b.yaml"] == "name: a\n"


def test_a_file_that_is_not_text_or_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    (tmp_path / "large.yaml").write_text("x" * 300_000)
    said = refusal(tmp_path)
    assert "latin.yaml:1:1: error: the file is not UTF-8 text (byte 10)" in said
    assert "large.yaml:1:1: error: the file is larger than 256 KiB" in said


HOSTILE = {
    "an alias": ("a: &x [1]\nb: *x\n", (1, 4), "anchors and aliases"),
    "a billion laughs": ("a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n", (1, 4), "anchors and aliases"),
    "a tag": ("a: !!python/object:os.system x\n", (1, 4), "tags are not used"),
    "a key twice": ("name: a\nname: b\n", (2, 1), "the key 'name' is here twice (first in line 1)"),
    "two documents": ("name: a\n---\nname: b\n", (2, 1), "one document"),
    "a broken quote": ("name: 'a\n", (2, 1), "not valid YAML"),
    "NUL": ("name: a\0b\n", (1, 8), "the control character U+0000"),
    "deep nesting": ("a: " + "[" * 70 + "]" * 70, (1, 67), "nested more than 64 deep"),
    "many parts": ("[" + "1," * 60_000 + "1]", (1, 1), "more than 50,000 parts"),
    "nothing": ("", (1, 1), "the file is empty"),
    "an unclosed brace": ("{0", (1, 3), "not valid YAML"),
    "a list": ("- a\n", (1, 1), "a bundle is written as keys and values"),
    "a very large file": ("#" * 300_000, (1, 1), "larger than 256 KiB"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_with_a_sentence(name: str) -> None:
    text, place, sentence = HOSTILE[name]
    found = check({"bundle.yaml": text})
    assert sentence in found[0].message
    if name != "many parts":
        assert (found[0].line, found[0].column) == place


@pytest.mark.parametrize("path", ["../up.yaml", "/etc/x.yaml", "a\nb.yaml", "a\\b.yaml"])
def test_a_path_out_of_the_bundle_is_refused(path: str) -> None:
    assert "not a path inside the bundle" in check({**one_rule("scoring", RULE), path: "x: y"})[0].message


def test_text_that_cannot_be_written_as_utf8_is_refused() -> None:
    assert "not UTF-8" in check({"bundle.yaml": "name: '\udc80'\n"})[0].message


PARAMS = """
a: {type: int, default: 3, unit: ms, description: how long}
b: {type: string, default: 7}
c: {type: bool, default: true}
d: {type: double, default: 1}
e: {type: "list<string>", default: [x, "1"]}
f: {type: "list<int>", default: [1, 2]}
"""


def test_parameters_have_types_and_rules_read_them() -> None:
    expression = "params.c && params.d > 0.5 && params.e[1] == '1' ? params.a + params.f[1] + int(params.b) : 0"
    rule = f"match:\n  - output: |\n      {expression}"
    rules = load_bundle(one_rule("scoring", rule, PARAMS)).rules()
    assert rules.scoring(ROLE, HOME_CLUSTER, node(), node(), None).value == 12


@pytest.mark.parametrize(
    ("param", "sentence"),
    [
        ("a: {type: int, default: 1.5}", "the default of 'a' is not a int"),
        ("a: {type: int, default: true}", "the default of 'a' is not a int"),
        ("a: {type: int, default: 9223372036854775808}", "the default of 'a' is not a int"),
        ("a: {type: bool, default: 1}", "the default of 'a' is not a bool"),
        ("a: {type: 'list<int>', default: [x]}", "the default of 'a' is not a list<int>"),
        ("a: {type: float, default: 1}", "'float' is not a type of parameters"),
        ("a: {type: int}", "needs a 'type' and a 'default'"),
        ("a b: {type: int, default: 1}", "'a b' is not a name"),
    ],
)
def test_a_parameter_that_is_not_what_it_says(param: str, sentence: str) -> None:
    found = check(one_rule("scoring", RULE, param))
    assert sentence in found[0].message
    assert found[0].file == "bundle.yaml"
