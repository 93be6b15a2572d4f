"""Plug-ins: objects from other installed packages, found through entry points."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

LOGGER = logging.getLogger(__name__)
PROBLEMS: list[str] = []  # one line per skipped plug-in

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Mapping from names to built-in objects and to plug-ins in an entry-point group.

    Plug-ins are loaded on first use, not on import, because they import this package themselves.
    So are built-in objects given as "module:name", which may be slow to import.
    Plug-ins that cannot be loaded, or for which `check(name, object)` raises, are skipped with a
    warning.
    """

    def __init__(
        self,
        group: str,
        built_in: Mapping[str, T | str],
        check: Callable[[str, Any], None] | None = None,
    ) -> None:
        self._group = group
        self._built_in = built_in
        self._check = check

    @cached_property
    def _all(self) -> dict[str, T]:
        objects: dict[str, T] = {
            name: EntryPoint(name, value, self._group).load() if isinstance(value, str) else value
            for name, value in self._built_in.items()
        }
        for entry in entry_points(group=self._group):
            try:
                if entry.name in objects:
                    raise ValueError("the name is already taken")
                plugin = entry.load()
                if self._check:
                    self._check(entry.name, plugin)
                objects[entry.name] = plugin
            # Importing a plug-in can raise anything. KeyboardInterrupt is not Ctrl-C: commands exit
            # on that at once.
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                package = f" of {entry.dist.name}" if entry.dist else ""
                reason = " ".join(str(error).split()) or type(error).__name__
                PROBLEMS.append(
                    f"skipped the plug-in {entry.name} = {entry.value} in {self._group}{package}: "
                    f"{reason}"
                )
                LOGGER.warning(PROBLEMS[-1])
        return objects

    def __getitem__(self, name: str) -> T:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
