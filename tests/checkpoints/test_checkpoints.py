"""Checkpoints: read without running them, looked into piece by piece, put into a recipe's objects."""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import random
import sys
import tracemalloc
import types
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from click.testing import CliRunner  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from postmortem.checkpoints.content import read_saved  # noqa: E402
from postmortem.checkpoints.file_map import map_files, optimizer_count  # noqa: E402
from postmortem.checkpoints.health import health, inspect  # noqa: E402
from postmortem.cli.checkpoints import checkpoints  # noqa: E402
from postmortem.core.errors import PostmortemError, ReplayError, UnreadableCheckpoint  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402
from postmortem.replay.roll.random_state import find_rng  # noqa: E402
from postmortem.replay.roll.restore import load_saved  # noqa: E402
from postmortem.replay.step.runner import StepRunner  # noqa: E402

nn = torch.nn


class Config:
    """A class that a pickle would have to import."""


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("it_ran",)


def trained() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def content(**more: Any) -> dict[str, Any]:
    model, optimizer = trained()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, **more}


def write(folder: Path, kind: str) -> Path:
    """The same training saved in the format `kind`."""
    model, optimizer = trained()
    path = folder / f"{kind}.pt"
    if kind in ("zip", "legacy"):
        torch.save(content(), path, _use_new_zipfile_serialization=kind == "zip")
    elif kind == "lightning":
        path = folder / "epoch=1-step=7.ckpt"
        state = {f"model.{k}": v for k, v in model.state_dict().items()}
        torch.save(
            {
                "state_dict": state,
                "optimizer_states": [optimizer.state_dict()],
                "global_step": 7,
                "epoch": 1,
                "lr_schedulers": [],
            },
            path,
        )
    elif kind in ("transformers", "sharded", "sharded_bin"):
        path = folder / "checkpoint-7"
        path.mkdir()
        state = model.state_dict()
        if kind == "transformers":
            save_file(state, path / "model.safetensors")
        else:
            stem, ending = ("model", "safetensors") if kind == "sharded" else ("pytorch_model", "bin")
            names = {k: f"{stem}-0000{1 + k.startswith('2')}-of-00002.{ending}" for k in state}
            for name in set(names.values()):
                part = {k: v for k, v in state.items() if names[k] == name}
                save_file(part, path / name) if kind == "sharded" else torch.save(part, path / name)
            (path / f"{stem}.{ending}.index.json").write_text(json.dumps({"weight_map": names}))
        torch.save(optimizer.state_dict(), path / "optimizer.pt")
        (path / "trainer_state.json").write_text('{"global_step": 7}')
        torch.save(
            {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()},
            path / "rng_state.pth",
        )
    elif kind == "distributed":
        from torch.distributed import checkpoint

        path = folder / "step_7"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint.save(
                {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 7}, checkpoint_id=str(path)
            )
    return path


KINDS = ("zip", "legacy", "lightning", "transformers", "sharded", "sharded_bin", "distributed")


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_loaded(tmp_path: Path, kind: str) -> None:
    """Weights, optimizer state and step come back bit for bit from every format."""
    saved = read_saved(write(tmp_path, kind))
    assert saved.step == 7
    assert not saved.problems
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    account = load_saved(StepRunner(TrainStep(model, optimizer, None)), saved)
    want, want_optimizer = trained()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), want.parameters(), strict=True))
    assert optimizer.param_groups[0]["lr"] == 1e-2
    for p, q in zip(model.parameters(), want.parameters(), strict=True):
        assert torch.equal(optimizer.state[p]["exp_avg"], want_optimizer.state[q]["exp_avg"])
    assert len([line for line in account.fitted if line.startswith(("model: 4 of 4", "optimizer: from"))]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_health_of_every_format(tmp_path: Path, kind: str) -> None:
    """Norm and largest value of every tensor, and the step, without loading the file."""
    found = health(write(tmp_path, kind))
    assert (found.finite, found.step, found.problems) == (True, 7, [])
    weight = trained()[0][2].weight.detach()
    tensor = next(t for t in found.tensors if t.name.endswith("2.weight"))
    assert tensor.shape == (2, 6)
    assert tensor.norm == pytest.approx(float(weight.norm()), rel=1e-6)
    assert tensor.max_abs == float(weight.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.0, 0.999))
def test_cut_anywhere(tmp_path_factory: pytest.TempPathFactory, kind: str, share: float) -> None:
    """A file cut at any byte never raises anything but UnreadableCheckpoint, and its health is not called finite."""
    path = write(tmp_path_factory.mktemp("cut"), kind)
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix not in (".json", ".pth"))
    victim = files[int(share * len(files))]
    data = victim.read_bytes()
    victim.write_bytes(data[: int(len(data) * share)])
    found = health(path)
    assert found.finite is None
    assert victim.name in {Path(p.path).name for p in found.problems}
    try:
        said = [p.path for p in read_saved(path).problems]
    except UnreadableCheckpoint as error:
        said = [error.problem.path]
    assert said
    assert {Path(p).name for p in said} <= {victim.name, path.name}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), suffix=st.sampled_from([".pt", ".safetensors", ".ckpt"]), zipped=st.booleans())
def test_any_bytes(tmp_path: Path, data: bytes, suffix: str, zipped: bool) -> None:
    """Whatever a file holds, looking into it ends with a problem, not with an exception."""
    path = tmp_path / f"noise{suffix}"
    path.write_bytes((b"PK\x03\x04" if zipped else b"") + data)
    found = health(path)
    assert found.tensors or found.problems


def test_flipped_byte(tmp_path: Path) -> None:
    """A byte that changed inside a small torch file is told by its checksum."""
    path = write(tmp_path, "zip")
    data = bytearray(path.read_bytes())
    data[data.find(trained()[0][0].weight.detach().numpy().tobytes()) + 1] ^= 1
    path.write_bytes(data)
    assert health(path).finite is None
    assert "checksum of record" in health(path).problems[0].what


