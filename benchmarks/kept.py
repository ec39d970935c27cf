"""What `--keep` does in every benchmark: its numbers become rows of a table in results/, and documents say them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "results"))
from measured import keep, origin
from runs import keep as keep_rows

__all__ = ["keep", "keep_rows", "origin"]
