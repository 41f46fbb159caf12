"""Changes of policy in a world, as the events that an author would append."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from controlplane.domain.events import Event, PolicyActivated, PolicyShadowed, ShadowEnded
from controlplane.policy.bundle import Bundle, read_bundle_folder
from controlplane.policy.check import checked
from controlplane.policy.problems import BundleRefused
from controlplane.simulate.world import World, WorldFault, data_path, place_in


class Change(NamedTuple):
    """What an author appends at an instant of the world."""

    at_ms: int
    event: Event
    author: str


def activation(bundle: Bundle) -> PolicyActivated:
    """The event that makes a bundle the active one."""
    return PolicyActivated(name=bundle.name, digest=bundle.digest, files=bundle.files)


def changes_of(world: World, world_file: Path) -> list[Change]:
    """The changes of a world in order of time. Raises :class:`WorldFault` for a bundle that would be refused."""
    changes: list[Change] = []
    for number, change in enumerate(world.policy_changes):
        event: Event
        if change.activate is not None:
            event = activation(_bundle(world_file, change.activate, number, "activate"))
        elif change.shadow is not None:
            bundle = _bundle(world_file, change.shadow, number, "shadow")
            event = PolicyShadowed(name=bundle.name, digest=bundle.digest, files=bundle.files)
        else:
            event = ShadowEnded()
        changes.append(Change(change.at_ms, event, change.author))
    return sorted(changes, key=lambda change: change.at_ms)


def _bundle(world_file: Path, folder: str, number: int, word: str) -> Bundle:
    path = data_path(folder, world_file)
    place = place_in(world_file, ("policy_changes", number, word))
    if not path.is_dir():
        raise WorldFault(f"{place}: there is no policy folder {str(path)!r}; correct the path")
    try:
        return checked(read_bundle_folder(path))
    except BundleRefused as error:
        first, more = error.problems[0], len(error.problems) - 1
        rest = f" (and {more} more: `tidegate policy check` lists them)" if more else ""
        where = f"{path}/{first.file}:{first.line}:{first.column}"
        raise WorldFault(f"{place}: {where}: {first.message}{rest}") from error
