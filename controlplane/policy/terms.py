"""The map that the point ``gang`` answers with, as the terms that it stands for."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from controlplane.domain.workloads import GangTerms


class WrongTerms(Exception):
    """A term cannot have the value that it was given; the text says which and why."""


def terms_of(value: Mapping[object, object]) -> GangTerms:
    """The terms. Raises :class:`WrongTerms`."""
    try:
        return GangTerms.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        said = first["msg"].removeprefix("Input ").replace("should", "it should")
        raise WrongTerms(f"{first['loc'][0]} is {first['input']!r}, and {said}") from error