@pytest.mark.parametrize("sharded", [False, True], ids=["file", "distributed"])
def test_checksums_of_large_archives(tmp_path: Path, sharded: bool) -> None:
    """An archive above 64 MiB is compared on request only, and the output says so until it is."""
    from torch.distributed import checkpoint as distributed

    path = tmp_path / "model_7.pt"
    weights = {"w": torch.arange(17 * 2**20, dtype=torch.float32), "b": torch.ones(3)}
    if sharded:
        path = tmp_path / "step_7"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            distributed.save(weights, checkpoint_id=path, no_dist=True)
    else:
        torch.save(weights, path)
    assert health(path).finite
    assert health(path).unverified > 64 * 2**20
    said = CliRunner().invoke(checkpoints, [str(tmp_path), "--checksums"], standalone_mode=False)
    assert said.return_value == 0
    assert "compared" not in said.output
    with (next(path.glob("*.distcp")) if sharded else path).open("r+b") as f:
        f.seek(40 * 2**20)
        f.write(b"\x01")  # the weight stays finite
    assert health(path).finite
    said = CliRunner().invoke(checkpoints, [str(tmp_path)], standalone_mode=False)
    assert said.return_value == 0
    assert "were not compared" in said.output
    said = CliRunner().invoke(checkpoints, [str(tmp_path), "--checksums"], standalone_mode=False)
    assert said.return_value == 1
    assert "does not match" in said.output
    with pytest.raises(UnreadableCheckpoint, match="does not match"):
        read_saved(path)


def test_nonfinite_weights_and_what_is_meant(tmp_path: Path) -> None:
    """NaN and inf are counted by kind; a mask of 0 and -inf and the best metric so far are no damage."""
    state = content(mask=torch.full((3, 3), -torch.inf).triu(1), best_loss=torch.tensor(torch.inf))
    torch.save(state, tmp_path / "good.pt")
    assert health(tmp_path / "good.pt").finite is True
    state["model"]["0.weight"][0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    state["optimizer"]["state"][1]["exp_avg"] = torch.full((6,), torch.nan, dtype=torch.bfloat16)
    torch.save(state, tmp_path / "bad.pt")
    found = health(tmp_path / "bad.pt")
    assert found.finite is False
    weight, average = found.bad
    assert (weight.name, weight.nan, weight.posinf, weight.neginf) == ("model.0.weight", 1, 1, 1)
    assert (average.name, average.nonfinite, average.dtype) == ("optimizer.state.1.exp_avg", 6, "bfloat16")
    assert weight.max_abs <= 1.0


def test_change_against_the_one_before(tmp_path: Path) -> None:
    """The change of a tensor is relative to its norm in the checkpoint before."""
    torch.save({"a": torch.ones(4), "b": torch.ones(4)}, tmp_path / "1.pt")
    torch.save({"a": torch.ones(4), "b": 1.5 * torch.ones(4), "c": torch.ones(2)}, tmp_path / "2.pt")
    assert {t.name: t.change for t in health(tmp_path / "2.pt", tmp_path / "1.pt").tensors} == {
        "a": 0.0,
        "b": 0.5,
        "c": None,
    }


def test_unusual_tensors(tmp_path: Path) -> None:
    """Tied, strided, empty, complex, integer and half tensors, and overflow of the squares, are looked at correctly."""
    base = torch.arange(12.0).view(3, 4)
    state = {
        "w": base,
        "tied": base,
        "column": base[:, 1],
        "turned": base.t(),
        "empty": torch.empty(0, 3),
        "c": torch.tensor([3 + 4j]),
    }
    state |= {
        "int": torch.ones(3, dtype=torch.int64),
        "half": torch.full((5,), 6e4, dtype=torch.float16),
        "huge": torch.full((4,), 1e30),
    }
    torch.save({"model": state}, tmp_path / "x.pt")
    found = {t.name.removeprefix("model."): t for t in health(tmp_path / "x.pt").tensors}
    assert all(not t.nonfinite for t in found.values())
    assert found["tied"].norm == found["w"].norm == pytest.approx(float(base.norm()))
    assert found["turned"].norm == pytest.approx(float(base.norm()))
    assert (found["c"].norm, found["half"].max_abs) == (5.0, 60000.0)
    assert found["huge"].norm == pytest.approx(2e30, rel=1e-6)
    assert "int" not in found
    assert "empty" in found or map_files(tmp_path / "x.pt").pieces


EIGHT_BITS = [
    dtype for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz") if (dtype := getattr(torch, name, None))
]


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, *EIGHT_BITS],
)
def test_numbers_of_every_type(tmp_path: Path, dtype: torch.dtype, scale: float) -> None:
    """Norm, largest value and counts by kind over several chunks agree with torch in float64, whatever the type and scale."""  # noqa: E501
    torch.manual_seed(0)
    values = torch.randn(2_500_001) * (scale if dtype in (torch.float32, torch.float64, torch.bfloat16) else 1.0)
    values[::7] *= -0.0
    saved = torch.complex(values, -values).to(dtype) if dtype.is_complex else values.to(dtype)
    path = tmp_path / "x.pt"
    torch.save({"good": saved}, path)
    exact = (torch.view_as_real(saved) if dtype.is_complex else saved).double().flatten()
    (good,) = health(path).tensors
    assert good.norm == pytest.approx(float(exact.norm()), rel=1e-5)
    assert (good.max_abs, good.nonfinite) == (float(exact.abs().max()), 0)
    if dtype.is_complex:
        return
    spoilt = saved.float()
    spoilt[[5, 1_500_000, 2_500_000]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    spoilt = spoilt.to(dtype)
    torch.save({"bad": spoilt}, path)
    exact = spoilt.double()
    finite = exact[exact.isfinite()]
    (bad,) = health(path).tensors
    assert (bad.nan, bad.posinf, bad.neginf) == (
        int(exact.isnan().sum()),
        int(exact.isposinf().sum()),
        int(exact.isneginf().sum()),
    )
    assert bad.norm == pytest.approx(float(finite.norm()), rel=1e-5)
    assert bad.max_abs == float(finite.abs().max())


@pytest.mark.parametrize(
    "values", [[1e-45, -2e-45], [1e-20, 3e-20], [-0.0, 0.0], [3e38, -3e38], [-2.0], [1e-300, 1e-299], [1e300, -1e300]]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_norms_whose_squares_leave_the_range(tmp_path: Path, dtype: torch.dtype, values: list[float]) -> None:
    """Second moments of 1e-20 and weights of 1e38 have a norm, though their squares are zero or infinite in their type."""  # noqa: E501
    tensor = (
        torch.tensor(values, dtype=torch.float64).clamp(-3e38, 3e38).to(dtype)
        if dtype != torch.float64
        else torch.tensor(values, dtype=dtype)
    )
    torch.save({"w": tensor}, tmp_path / "x.pt")
    (seen,) = health(tmp_path / "x.pt").tensors
    assert seen.norm == pytest.approx(math.hypot(*tensor.tolist()), rel=1e-6)
    assert seen.max_abs == max(map(abs, tensor.tolist()))


@pytest.mark.parametrize("at", [1, 2, 3, 7, 8, 12, 36])
def test_tensors_at_odd_offsets(tmp_path: Path, at: int) -> None:
    """Where in a file a tensor begins, even between two of its numbers, changes nothing."""
    tensor = torch.randn(300_000)
    header = {"w": {"dtype": "F32", "shape": [300_000], "data_offsets": [0, 1_200_000]}}
    text = json.dumps(header)
    text += " " * ((at - 8 - len(text)) % 64)
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text.encode() + tensor.numpy().tobytes())
    (seen,) = health(tmp_path / "x.safetensors").tensors
    assert (seen.norm, seen.max_abs) == (
        pytest.approx(float(tensor.double().norm()), rel=1e-5),
        float(tensor.abs().max()),
    )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, *EIGHT_BITS]
)
def test_change_of_every_type(tmp_path: Path, dtype: torch.dtype) -> None:
    """The change over several chunks agrees with torch in float64; what is not finite in either is left out."""
    torch.manual_seed(0)
    kind = torch.complex64 if dtype.is_complex else torch.float32
    old, step = torch.randn(1_300_001, dtype=kind).to(dtype), torch.randn(1_300_001, dtype=kind)
    new = (old.to(kind) + 0.1 * step).to(dtype)
    old[3], new[1_200_000] = torch.nan, torch.nan
    torch.save({"w": old, "still": old}, tmp_path / "1.pt")
    torch.save({"w": new, "still": old}, tmp_path / "2.pt")
    wide = [(torch.view_as_real(t) if dtype.is_complex else t).double() for t in (new, old)]
    difference, before = (torch.nan_to_num(t, 0.0).norm() for t in (wide[0] - wide[1], wide[1]))
    changes = {t.name: t.change for t in health(tmp_path / "2.pt", tmp_path / "1.pt").tensors}
    assert changes == {"w": pytest.approx(float(difference / before), rel=1e-5), "still": 0.0}


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is cut may be in the course of being written anew: the problem names it and the place, and nothing of it is told."""  # noqa: E501
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(1000), "b": torch.ones(9 * 2**20)}, path)

    def cut(found: Path, **how: Any) -> Any:
        pieces = map_files(found, **how)
        os.truncate(found, 20 * 2**20)
        return pieces

    monkeypatch.setattr("postmortem.checkpoints.health.map_files", cut)
    found = health(path)
    assert found.tensors == []
    assert [(p.path, p.offset, p.what) for p in found.problems] == [
        (str(path), 20 * 2**20, "truncated while it was read")
    ]
    assert found.finite is None
    torch.save({"a": torch.ones(1000)}, path)
    monkeypatch.setattr(
        "postmortem.checkpoints.health.map_files", lambda found, **how: (map_files(found, **how), found.unlink())[0]
    )
    assert "cannot be read: No such file" in health(path).problems[0].what


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tensors lay in a file says nothing of the one that took its place: no numbers of it are told, nor of a folder that went."""  # noqa: E501
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(1000)}, path)

    def replaced(found: Path, **how: Any) -> Any:
        pieces = map_files(found, **how)
        torch.save({"much": list(range(9000)), "a": torch.ones(90_000)}, tmp_path / "new")
        os.replace(tmp_path / "new", found)
        return pieces

    monkeypatch.setattr("postmortem.checkpoints.health.map_files", replaced)
    found = health(path)
    assert (found.tensors, found.finite) == ([], None)
    assert [p.what for p in found.problems] == ["rewritten while it was read: check it again"]
    assert "gone" in map_files(tmp_path / "checkpoint-3" / "x.pt").problems[0].what
    monkeypatch.setattr(Path, "is_dir", lambda _: True)  # as it was a moment ago
    assert "no saved weights" in map_files(tmp_path / "checkpoint-3").problems[0].what


