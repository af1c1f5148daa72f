"""The notebooks of examples/, executed; as a program it writes their outputs again.

    python tests/helpers/notebooks.py [NAME ...]

PyTorch is taken from .venv-torch, behind the packages of this environment.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "examples" / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
TORCH = [*map(str, ROOT.glob(".venv-torch/lib/python*/site-packages"))]


def executed(name, folder):
    """Return a notebook with the outputs of its cells, run in a copy of examples/.

    Args:
        name: of the notebook.
        folder: an empty one, for the copy and for what the cells write.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbclient
    import nbformat

    examples = shutil.copytree(ROOT / "examples", Path(folder) / "examples")
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        book,
        timeout=1800,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=[f"--IPKernelApp.exec_lines=import sys; sys.path += {TORCH}"],
        resources={"metadata": {"path": str(examples / "notebooks")}},
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    client.execute(env=environment)
    book.metadata.language_info = {"name": "python"}
    return book


def main(names):
    import nbformat

    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            book = executed(name, folder)
        nbformat.write(book, NOTEBOOKS / f"{name}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:] or NAMES)
