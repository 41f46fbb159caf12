"""Looking at files again and again: what has changed since the last look.

Plain `stat` calls, twice a second: no library, and it works on every file system, network mounts and containers
included, where notifications of the kernel do not arrive.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 0.5
"""Between two looks: quick for a person, and some hundred `stat` calls for a disk."""
SETTLE_S = 0.1
"""Between two looks once something has changed: what is still being written is waited for."""
Stamp = tuple[int, int]
_ENDINGS = (".yaml", ".yml", ".py")


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks at the YAML and Python files of some folders, and of the folders of some files."""

    paths: Sequence[Path]
    wait: Callable[[float], None] = time.sleep

    def changes(self) -> Iterator[str]:
        """Nothing at first; then, for every look that finds one, a file that changed, came or went. What changes
        between two calls is found by the second."""
        before = self._stamps()
        yield ""
        while True:
            now = self._settled(before)
            changed = sorted(path for path in {**before, **now} if before.get(path) != now.get(path))
            before = now
            if changed:
                yield f"{changed[0]} and {len(changed) - 1} more" if len(changed) > 1 else changed[0]
            else:
                self.wait(LOOK_S)

    def _settled(self, before: Mapping[str, Stamp]) -> dict[str, Stamp]:
        """The files as they are; if they are not as before, once two looks in a row find the same."""
        now = self._stamps()
        while now != before:
            self.wait(SETTLE_S)
            last, now = now, self._stamps()
            if now == last:
                break
        return now

    def _stamps(self) -> dict[str, Stamp]:
        """When each file was changed last, and its size."""
        stamps: dict[str, Stamp] = {}
        for path in self.paths:
            for where, folders, names in os.walk(path if path.is_dir() else path.parent):
                folders[:] = [name for name in folders if not name.startswith(".")]
                for name in names:
                    if not name.endswith(_ENDINGS):
                        continue
                    found = Path(where, name)
                    try:
                        status = found.stat()
                    except OSError:  # it has just gone
                        continue
                    stamps[str(found)] = (status.st_mtime_ns, status.st_size)
        return stamps
