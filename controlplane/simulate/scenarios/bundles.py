"""The bundle that a story plays under: one that exists, with what the story changes of its parameters and rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import yaml

from controlplane.domain.events import PolicyActivated
from controlplane.policy.bundle import MANIFEST, Bundle, load_bundle
from controlplane.policy.documents import plain_value
from controlplane.policy.problems import BundleRefused
from controlplane.policy.vocabulary import BY_NAME
from controlplane.policy.yamltext import normalise, parse_yaml
from controlplane.simulate.scenarios.given import Plain, as_list, as_map
from controlplane.simulate.scenarios.story import Policy
from controlplane.simulate.scenarios.words import BadStory, milliseconds

REMEMBERED = 8
"""Bundles that stay compiled between stories."""
Bundles = Callable[[str], Mapping[str, str]]
"""The files of the bundle that a story calls by this name; by the empty name, of the one that is meant if it names
none. Raises :class:`BadStory`, or ``BundleRefused`` for one that is not there."""


def bundle_of(policy: Policy, bundles: Bundles) -> Bundle:
    """The bundle with other defaults of its parameters, and with other rules: decision point -> the expression that
    answers it, or a list of matches (``condition``, ``output``) in order. Raises :class:`BadStory`."""
    try:
        files = bundles(policy.name)
        changed = _changed(files, policy) if policy.params or policy.rules else files
        return _loaded(tuple(sorted(changed.items())))
    except BundleRefused as refused:
        first = refused.problems[0]
        raise BadStory(f"{first.file}:{first.line}:{first.column}: {first.message}") from refused


@lru_cache(maxsize=REMEMBERED)
def _loaded(files: tuple[tuple[str, str], ...]) -> Bundle:
    """The scenarios of one bundle are mostly played under the same text."""
    return load_bundle(dict(files))


def activation(bundle: Bundle) -> PolicyActivated:
    """What puts a bundle in force."""
    return PolicyActivated(name=bundle.name, digest=bundle.digest, files=bundle.files)


def _changed(files: Mapping[str, str], policy: Policy) -> dict[str, str]:
    root, problems = parse_yaml(MANIFEST, normalise(files.get(MANIFEST, "")))
    if root is None:
        raise BadStory(f"{MANIFEST}: {problems[0].message}")
    manifest = as_map(plain_value(root), MANIFEST)
    params, points = as_map(manifest.get("params")), as_map(manifest.get("points"))
    written = dict(files)
    for name, value in policy.params.items():
        if name not in params:
            raise BadStory(f"the policy has no parameter {name}; it has {', '.join(sorted(params)) or 'none'}")
        default = milliseconds(value) if name.endswith("_ms") else value
        params[name] = {**as_map(params[name]), "default": default}
    for point, answer in policy.rules.items():
        if point not in BY_NAME:
            raise BadStory(f"there is no decision point {point}; the points are {', '.join(BY_NAME)}")
        file = f"story-{point.replace('.', '-')}.yaml"
        written[file] = _rule(file, point, answer)
        points[point] = [file]
    manifest.update({"params": params, "points": points} if params else {"points": points})
    written[MANIFEST] = yaml.safe_dump(manifest, sort_keys=False)
    used = {MANIFEST, *(str(file) for listed in points.values() for file in as_list(listed))}
    return {path: text for path, text in written.items() if path in used}


def _rule(file: str, point: str, answer: object) -> str:
    match = answer if isinstance(answer, list) else [{"output": _expression(answer)}]
    rule: Plain = {"name": file.removesuffix(".yaml"), "description": "Of this story.", "point": point}
    return yaml.safe_dump({**rule, "rule": {"match": match}}, sort_keys=False)


def _expression(answer: object) -> str:
    """CEL of a value that YAML has read as something else than text."""
    return str(answer).lower() if isinstance(answer, bool) else str(answer)