def test_chunks_of_a_sharded_tensor_are_compared_with_their_own(tmp_path: Path) -> None:
    """A chunk is compared with the chunk at the same place in the tensor, in whatever order the files name them."""
    from postmortem.checkpoints.file_map import FileMap
    from postmortem.checkpoints.formats.shared.pieces import Piece
    from postmortem.checkpoints.health import tensors_of

    values = np.concatenate([np.full(4, 1.0), np.full(4, 2.0)]).astype(np.float32)
    pieces = []
    for name, data in (("new", values), ("old", values)):
        (tmp_path / name).write_bytes(data.tobytes())
        pieces.append([Piece("w", (4,), torch.float32, tmp_path / name, 16 * i, 16, (4 * i,)) for i in range(2)])
    new, old = pieces
    (seen,) = tensors_of(FileMap(new), FileMap(old[::-1]))
    assert (seen.change, seen.numel, seen.norm) == (0.0, 8, pytest.approx(float(np.linalg.norm(values))))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Looking into a file takes pieces of it, not the file."""
    torch.save({"w": torch.zeros(16 * 2**20)}, tmp_path / "big.pt")  # 64 MiB
    tracemalloc.start()
    try:
        assert health(tmp_path / "big.pt").finite
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 70 * 2**20  # checksums of files up to 64 MiB read one record at a time


def test_pickles_that_want_more_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle that wants to call something is refused with its name and nothing is run; --trust loads a harmless one."""  # noqa: E501
    monkeypatch.chdir(tmp_path)
    for zipped in (True, False):
        torch.save({"model": {}, "x": Evil()}, "evil.pt", _use_new_zipfile_serialization=zipped)
        with pytest.raises(UnreadableCheckpoint, match=r"refused: the pickle calls \w+\.mkdir"):
            read_saved(Path("evil.pt"))
        assert "refused" in health(Path("evil.pt")).problems[0].what
    assert not Path("it_ran").exists()
    torch.save(content(config=argparse.Namespace(a=1), numpy=np.float64(3.0)), "plain.pt")
    assert read_saved(Path("plain.pt")).content["config"].a == 1


class Typed:
    """A numpy type in a pickle that is given another state than its own."""

    def __init__(self, name: str, state: tuple[Any, ...]) -> None:
        self.name, self.state = name, state

    def __reduce__(self) -> Any:
        return np.dtype, (self.name, False, True), self.state


class Bytes:
    """A numpy array in a pickle, of eight bytes."""

    def __init__(self, dtype: Typed) -> None:
        self.dtype = dtype

    def __reduce__(self) -> Any:
        return np.zeros(1).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, (), self.dtype, False, b"A" * 8)


