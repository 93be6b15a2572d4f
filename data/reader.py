"""Interface of dataset readers."""

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from pydantic import AfterValidator

from byov.data.dataset import Dataset
from byov.progress import NO_PROGRESS, Progress
from byov.records import SPLITS, Record


def _check_fractions(split: tuple[float, ...]) -> tuple[float, ...]:
    if len(split) != len(SPLITS) or min(split) < 0 or not split[0] or abs(sum(split) - 1) > 1e-6:
        raise ValueError(
            f"split {split}: expected fractions of train, val and test, such as 0.6,0.2,0.2"
        )
    return split


Fractions = Annotated[tuple[float, ...], AfterValidator(_check_fractions)]


class Choice(NamedTuple):
    """Value of an option of a reader, and how much data it selects."""

    option: str
    name: str
    clips: int
    hours: float


class DatasetReader(Record):
    """Reader of the datasets in one format. Its fields are the options of the format.

    Other packages add readers by registering subclasses in the "byov.datasets" entry-point group.
    Fields of type `str`, `int`, `float`, `bool` and `tuple[float, ...]`, each optional, with a
    default and a description, become options of byov-extract.
    """

    name: ClassVar[str]  # --dataset NAME, or --NAME FOLDER if `takes_folder` is set
    summary: ClassVar[str] = ""  # help text of --NAME
    takes_folder: ClassVar[bool] = False  # reads any folder rather than DATASETS_DIR/NAME
    is_created: ClassVar[bool] = False  # `read` creates the folder if it is missing
    download: ClassVar[str] = ""  # where to download the dataset

    def choices(self, _folder: Path) -> list[Choice]:
        """List what the reader's options can select; empty if nothing has to be chosen."""
        return []

    @abstractmethod
    def read(self, folder: Path, progress: Progress = NO_PROGRESS) -> Dataset:
        """Read the videos and annotations in a folder.

        Raises:
            DatasetError: If the folder does not contain such a dataset, or an option is invalid.
        """
