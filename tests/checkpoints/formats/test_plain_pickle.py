"""Saved states that are read without torch: the same as torch reads, and left to torch where in doubt."""

from __future__ import annotations

import argparse
import collections
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from postmortem.checkpoints.chunks import widened  # noqa: E402
from postmortem.checkpoints.formats.shared.dtypes import DTYPES, dtype_of  # noqa: E402
from postmortem.checkpoints.formats.shared.plain_pickle import NotPlain, PlainStorages  # noqa: E402
from postmortem.checkpoints.formats.shared.storages import Storages  # noqa: E402
from postmortem.checkpoints.formats.shared.structure import _structure, pieces_of, structure_of_zip  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

TYPES = (*("float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool", "complex64"), "uint16")


def written(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def places(path: Path, storages: Any) -> list[tuple[Any, ...]]:
    """Name, shape, type and place of each tensor, as read with these storages."""
    with path.open("rb") as f:
        content, offsets, unverified = _structure(f, 0, path.stat().st_size, storages)
    held = pieces_of(path, content, offsets, unverified)
    assert not held.problems
    return [(p.name, p.shape, p.dtype, p.offset, p.nbytes) for p in held.pieces]


def training() -> dict[str, Any]:
    """What a training script saves: weights, an optimizer, settings, states of random generators."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(2, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 7,
        "best": np.float64(0.5),
        "settings": argparse.Namespace(lr=1e-3, dtype=torch.float16, device=torch.device("cuda:0")),
        "random": {"torch": torch.get_rng_state(), "numpy": np.random.get_state()},
        "losses": collections.defaultdict(list),
        "shape": torch.Size([1, 2]),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "half": torch.ones(3).half(),
        "few": torch.ones(3).to(torch.uint16),  # a type without a storage class of its own
    }


def test_what_training_scripts_save(tmp_path: Path) -> None:
    """Names, shapes, types and places are those that torch gives."""
    path = written(tmp_path / "a.pt", training())
    assert places(path, PlainStorages()) == places(path, Storages())


VIEWS: tuple[Any, ...] = (
    lambda t: t,
    lambda t: t.t(),
    lambda t: t[1:, :2],
    lambda t: t[:, ::2],
    lambda t: t[0:0],
    lambda t: t.expand(2, *t.shape),
)


@settings(max_examples=60, deadline=None)
@given(tensors=st.lists(st.tuples(st.sampled_from(TYPES), st.sampled_from(VIEWS)), max_size=4), tied=st.booleans())
def test_views_and_shared_storages(tensors: list[Any], tied: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any views of tensors of all types, some with several names."""
    held = {str(i): view(torch.ones(3, 4).to(getattr(torch, name))) for i, (name, view) in enumerate(tensors)}
    content = [held, dict(held)] if tied else held
    path = written(tmp_path_factory.mktemp("views") / "a.pt", content)
    assert places(path, PlainStorages()) == places(path, Storages())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("small") / "a.pt", {"w": torch.ones(3), "step": 7}).read_bytes()


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damage_that_is_accepted_is_accepted_by_torch(
    small: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One or two bytes changed, or the end cut: nothing is read that torch refuses or reads otherwise."""
    bad = bytearray(small)
    for _ in range(data.draw(st.integers(0, 2))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    path.write_bytes(bad[: data.draw(st.sampled_from([len(bad), len(bad) - 1, len(bad) // 2]))])
    try:
        seen = places(path, PlainStorages())
    except Exception:  # noqa: BLE001 - torch says what is wrong with it
        return
    assert seen == places(path, Storages())


class _Calls:
    def __reduce__(self) -> Any:
        return print, ("called",)


@pytest.mark.parametrize("content", [_Calls(), {"f": torch.nn.Linear(1, 1)}, {"e": ValueError("x")}])
def test_other_objects_are_left_to_torch(content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is called for them."""
    path = written(tmp_path / "a.pt", content)
    with pytest.raises(NotPlain):
        places(path, PlainStorages())
    with path.open("rb") as f, pytest.raises(Exception, match=r"Unsupported|Weights only"):
        structure_of_zip(f, 0, path.stat().st_size)
    assert capsys.readouterr().out == ""


def test_a_pickle_cannot_change_a_class(tmp_path: Path) -> None:
    """BUILD on a class would set its attributes for the whole process."""
    import io

    from postmortem.checkpoints.formats.shared.restricted_pickle import Pickle

    changes = b"\x80\x02cargparse\nNamespace\nN}X\x01\x00\x00\x00aK\x01s\x86b."
    assert isinstance(Pickle(changes), io.BytesIO)
    with pytest.raises(NotPlain, match="class"):
        PlainStorages().unpickle(Pickle(changes))
    assert not hasattr(argparse.Namespace, "a")


def test_health_of_usual_files_needs_no_torch(tmp_path: Path) -> None:
    """Neither for a file of torch.save nor for safetensors: importing torch takes seconds."""
    from safetensors.torch import save_file

    written(tmp_path / "a.pt", training() | {"bad": torch.tensor([1.0, torch.nan])})
    save_file({"w": torch.tensor([1.0, torch.inf]).bfloat16()}, tmp_path / "b.safetensors")
    code = (
        "import sys; from pathlib import Path; from postmortem.checkpoints.health import health\n"
        "for name in sys.argv[1:]: print([t.name for t in health(Path(name)).bad])\n"
        "print('torch' in sys.modules)"
    )
    files = [str(tmp_path / "a.pt"), str(tmp_path / "b.safetensors")]
    ran = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["['bad']", "['w']", "False"]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("finite", [True, False])
def test_all_numbers_of_16_bits(name: str, finite: bool) -> None:
    """Each of the 65,536 is widened as torch does."""
    numbers = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(getattr(torch, name))
    numbers = numbers[torch.isfinite(numbers.float())] if finite else numbers
    data = numbers.view(torch.uint8).numpy()
    mine = widened(data, DTYPES[name], np.empty(len(data) // 2, np.float32))
    np.testing.assert_array_equal(mine, numbers.float().numpy())


@pytest.mark.parametrize("name", [*TYPES, "float8_e4m3fn", "float8_e5m2", "complex128", "complex32", "int32", "uint64"])
def test_types_are_those_of_torch(name: str) -> None:
    """Size, and whether a number can be NaN."""
    theirs = getattr(torch, name)
    mine = dtype_of(theirs)
    kind = "complex" if theirs.is_complex else "float" if theirs.is_floating_point else "whole"
    assert (mine.itemsize, mine.kind, mine.real.itemsize) == (theirs.itemsize, kind, theirs.to_real().itemsize)