@pytest.mark.parametrize(
    "dtype", [Typed("O8", (3, "|", None, None, None, -1, -1, 0)), Typed("V8", (3, "|", None, None, None, 8, 1, 63))]
)
@pytest.mark.parametrize("zipped", [True, False])
def test_bytes_of_a_file_are_never_taken_for_objects(tmp_path: Path, zipped: bool, dtype: Typed) -> None:
    """A numpy type whose flags lie would make pointers of what the file says, and end or take over the process."""
    torch.save({"w": torch.ones(1), "step": Bytes(dtype)}, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    assert health(tmp_path / "x.pt").problems
    with pytest.raises(UnreadableCheckpoint):
        read_saved(tmp_path / "x.pt")


@pytest.mark.parametrize(
    "value",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array([[1, "a"], [None, 2.5]], dtype=object), np.array(["ab", "c"]), np.array([b"xyz"]),  # noqa: E501
        np.zeros((0, 4)), np.arange(3, dtype=">i4"), np.array(2.5), np.float16(2.5), np.str_("hi"), np.array([True]), np.array([1 + 2j]),  # noqa: E501
    ],
    ids=str,
)  # fmt: skip
def test_numpy_in_a_checkpoint(tmp_path: Path, value: Any) -> None:
    """Arrays and scalars of numpy come back as they were, and can be saved again."""
    torch.save({"w": torch.ones(1), "value": value}, tmp_path / "x.pt")
    again = pickle.loads(pickle.dumps(read_saved(tmp_path / "x.pt").content["value"]))
    for got in (again, read_saved(tmp_path / "x.pt").content["value"]):
        assert isinstance(got, np.ndarray) == isinstance(value, np.ndarray)
        assert (got.shape, got.dtype, got.tolist()) == (value.shape, value.dtype.newbyteorder("="), value.tolist())
    assert not health(tmp_path / "x.pt").problems


def test_a_state_that_holds_itself(tmp_path: Path) -> None:
    """A dict in itself, or one a million times over, is looked through once."""
    model, _ = trained()
    held: dict[str, Any] = {"model": model.state_dict()}
    held["state"] = held
    for _ in range(6):
        held = {"model": held["model"], **{f"k{i}": held for i in range(200)}}
    held["state"] = held
    torch.save(held, tmp_path / "x.pt")
    saved = read_saved(tmp_path / "x.pt")
    assert saved.step is health(tmp_path / "x.pt").step is None
    assert load_saved(StepRunner(TrainStep(model, None, None)), saved).fitted[0].startswith("model: 4 of 4 tensors")


@pytest.mark.parametrize("kind", ["zip", "distributed"])
def test_changed_bytes_are_not_loaded(tmp_path: Path, kind: str) -> None:
    """torch loads weights whose checksum is wrong without a word; here nothing starts from them."""
    path = write(tmp_path, kind)
    file = path if path.is_file() else next(path.glob("*.distcp"))
    weights = trained()[0][0].weight.detach().numpy().tobytes()
    data = file.read_bytes()
    assert data.count(weights) == 1
    file.write_bytes(data.replace(weights, weights[:-1] + bytes([weights[-1] ^ 1])))
    with pytest.raises(UnreadableCheckpoint, match=r"the checksum of record data/\d+ does not match"):
        read_saved(path)


def test_an_archive_that_torch_cannot_load_is_not_called_good(tmp_path: Path) -> None:
    """Python's reader of zip files forgives what torch's does not."""
    torch.save({"w": torch.ones(3)}, tmp_path / "x.pt")
    before, name, after = (tmp_path / "x.pt").read_bytes().rpartition(b"x/version")
    (tmp_path / "x.pt").write_bytes(before + name.upper() + after)  # in the directory at the end: torch looks for it
    assert health(tmp_path / "x.pt").problems


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda m: m.storage_data.pop(next(i for i in m.storage_data if i.fqn == "model.0.bias")),
            "model.0.bias hold 0 of 6 elements",
        ),
        (
            lambda m: m.state_dict_metadata.update({"x": 3, "y": m.state_dict_metadata.pop("model.0.bias")}),
            "y hold 0 of 6 elements",
        ),
        (
            lambda m: setattr(m, "storage_data", 3),
            "not the metadata of a checkpoint: its storage_data is a value of type int",
        ),
        (lambda m: m.storage_data.update({3: None}), "a name in its storage_data is a value of type int"),
        (
            lambda m: setattr(next(iter(m.storage_data.values())), "relative_path", "../x"),
            "invalid place in the metadata: byte 0 of ../x",
        ),
    ],
)
def test_distributed_metadata_that_lies(tmp_path: Path, edit: Any, said: str) -> None:
    """Numbers that no chunk gives are not whatever lay in memory, and no file outside the folder is opened."""
    folder = write(tmp_path, "distributed")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    edit(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(UnreadableCheckpoint, match=said.replace(".", r"\.")):
        read_saved(folder)


@pytest.mark.parametrize("zipped", [True, False])
def test_classes_that_are_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
    """A script saves its own classes with the state (`__main__.Config`): trusted, the file is loaded, and they hold what they held."""  # noqa: E501
    gone = types.ModuleType("gone")
    exec("class Config(dict):\n    def __init__(self, lr): self.lr = lr\nclass State: pass", vars(gone))
    monkeypatch.setitem(sys.modules, "gone", gone)
    model, optimizer = trained()
    state = gone.State()
    state.weights = model.state_dict()
    torch.save(
        {"state": state, "config": gone.Config(0.5), "optimizer": optimizer},
        tmp_path / "x.pt",
        _use_new_zipfile_serialization=zipped,
    )
    monkeypatch.delitem(sys.modules, "gone")
    saved = read_saved(tmp_path / "x.pt", trust=True)
    assert saved.content["config"].lr == 0.5
    assert [p.what[:7] for p in health(tmp_path / "x.pt").problems] == ["refused"]
    assert health(tmp_path / "x.pt", trust=True).finite
    assert {t.name for t in health(tmp_path / "x.pt", trust=True).tensors} > {
        f"state.weights.{k}" for k in model.state_dict()
    }
    fresh = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    account = load_saved(StepRunner(TrainStep(fresh, torch.optim.Adam(fresh.parameters()), None)), saved)
    assert account.fitted[:2] == ["model: 4 of 4 tensors from state.weights", "optimizer: from optimizer"]
    assert all(map(torch.equal, fresh.state_dict().values(), model.state_dict().values()))


def test_random_states_beside_an_optimizer(tmp_path: Path) -> None:
    """A file called optimizer.pt may hold the random state as well; bytes in the optimizer's own state are none."""
    state = {"state": {0: {"quantized": torch.zeros(5056, dtype=torch.uint8)}}, "param_groups": []}
    assert find_rng({"optimizer": {"optimizer": state}}).cpu is None
    assert find_rng({"optimizer": {"optimizer": state, "rng": torch.get_rng_state()}}).names() == ["cpu"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80\x02NQ.", "no metadata of a checkpoint: not a whole pickle"),
        (b"", "no metadata of a checkpoint: not a whole pickle"),
        (b"123456789", "no metadata of a checkpoint: not a whole pickle"),
        (pickle.dumps(5), "not the metadata of a checkpoint: it holds a value of type int"),
        (pickle.dumps({"x": 1}), "not the metadata of a checkpoint: it holds a value of type dict"),
    ],
)
def test_metadata_of_another_program(tmp_path: Path, data: bytes, what: str) -> None:
    """A `.metadata` that is none is named in words, not by the error of the unpickler."""
    (tmp_path / ".metadata").write_bytes(data)
    (tmp_path / "__0_0.distcp").touch()
    (problem,) = health(tmp_path).problems
    assert problem.what.endswith(what)


