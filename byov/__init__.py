"""Frame embeddings from unpaired ego and exo videos: Bootstrap Your Own Views, from a feature cache.

The rooms, each a sub-package: data, cache, extract, train, evaluate, apply, report, cli; see docs/architecture.md.
"""

import logging
from importlib.metadata import version

__version__ = version("byov")

# Libraries print nothing: who wants to read what they say adds a handler to the logger "byov".
logging.getLogger(__name__).addHandler(logging.NullHandler())
