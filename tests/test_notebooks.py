"""The notebooks run from start to end on the sample runs, and are stored without outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
NEEDS_TORCH = {"replay.ipynb"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_stored_without_outputs(path):
    """A notebook in the repository holds no outputs and no execution counts: its differences are those of its text."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:jupyter_client.*", "ignore::DeprecationWarning:zmq.*", "ignore::ResourceWarning"
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_runs(path, monkeypatch):
    """Every cell runs in a fresh kernel, and nothing is written to stderr."""
    pytest.importorskip("ipykernel")
    if path.name in NEEDS_TORCH:
        pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    said = [o.text for cell in notebook.cells for o in cell.get("outputs", []) if o.get("name") == "stderr"]
    assert said == []