@pytest.mark.parametrize(
    "pickled",
    [b"\x80\x04Nr\xff\xff\xff\x0f.", b"\x80\x04Np99999999\n.", b"\x80\x05\x96\0\0\0\x20\0\0\0\0."],
    ids=["LONG_BINPUT", "PUT", "BYTEARRAY8"],
)
def test_distributed_metadata_reserves_no_memory(tmp_path: Path, pickled: bytes) -> None:
    """A pickle of a few bytes that names a large index or length costs no more than its bytes."""
    (tmp_path / ".metadata").write_bytes(pickled)
    (tmp_path / "__0_0.distcp").write_bytes(b"x")
    tracemalloc.start()
    seen = health(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen.finite is None
    assert len(seen.problems) == 1
    assert peak < 20 * 2**20


def test_distributed_metadata_is_not_run(tmp_path: Path) -> None:
    """The metadata of a distributed checkpoint is a pickle too: one that wants more is refused."""
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"x": Evil()}))
    (tmp_path / "__0_0.distcp").touch()
    with pytest.raises(UnreadableCheckpoint, match="refused"):
        read_saved(tmp_path)
    assert health(tmp_path).finite is None
    assert not Path("it_ran").exists()


@pytest.mark.parametrize("name", ["os.mkdir", "FileSystemWriter", "json.loads"])
def test_distributed_metadata_reaches_nothing_through_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What the modules of torch's metadata import, also by a name with dots, is refused like any other class."""
    monkeypatch.chdir(tmp_path)
    words = [
        b"\x8c" + bytes([len(w)]) + w for w in (b"torch.distributed.checkpoint.filesystem", name.encode(), b"it_ran")
    ]
    Path(".metadata").write_bytes(b"\x80\x04" + words[0] + words[1] + b"\x93" + words[2] + b"\x85R.")
    Path("__0_0.distcp").touch()
    assert (
        f"refused: the metadata requires torch.distributed.checkpoint.filesystem.{name}"
        in health(tmp_path).problems[0].what
    )
    assert not Path("it_ran").exists()


def test_parts_of_a_distributed_checkpoint_that_are_no_tensors(tmp_path: Path) -> None:
    """What no tensor is can be damaged as well, and the headers between them: such a folder is not called good."""
    folder = write(tmp_path, "distributed")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    file = next(folder.glob("*.distcp"))
    whole = file.read_bytes()
    for name in ("optim.param_groups.0.lr", "model.0.weight"):
        where = next(w for i, w in metadata.storage_data.items() if i.fqn == name)
        data = bytearray(whole)
        data[where.offset + where.length - 4 - 16] ^= 0x41  # in the directory at the end of its archive
        file.write_bytes(data)
        assert health(folder).problems, name
        with pytest.raises(UnreadableCheckpoint):
            read_saved(folder)


def test_distributed_metadata_changes_no_class(tmp_path: Path) -> None:
    """A pickle can set attributes of the classes that it names: they are not those of the process."""
    before = Path.exists
    (tmp_path / ".metadata").write_bytes(b"\x80\x02cpathlib\nPosixPath\n(N}X\x06\x00\x00\x00existscbuiltins\nset\nstb.")
    (tmp_path / "__0_0.distcp").touch()
    assert health(tmp_path).problems
    assert tmp_path.exists()
    assert type(tmp_path).exists is before


def test_the_first_of_several_tensors_in_a_distributed_file(tmp_path: Path) -> None:
    """Every chunk of a file is read at its own place, the one at its beginning too."""
    from torch.distributed import checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save({f"w{i}": torch.full((3,), float(i)) for i in range(4)}, checkpoint_id=str(tmp_path))
    assert {t.name: t.max_abs for t in health(tmp_path).tensors} == {f"w{i}": float(i) for i in range(4)}


_LEGACY = (
    b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02M\xe9\x03." + b"\x80\x02}."
)  # what comes before the content


@pytest.mark.parametrize("zipped", [True, False])
def test_sparse_and_quantized_tensors(tmp_path: Path, zipped: bool) -> None:
    """The values of a sparse tensor of any layout are looked at; what cannot be looked into is told in words."""
    bad = torch.diag(torch.tensor([1.0, 2.0, math.nan]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = {
            "coo": bad.to_sparse(),
            "csr": bad.to_sparse_csr(),
            "csc": bad.to_sparse_csc(),
            "bsr": bad.to_sparse_bsr((1, 1)),
        }
        torch.save(state, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
        torch.save(
            {"q": torch.quantize_per_tensor(bad, 0.1, 0, torch.qint8)},
            tmp_path / "q.pt",
            _use_new_zipfile_serialization=zipped,
        )
    assert {t.name: (t.numel, t.nan, t.max_abs) for t in health(tmp_path / "x.pt").tensors} == dict.fromkeys(
        state, (3, 1, 2.0)
    )
    assert health(tmp_path / "q.pt").problems[0].what == "it holds quantized tensors, which are not checked"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"hello", "not a torch checkpoint: neither a zip archive nor a pickle; it begins with b'hello'"),
        (
            b"root:x:0:0:root:/root\n" * 9,
            "not a torch checkpoint: neither a zip archive nor a pickle; it begins with b'root:x:0:0:root:'",
        ),
        (bytes(4096), "only zeros: the 4096 bytes of the file were never written"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
        (pickle.dumps({"a": 1}, protocol=4), "a pickle of protocol 4 that torch.save did not write: if"),
        (
            pickle.dumps({"a": torch.ones(3)}, protocol=4),
            "requires torch._utils._rebuild_tensor_v2, torch.storage._load_from_bytes",
        ),
        (
            pickle.dumps({"a": torch.ones(3)}, protocol=2),
            "a pickle of protocol 2 that torch.save did not write and that requires torch",
        ),
        (_LEGACY + b"\x80\x02" + b"(" * 3_000_000, "it opens too many containers without filling them"),
        (_LEGACY + b"\x80\x02" + b"]" * 3_000_000, "it opens too many containers without filling them"),
        (_LEGACY + b"\x80\x02]q\x00h\x00a." + b"\x80\x02].", "no tensors in this file"),
        (
            _LEGACY + b"\x80\x02]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60)) + b".\x80\x02].",
            "no tensors in this file",
        ),
    ],
    ids=[f"kind{i}" for i in range(11)],  # made of megabytes they would take minutes
)
def test_what_is_no_checkpoint_is_told_in_words(tmp_path: Path, data: bytes, said: str) -> None:
    """Other files by a checkpoint's name, and pickles that grow, hold themselves or double with every line, end with one clear line."""  # noqa: E501
    (tmp_path / "x.pt").write_bytes(data)
    (problem,) = health(tmp_path / "x.pt").problems
    assert said in problem.what


