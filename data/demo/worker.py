"""A rendering process: reads jobs as JSON on standard input, writes a line per finished video."""

import json
import sys
from pathlib import Path

from byov.data.demo.film import draw_film, encode
from byov.data.demo.pool import RenderJob


def main() -> None:
    for job in (RenderJob(*fields) for fields in json.load(sys.stdin)):
        encode(draw_film(job.seed, job.film_index, job.view, job.performance), Path(job.path))
        print(job.film_index, flush=True)


if __name__ == "__main__":
    main()
