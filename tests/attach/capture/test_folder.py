"""A capture is whole or not there, whenever its writer is killed; number and size are bounded."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from postmortem.attach.capture.folder import Capture, Draft, Place  # noqa: E402
from postmortem.attach.standby.forks import end  # noqa: E402
from postmortem.checkpoints.captures import is_capture  # noqa: E402
from postmortem.core.errors import ReplayError  # noqa: E402

pytestmark = pytest.mark.torch


def written(place: Place, name: str, value: object) -> Path:
    """A capture with one part."""
    draft = Draft(place, place.draft())
    draft.add("state", value)
    return draft.finish(name, {"tick": 3})


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Values, tensors and the head; the library safetensors reads the file of tensors."""
    from safetensors.torch import load_file

    path = written(Place(tmp_path), "a", {"w": torch.arange(6.0).reshape(2, 3), "lr": 1e-3, "b": torch.tensor(True)})
    assert is_capture(path)
    back = Capture(path)
    assert back.head["tick"] == 3
    value = back.part("state").value()
    assert value["lr"] == 1e-3
    assert torch.equal(value["w"], torch.arange(6.0).reshape(2, 3))
    library = load_file(path / "state.safetensors")
    assert torch.equal(library["state.w"], value["w"])
    assert library["state.b"].item() is True


def test_the_oldest_are_removed(tmp_path: Path) -> None:
    """At most `keep` remain, fewer where they are large; the newest always does."""
    place = Place(tmp_path, keep=2, most=1_000_000)
    for name in "abc":
        written(place, name, {"w": torch.zeros(100)})
    assert [p.name for p in place.whole()] == ["b", "c"]
    written(place, "d", {"w": torch.zeros(200_000)})
    written(place, "e", {"w": torch.zeros(200_000)})
    assert [p.name for p in place.whole()] == ["e"]
    with pytest.raises(OSError, match="limit"):
        written(place, "f", {"w": torch.zeros(400_000)})
    assert [p.name for p in place.whole()] == ["e"]


def test_damage_is_told_in_one_line(tmp_path: Path) -> None:
    """A file that is cut or gone, and text that is no JSON."""
    path = written(Place(tmp_path), "a", {"w": torch.zeros(100)})
    whole = (path / "state.safetensors").read_bytes()
    (path / "state.safetensors").write_bytes(whole[:-1])
    with pytest.raises(ReplayError, match="another size"):
        Capture(path)
    (path / "state.safetensors").write_bytes(b"\xff" * len(whole))
    with pytest.raises(ReplayError, match="header"):
        Capture(path).part("state")
    (path / "capture.json").write_text("{")
    with pytest.raises(ReplayError, match=r"capture\.json"):
        Capture(path)


def write_on(place: Place, first: int, number: int = 10_000) -> None:
    """One capture after the other."""
    for n in range(first, first + number):
        draft = Draft(place, place.draft())
        draft.add("state", {"n": n, "w": torch.full((50_000,), float(n))})
        draft.add("batches", [torch.full((10,), n)])
        draft.finish(f"capture-{n:06}", {"tick": n})


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that computes")
def test_a_kill_at_any_moment_leaves_a_whole_capture(tmp_path: Path) -> None:
    """kill -9 while captures are written one after the other: the newest that was there, or a newer one, is whole."""
    place = Place(tmp_path, keep=1)
    moments = random.Random(4)
    for turn in range(20):
        writer = os.fork()
        if writer == 0:
            try:
                torch.set_num_threads(1)  # the threads of the parent's pool are not there after a fork
                write_on(place, turn * 10_000)
            finally:
                os._exit(1)
        deadline = time.monotonic() + 60
        try:
            while not (before := place.whole()) or int(before[-1].name[8:]) < turn * 10_000:
                assert os.waitpid(writer, os.WNOHANG) == (0, 0), "the writer ended"
                assert time.monotonic() < deadline, "the writer writes nothing"
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.04))
        finally:
            end(writer)
        newest = place.whole()[-1]
        assert newest.name >= before[-1].name
        back = Capture(newest)
        state = back.part("state").value()
        assert torch.equal(state["w"], torch.full((50_000,), float(back.head["tick"])))
        assert back.part("batches").value()[0][0] == state["n"]
    write_on(place, 20 * 10_000, 1)  # one that is not killed before it has made room
    assert len(place.whole()) == 1
    draft = place.draft()
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".")] == [draft]