def test_a_pickle_has_a_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands beside the tensors is read up to a bound, in both of torch's formats."""
    monkeypatch.setattr("postmortem.checkpoints.formats.shared.restricted_pickle._READS", 10_000)
    for zipped in (True, False):
        torch.save(
            {"w": torch.ones(1), "history": list(range(300, 10_300))},
            tmp_path / "x.pt",
            _use_new_zipfile_serialization=zipped,
        )
        assert "holds too much data besides the tensors" in health(tmp_path / "x.pt").problems[0].what


def test_tensors_that_claim_the_same_bytes_over_and_over(tmp_path: Path) -> None:
    """Views that together are many times their file would take hours to look at: they are refused."""
    base = torch.zeros(10_000)
    torch.save([base[i:] for i in range(100)], tmp_path / "x.pt")
    assert "overlap" in health(tmp_path / "x.pt").problems[0].what


@pytest.mark.parametrize("zipped", [True, False])
def test_what_lies_between_the_numbers_of_a_view_is_not_its_own(tmp_path: Path, zipped: bool) -> None:
    """torch.save writes the whole storage under a view: a NaN there counts where a tensor covers it, and only there."""
    base = torch.arange(120.0).reshape(4, 5, 6)
    base[:, :, 0], base[3] = math.nan, math.inf
    whole = torch.full((3, 4), 2.0).expand(2, 3, 4)
    views = {
        "columns": base[:3, :, 1:3],
        "one": base[0, :, 5],
        "every_other": base[:3, ::2, 2:4],
        "turned": base[:3, :, 1:].permute(2, 0, 1),
        "bad": base[1, :, :2],
        "row": base[2, 1],
        "expanded": whole,
        "none": base[:0],
        "number": base[0, 0, 1],
    }
    torch.save(views, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    found = {t.name: t for t in health(tmp_path / "x.pt", tmp_path / "x.pt").tensors}
    assert {name for name, t in found.items() if t.nonfinite} == {"bad", "row"}
    assert (found["bad"].nan, found["row"].nan) == (5, 1)
    for name in set(views) - {"none", "expanded"}:
        t = views[name]
        finite = t[t.isfinite()].double()
        assert (found[name].numel, found[name].max_abs) == (t.numel(), finite.abs().max())
        assert found[name].norm == pytest.approx(finite.norm().item())
        assert found[name].change == 0.0


def test_a_view_in_too_many_parts_is_taken_whole(tmp_path: Path) -> None:
    """One number in two, over and over: looking at each by itself would take hours."""
    base = torch.zeros(40_000, 2)
    base[:, 0] = math.nan
    torch.save({"v": base[:, 1], "w": base[:100, 1]}, tmp_path / "x.pt")
    v, w = health(tmp_path / "x.pt").tensors
    assert (v.name, v.nan, w.name, w.nan) == ("v", 39_999, "w", 0)


def test_nothing_finite_is_said(tmp_path: Path) -> None:
    """A tensor of NaN alone has no largest value and no norm."""
    from click.testing import CliRunner

    from postmortem.cli.checkpoints import checkpoints

    torch.save({"w": torch.full((3, 4), torch.nan), "v": torch.tensor([1.0, torch.nan])}, tmp_path / "x.pt")
    said = CliRunner().invoke(checkpoints, [str(tmp_path / "x.pt")], standalone_mode=False).output
    assert "w [3, 4] float32: 12 NaN, no finite values" in said
    assert "v [2] float32: 1 NaN, max 1, norm 1" in said


def test_missing_shard(tmp_path: Path) -> None:
    """A shard that the index names and that is not there is named."""
    path = write(tmp_path, "sharded")
    (path / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002" in health(path).problems[0].path
    assert "missing" in health(path).problems[0].what
    model, _ = trained()
    with pytest.raises(
        ReplayError,
        match=r"trainable weights of .* are missing in model: .*model-00002-of-00002.safetensors: missing: an index",
    ):
        load_saved(StepRunner(TrainStep(model, None, None)), read_saved(path))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "net.body."])
def test_prefixes(tmp_path: Path, prefix: str) -> None:
    """Prefixes that wrappers put before the names are taken off, and said where they are not a wrapper's."""
    model, optimizer = trained()
    torch.save({"state_dict": {prefix + k: v for k, v in model.state_dict().items()}}, tmp_path / "x.pt")
    fresh = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    account = load_saved(StepRunner(TrainStep(fresh, optimizer, None)), read_saved(tmp_path / "x.pt"))
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), model.parameters(), strict=True))
    assert any("starts in its initial state" in line for line in account.unfitted)


def test_averaged_weights_are_not_taken_for_the_trained_ones(tmp_path: Path) -> None:
    """Beside a model its moving average is left alone."""
    model, optimizer = trained()
    torch.save(
        {"ema": {k: v * 0 for k, v in model.state_dict().items()}, "model": model.state_dict()}, tmp_path / "x.pt"
    )
    fresh = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    load_saved(StepRunner(TrainStep(fresh, optimizer, None)), read_saved(tmp_path / "x.pt"))
    assert torch.equal(fresh[0].weight, model[0].weight)


