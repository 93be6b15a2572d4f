"""What a sweep asks of the machines of a Ray cluster: what they are, and to do a piece of work.

Imported by workers before they know where to look for modules (see driver_path).
"""

import pickle
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from byov.cluster.driver_path import forget_path
from byov.cluster.worker_report import SharedFiles, WorkerReport

if TYPE_CHECKING:
    from byov.cluster.worker_process import Answer

# Of these the last bits of a run can depend.
PACKAGES = ("byov-egoexo", "torch", "numpy", "scikit-learn", "h5py")


def machine_report(shared: SharedFiles, unwanted_path: str | None) -> WorkerReport:
    forget_path(unwanted_path)
    return WorkerReport(platform.node(), versions(), shared.unseen())


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {package: version(package) for package in PACKAGES}


def do_work(work: bytes, marker: Path, unwanted_path: str | None) -> "Answer":
    """work: a pickled Work. It is told to stop once the marker is gone."""
    forget_path(unwanted_path)
    from byov.cluster.shared_marker import UntilGone
    from byov.cluster.worker_process import answer_to

    return answer_to(pickle.loads(work), UntilGone(marker))
