"""Whether the scenarios of a bundle can be read, without playing them: the part of ``policy check``."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.policy.problems import Problem, snippet
from controlplane.policy.testing import scenario_files
from controlplane.policy.yamltext import normalise
from controlplane.simulate.scenarios.story import Story, read_story
from controlplane.simulate.scenarios.words import BadStory

NO_OTHER_BUNDLE = "a scenario of a bundle is played under that bundle; leave 'policy' out"


def scenario_problems(files: Mapping[str, str]) -> list[Problem]:
    """What is wrong with the form of the scenarios of a bundle; the first of each."""
    problems: list[Problem] = []
    for path in scenario_files(files):
        try:
            refuse_other_bundles(read_story(path, files[path]))
        except BadStory as bad:
            line, column = bad.place or (1, 1)
            shown = snippet(normalise(files[path]), line, column)
            problems.append(Problem(path, line, column, bad.message, shown, code="scenario"))
    return problems


def refuse_other_bundles(story: Story) -> None:
    """A scenario of a bundle says what that bundle does. Raises :class:`BadStory`."""
    if story.policy.name:
        raise BadStory(NO_OTHER_BUNDLE, story.places.get("policy"))
