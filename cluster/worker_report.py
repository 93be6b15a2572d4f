"""What a worker or a machine of a cluster is, and what it must see; those that differ are not mixed.

Imported by workers before they know where to look for modules (see driver_path).
"""

from dataclasses import dataclass
from pathlib import Path

from byov.errors import ClusterError


@dataclass(frozen=True)
class WorkerReport:
    machine: str
    properties: dict[str, str]  # versions, and what else must be the same
    problem: str = ""  # why it cannot work

    def difference(self, other: "WorkerReport") -> str:
        """ "torch is 2.8 on a, 2.7 on b", "" if they are alike."""
        for name, ours in self.properties.items():
            theirs = other.properties.get(name)
            if ours != theirs:
                return f"{name} is {ours} on {self.machine}, {theirs} on {other.machine}"
        return ""

    def refuse_unlike(self, *others: "WorkerReport") -> None:
        """Raise ClusterError if this one cannot work, or is not as the others are."""
        if self.problem:
            raise ClusterError(f"the worker on {self.machine} cannot work: {self.problem}")
        for other in others:
            difference = other.difference(self)
            if difference:
                raise ClusterError(f"{difference}; workers must be alike, install the same versions on all machines")


@dataclass(frozen=True)
class SharedFiles:
    """Files of the driver's that must be seen from where the work is done."""

    marker: Path  # that the driver has just made, where results will be
    files: tuple[tuple[Path, int], ...]  # others, and their bytes

    def unseen(self) -> str:
        """What of them is not here; "" if all is."""
        if not self.marker.is_file():
            return f"the folder {self.marker.parent} is not the same there"
        for path, size in self.files:
            if not path.is_file():
                return f"{path} is not there"
            if path.stat().st_size != size:
                return f"{path} is another file there"
        return ""
