"""What holds for every registered checkpoint format, on the file that its own test file writes (see ``cases.py``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.checkpoints.find import is_checkpoint  # noqa: E402
from postmortem.checkpoints.formats import FORMATS, format_of  # noqa: E402
from postmortem.checkpoints.formats.shared.dtypes import dtype_of  # noqa: E402
from postmortem.checkpoints.health import health  # noqa: E402
from tests.cases import cases  # noqa: E402

WRITTEN = pytest.mark.parametrize("case", cases(FORMATS, "writes"), ids=str)


def tensors() -> dict[str, Any]:
    """Small tensors of three types."""
    return {
        "w": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "b": torch.tensor([0.5, -1.0, 2.0, 4.0], dtype=torch.bfloat16),
        "count": torch.tensor([7, 2**40], dtype=torch.int64),
    }


def saved(case: Any, folder: Path, content: dict[str, Any]) -> Path:
    return Path(case.make(folder, content))


@pytest.mark.parametrize("kind", list(FORMATS), ids=lambda f: f.name)
def test_the_docstring_names_the_source(kind: Any) -> None:
    """Each format says what its files look like."""
    assert len((kind.__doc__ or "").split()) > 10


@WRITTEN
def test_its_own_format_claims_it(case: Any, tmp_path: Path) -> None:
    """The first format that claims the file is its own, and a scan takes it for a checkpoint."""
    path = saved(case, tmp_path, tensors())
    assert format_of(path) is case.of
    assert is_checkpoint(path)


@WRITTEN
def test_reading_gives_what_was_written(case: Any, tmp_path: Path) -> None:
    """Names, types and values of all tensors."""
    content = case.of.read(saved(case, tmp_path, tensors()), trust=False)
    assert set(content) == set(tensors())
    for name, tensor in tensors().items():
        assert content[name].dtype == tensor.dtype
        assert torch.equal(content[name], tensor)


@WRITTEN
def test_the_pieces_lie_where_the_bytes_are(case: Any, tmp_path: Path) -> None:
    """At the offset of each piece stand the bytes of its tensor."""
    found = case.of.pieces(saved(case, tmp_path, tensors()), trust=False)
    assert found.problems == []
    assert {p.name: (tuple(p.shape), p.dtype) for p in found.pieces} == {
        n: (tuple(t.shape), dtype_of(t.dtype)) for n, t in tensors().items()
    }
    for piece in found.pieces:
        held = piece.path.read_bytes()[piece.offset : piece.offset + piece.nbytes]
        assert held == bytes(tensors()[piece.name].view(torch.uint8).numpy())


@WRITTEN
def test_a_nan_is_found_in_its_tensor(case: Any, tmp_path: Path) -> None:
    """The health of the file names the tensor that holds it."""
    seen = health(saved(case, tmp_path, tensors() | {"w": torch.tensor([1.0, torch.nan])}))
    assert (seen.finite, [(t.name, t.nan) for t in seen.tensors if t.nan]) == (False, [("w", 1)])
    assert seen.problems == []


@WRITTEN
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95])
def test_a_cut_file_is_a_problem(case: Any, share: float, tmp_path: Path) -> None:
    """The largest file cut anywhere: no exception, the damage is reported."""
    path = saved(case, tmp_path, tensors() | {"w": torch.ones(4000)})
    largest = max((f for f in (path, *path.rglob("*")) if f.is_file()), key=lambda f: f.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: int(share * largest.stat().st_size)])
    assert health(path).problems
