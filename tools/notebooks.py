"""`make notebooks`: run docs/notebooks and save their outputs, so that they can be read without running them.

Widgets are omitted because they need a kernel; the static page below each widget shows the same content.
"""

from __future__ import annotations

import argparse
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDGET = "application/vnd.jupyter.widget-view+json"


def main() -> None:
    """Run each notebook in the root folder of the project."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    import nbformat  # installed with the extra docs
    from nbclient import NotebookClient

    for path in sorted(ROOT.glob("docs/notebooks/*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, resources={"metadata": {"path": str(ROOT)}}, store_widget_state=False).execute()
        notebook.metadata.pop("widgets", None)
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            if "outputs" in cell:
                cell.outputs = [one for one in cell.outputs if WIDGET not in one.get("data", {})]
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