def test_what_does_not_fit(tmp_path: Path) -> None:
    """Other shapes and missing trainable weights are refused; missing frozen ones and an odd optimizer are accounted for."""  # noqa: E501
    torch.save(content(), tmp_path / "x.pt")
    saved = read_saved(tmp_path / "x.pt")

    def load(model: nn.Module, parameters: Any = None) -> Any:
        optimizer = torch.optim.Adam(parameters if parameters is not None else model.parameters())
        return load_saved(StepRunner(TrainStep(model, optimizer, None)), saved)

    with pytest.raises(ReplayError, match=r"0\.weight is \(6, 4\) in the checkpoint and \(6, 5\) in the model"):
        load(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)))
    larger = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2), nn.Linear(2, 2))
    with pytest.raises(ReplayError, match=r"2 trainable weights .* missing in model: 3\.weight, 3\.bias"):
        load(larger)
    larger[3].requires_grad_(False)
    account = load(larger, [larger[0].weight])
    assert "model: not in the checkpoint: 3.weight, 3.bias" in account.unfitted
    assert any(line.startswith("optimizer: optimizer does not match") for line in account.unfitted)
    with pytest.raises(ReplayError, match="none of its weights match"):
        load(nn.GRU(2, 2))


def test_scheduler_of_another_torch(tmp_path: Path) -> None:
    """torch 2.6 keeps `verbose` in a scheduler; a state that a newer torch saved without it is loaded all the same."""
    model, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    state = {**scheduler.state_dict(), "last_epoch": 5}
    state.pop("verbose", None)
    torch.save(content(lr_scheduler=state), tmp_path / "x.pt")
    scheduler.verbose = False
    account = load_saved(
        StepRunner(TrainStep(model, optimizer, None, scheduler=scheduler)), read_saved(tmp_path / "x.pt")
    )
    assert scheduler.last_epoch == 5
    assert [line for line in account.unfitted if "scheduler" in line] == []


def test_scheduler_scaler_and_random_states(tmp_path: Path) -> None:
    """Scheduler, scaler and the generators of torch, numpy and python come back; a data loader's generator is left alone."""  # noqa: E501
    model, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scheduler.last_epoch = 5
    states = {
        "torch_rng_state": torch.get_rng_state(),
        "numpy_rng": np.random.get_state(),
        "python_rng": random.getstate(),
    }
    torch.save(content(lr_scheduler=scheduler.state_dict(), scaler=scaler.state_dict(), **states), tmp_path / "x.pt")
    want = torch.rand(1), np.random.rand(), random.random()
    runner = StepRunner(
        TrainStep(model, optimizer, None, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3), scaler=True)
    )
    account = load_saved(runner, read_saved(tmp_path / "x.pt"))
    account.rng.restore()
    assert (torch.rand(1), np.random.rand(), random.random()) == want
    assert runner.schedulers[0].last_epoch == 5
    assert runner.scaler.get_scale() == 8.0
    assert find_rng({"loader": {"generator": torch.get_rng_state()}}).cpu is None


def test_optimizer_state_by_name(tmp_path: Path) -> None:
    """Optimizer state that is keyed by parameter names, as FSDP writes it, finds its parameters."""
    model, optimizer = trained()
    by_name = dict(zip(dict(model.named_parameters()), optimizer.state_dict()["state"].values(), strict=True))
    groups = [{**optimizer.state_dict()["param_groups"][0], "params": list(by_name)}]
    torch.save(
        {"model": model.state_dict(), "optim": {"state": dict(reversed(by_name.items())), "param_groups": groups}},
        tmp_path / "x.pt",
    )
    fresh = torch.optim.Adam(model.parameters())
    load_saved(StepRunner(TrainStep(model, fresh, None)), read_saved(tmp_path / "x.pt"))
    assert torch.equal(fresh.state[model[2].weight]["exp_avg"], optimizer.state[model[2].weight]["exp_avg"])


def _safetensors(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "header",
    [
        [1, 2],
        {},
        {"w": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}},
        {
            "w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
            "v": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        },
        {"w": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]}},
        {"w": {"dtype": 3, "shape": "a", "data_offsets": [0]}},
        {
            "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "v": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]},
        },
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**70]}},
        {"w": 7},
    ],
)
def test_a_safetensors_header_that_lies(tmp_path, header):
    """Offsets outside the data, shapes that do not fit them, no table at all: unreadable, with a reason."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(_safetensors(header, bytes(4)))
    seen = health(path)
    assert seen.finite is None
    assert seen.problems[0].what


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"w": 1, "w": 2}', "lists w twice"), ("[" * 100_000, "not valid JSON"), ("{", "not valid JSON")],
)
def test_a_safetensors_header_that_is_no_table(tmp_path, text, said):
    """Names given twice, brackets without end and cut JSON are told as what they are."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode())
    assert said in health(path).problems[0].what


