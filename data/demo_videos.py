"""Reader of the demo dataset, whose videos ship with the package."""

import shutil
import tempfile
from pathlib import Path

from byov.data.dataset import Dataset
from byov.data.own_videos import read_own_videos
from byov.data.reader import DatasetReader
from byov.progress import NO_PROGRESS, Progress


class Demo(DatasetReader):
    """Smaller version of metaworld-door-open, copied into the folder if it does not exist."""

    name = "demo"
    is_created = True

    def read(self, folder: Path, _progress: Progress = NO_PROGRESS) -> Dataset:
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                dir=folder.parent, prefix=f".{folder.name}-"
            ) as scratch:
                videos = Path(__file__).with_name("demo")
                copy = shutil.copytree(videos, Path(scratch) / folder.name)
                try:
                    copy.rename(folder)
                except OSError:
                    if not folder.is_dir():  # another process may have copied it concurrently
                        raise
        return read_own_videos(self.name, folder / "videos.csv")
