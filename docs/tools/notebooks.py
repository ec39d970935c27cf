"""Run the notebooks in docs/notebooks and keep what they print and draw: `python docs/tools/notebooks.py`."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with the output of a run just made; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, record_timing=False, resources={"metadata": {"path": str(path.parent)}}
    )
    return client.execute()


def main() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = executed(path)
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                output.get("metadata", {}).clear()
        nbformat.write(notebook, path)
        print(path.name, file=sys.stderr)


if __name__ == "__main__":
    main()