def test_a_dtype_that_nobody_knows(tmp_path):
    """A tensor of a type that cannot be judged is named; the others are looked at."""
    path = tmp_path / "model.safetensors"
    table = {
        "w": {"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]},
        "v": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
    }
    path.write_bytes(_safetensors(table, bytes(8)))
    seen = health(path)
    assert ([t.name for t in seen.tensors], seen.finite) == (["v"], None)
    assert "w is Q9" in seen.problems[0].what


def test_a_packed_pickle_is_not_unpacked(tmp_path):
    """A small archive whose pickle would unpack to a gigabyte: torch never packs it, so it is refused unread."""
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50_000_000))
    tracemalloc.start()
    seen = health(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "compressed" in seen.problems[0].what
    assert peak < 10_000_000


@pytest.mark.parametrize(
    "index", [[], {"weight_map": []}, {"weight_map": {"a": "../outside.bin", "b": 1, "c": "/outside.bin", "d": None}}]
)
def test_an_index_that_names_no_shards_of_its_folder(tmp_path, index):
    """What leads out of the folder, or is no name, is not opened; the folder has no weights then."""
    torch.save({"w": torch.ones(1)}, tmp_path / "outside.bin")
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert health(folder).finite is None
    saved = read_saved(folder)
    assert saved.content["pytorch_model"] == {}


@pytest.mark.parametrize("text", ["{", "[1]", '{"metadata": {}}', '{"weight_map": null}'])
def test_an_index_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    """Without the index nobody knows whether a shard is missing: the checkpoint is not called good."""
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    save_file({"w": torch.ones(1)}, folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(text)
    seen = health(folder)
    assert seen.finite is None
    assert [p.path for p in seen.problems] == [str(folder / "model.safetensors.index.json")]
    assert "whether a shard is missing is not known" in seen.problems[0].what
    assert read_saved(folder).problems


def test_a_shard_whose_name_no_file_can_have(tmp_path: Path) -> None:
    """A name of 5,000 characters is a problem of one line, not an OSError."""
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    save_file({"w": torch.ones(1)}, folder / "b.safetensors")
    names = {"v": "x" * 5000, "w": "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (problem,) = health(folder).problems
    assert problem.what.startswith("missing")
    assert len(problem.path) < len(str(folder)) + 100
    saved = read_saved(folder)
    assert list(saved.content["model"]) == ["w"]
    assert [p.what for p in saved.problems] == ["cannot be read: File name too long"]


def test_a_shard_that_holds_no_table(tmp_path):
    """A shard that is a list is named as a problem; the others are read."""
    torch.save([1], tmp_path / "a.bin")
    torch.save({"w": torch.ones(1)}, tmp_path / "b.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"v": "a.bin", "w": "b.bin"}}))
    saved = read_saved(tmp_path)
    assert list(saved.content["pytorch_model"]) == ["w"]
    assert "not a shard" in saved.problems[0].what


@pytest.mark.parametrize("step", [float("nan"), float("inf"), torch.ones(2), "x"])
def test_a_count_of_the_optimizer_that_is_no_number(tmp_path, step):
    """An optimizer whose count is NaN or no number at all tells no step."""
    path = tmp_path / "weights.pt"
    torch.save({"optimizer": {"state": {0: {"step": step}}, "param_groups": []}, "w": torch.ones(1)}, path)
    assert read_saved(path).step is None


@pytest.mark.parametrize(
    ("optimizer", "scheduler", "said"),
    [
        ("two groups", None, "it has 2 groups of 2, 2 parameters, the recipe's optimizer 1 group of 4 parameters"),
        ("sgd", None, "it is of another kind of optimizer than the recipe's Adam: it has no betas, eps"),
        (None, "two groups", "it is for 2 parameter groups, the recipe's optimizer has 1"),
        (None, "cosine", "it is of another kind of scheduler than the recipe's StepLR: it has no gamma, step_size"),
        (None, "broken", "it is for base_lrs None, the recipe's optimizer has 1"),
    ],
)
def test_state_of_another_kind_is_told_and_not_loaded(
    tmp_path: Path, optimizer: str | None, scheduler: str | None, said: str
) -> None:
    """What torch would load and stumble over later is refused with the reason; optimizer and scheduler go on from fresh."""  # noqa: E501
    model, own = trained()
    weights, biases = [model[0].weight, model[2].weight], [model[0].bias, model[2].bias]
    grouped = torch.optim.Adam([{"params": weights}, {"params": biases}])
    optimizers = {None: own, "two groups": grouped, "sgd": torch.optim.SGD(model.parameters(), lr=0.1)}
    schedulers = {
        None: torch.optim.lr_scheduler.StepLR(own, 3).state_dict(),
        "two groups": torch.optim.lr_scheduler.StepLR(grouped, 3).state_dict(),
        "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(own, 9).state_dict(),
        "broken": {**torch.optim.lr_scheduler.StepLR(own, 3).state_dict(), "base_lrs": None},
    }
    content = {
        "model": model.state_dict(),
        "optimizer": optimizers[optimizer].state_dict(),
        "scheduler": schedulers[scheduler],
        "step": 1,
    }
    torch.save(content, tmp_path / "x.pt")
    fresh = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    adam = torch.optim.Adam(fresh.parameters())
    steps = torch.optim.lr_scheduler.StepLR(adam, 3)
    account = load_saved(StepRunner(TrainStep(fresh, adam, None, scheduler=steps)), read_saved(tmp_path / "x.pt"))
    assert any(said in line and "starts in its initial state" in line for line in account.unfitted)
    fresh(torch.ones(2, 4)).sum().backward()
    adam.step()
    steps.step()


def test_accelerate_keeps_the_random_states_in_a_pickle(tmp_path: Path) -> None:
    """``random_states_0.pkl`` is read with the folder; the micro-batches that it counts are no step."""
    folder = tmp_path / "state"
    folder.mkdir()
    torch.save({"w": torch.ones(2)}, folder / "pytorch_model.bin")
    states = {
        "step": 3,
        "random_state": random.getstate(),
        "numpy_random_seed": np.random.get_state(),
        "torch_manual_seed": torch.get_rng_state(),
    }
    torch.save(states, folder / "random_states_0.pkl")
    saved = read_saved(folder)
    assert find_rng(saved.content).names() == ["cpu", "numpy", "python"]
    assert (saved.step, saved.problems) == (None, [])


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_the_steps_that_an_optimizer_counted(tmp_path: Path, optimizer: Any) -> None:
    """Read without loading anything; SGD counts none."""
    model = torch.nn.Linear(2, 1)
    own = optimizer(model.parameters())
    for _ in range(7):
        model(torch.ones(1, 2)).sum().backward()
        own.step()
    torch.save({"model": model.state_dict(), "optimizer": own.state_dict(), "epoch": 2}, tmp_path / "epoch_2.pt")
    found = map_files(tmp_path / "epoch_2.pt")
    assert optimizer_count(found) == (7 if optimizer is torch.optim.Adam else None)
    (tmp_path / "epoch_2.pt").unlink()
    assert optimizer_count(found) is None


@pytest.mark.parametrize("read", [read_saved, lambda path: health(path).problems])
def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    """That the permission is missing is said of a safetensors file as of any other, whose package calls it absent."""
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(2)}, path)

    def denied(*_: object, **__: object) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    try:
        said = str(read(path))
    except PostmortemError as error:
        said = str(error)
    assert "cannot be read: Permission denied" in said


def test_a_file_overwritten_in_place_is_opened_again(tmp_path: Path) -> None:
    """Size and time of modification are the same afterwards, as after ``rsync --inplace --times``."""
    path = tmp_path / "step_1.safetensors"
    save_file({"w": torch.ones(2)}, path)
    assert inspect(path).finite is True
    before = path.stat()
    good = path.read_bytes()
    path.write_bytes(good[:-4] + np.float32(np.nan).tobytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_ino) == (before.st_size, before.st_ino)
    assert inspect(path).finite is False


def test_threads_of_torch_are_as_many_as_before(tmp_path: Path) -> None:
    """After several checks at the same time, too."""
    path = tmp_path / "step_1.pt"
    torch.save({"w": torch.ones(8)}, path)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: health(path), range(200)))
            assert set(pool.map(lambda _: torch.get_num_threads(), range(8))) == {3}
    finally:
        torch.set_num_threads(threads)
