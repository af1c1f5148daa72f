"""The notebooks of examples/ run, and show what they print."""

import json

import notebooks
import pytest

MOST = 300_000  # bytes of a notebook, outputs included


def cells(book):
    return [x for x in book["cells"] if x["cell_type"] == "code"]


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_notebooks_are_committed_with_their_outputs_and_are_small(name):
    path = notebooks.NOTEBOOKS / f"{name}.ipynb"
    assert path.stat().st_size < MOST
    found = cells(json.loads(path.read_text(encoding="utf-8")))
    counts = [x["execution_count"] for x in found]
    assert counts == list(range(1, len(found) + 1))
    outputs = [y for x in found for y in x["outputs"]]
    assert outputs
    assert not [x for x in outputs if x["output_type"] == "error"]
    # Nothing of the machine that ran it.
    assert "/home/" not in path.read_text(encoding="utf-8")
    assert "/tmp/" not in path.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_notebooks_run(name, tmp_path):
    if name == "into_torch" and not notebooks.TORCH:
        pytest.skip("make test-slow makes .venv-torch")
    book = notebooks.executed(name, tmp_path)
    assert all(x["execution_count"] for x in cells(book))
