"""What was read of unchanged files is not read again, and no report differs for it."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postmortem import api
from postmortem.core.machine import MachineLog
from postmortem.core.model import Event, Problem
from postmortem.core.points import Points, PointsBuilder
from postmortem.core.reading import Reading
from postmortem.core.skipped import Skip, Skips
from postmortem.readers.mlflow import MLflow
from postmortem.readers.text import TextReader
from postmortem.runs import cache
from postmortem.runs.stored_reading import DamagedReading, NotStorable, from_bytes, to_bytes

LOG = "".join(f"step {i} loss {3 - i / 100:.3f} lr 0.001\n" for i in range(200))


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "runs" / "train.log"
    path.parent.mkdir()
    path.write_text(LOG)
    return path


def same(a, b) -> None:
    """Equal in value and type, bit for bit."""
    assert type(a) is type(b)
    if isinstance(a, (np.ndarray, np.generic)):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    elif isinstance(a, float):
        assert a.hex() == b.hex()
    elif isinstance(a, dict):
        same(list(a.items()), list(b.items()))
        same(vars(a), vars(b)) if hasattr(a, "__dict__") else None
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, Points):
        same(a.stored(), b.stored())
    elif hasattr(a, "__dataclass_fields__"):
        for name in a.__dataclass_fields__:
            same(getattr(a, name), getattr(b, name))
    else:
        assert a == b


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(codec=None)), st.just("\ud800")
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)
ARRAYS = st.builds(
    lambda kind, values: np.array(values, np.int64).astype(kind),
    st.sampled_from(["<f8", "<f4", "<i8", "<i2", "<u2", "|b1"]),
    st.lists(st.integers(-9, 9), max_size=5),
)


@st.composite
def readings(draw) -> Reading:
    builder = PointsBuilder()
    for _ in range(draw(st.integers(0, 4))):
        step, value = draw(st.integers(-(2**63), 2**63 - 1)), draw(st.floats())
        builder.add(draw(st.text(max_size=3)), step, value, draw(st.floats()), draw(st.integers(-1, 9)))
    n = draw(st.integers(0, 3))
    row = np.arange(n)
    by_row = Points.of_rows(["a"], np.zeros(n, np.uint16), row * 0.5, np.ones(n, np.uint16), row, row * 1.5, row)
    fields = draw(st.dictionaries(st.text(max_size=3), VALUES, max_size=3))
    return Reading(
        source="text",
        path=draw(st.text(max_size=5)),
        points=draw(st.sampled_from([builder.build(), by_row])),
        events=[Event(kind="cuda-oom", severity="error", message=draw(st.text(max_size=5)), fields=fields)],
        problems=[Problem(path="p", line=draw(st.one_of(st.none(), st.integers())), what="x")],
        config=fields,
        skipped=Skips({Skip.IMAGES: draw(st.integers(1, 9))}, {"words": 2}),
        row_steps=draw(st.one_of(st.none(), ARRAYS)),
        machine=draw(st.sampled_from([None, MachineLog("m", row * 1.0, row, row * 2.0, row * 3.0)])),
        facts={"list": draw(VALUES), "number": np.float64(draw(st.floats())), "array": draw(ARRAYS)},
    )


@settings(max_examples=60, deadline=None)
@given(reading=readings())
def test_a_reading_survives(reading: Reading) -> None:
    """Every value has its type and bits again, and arrays can be written to."""
    again = from_bytes(to_bytes(reading))
    same(reading, again)
    assert again.points.code.flags.writeable


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_no_reading(data) -> None:
    """A wrong byte, a cut, more at the end, or any other bytes."""
    whole = bytearray(to_bytes(Reading(source="text", path="p", row_steps=np.arange(3), facts={"a": [1, 2.5]})))
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = {
        "flip": whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :],
        "cut": whole[:at],
        "more": whole + b"x",
        "other": data.draw(st.binary()),
    }[data.draw(st.sampled_from(["flip", "cut", "more", "other"]))]
    with pytest.raises(DamagedReading):
        from_bytes(bytes(damaged))


@pytest.mark.parametrize("value", [object(), {1, 2}, Path("x"), np.array([object()]), np.array(["x"]), Skip.IMAGES])
def test_other_types_are_not_stored(value) -> None:
    """What would come back as something else, or needs a pickle, is left out."""
    with pytest.raises(NotStorable):
        to_bytes(Reading(source="text", path="p", facts={"value": value}))


def test_every_report_is_the_same(postmortem, folder, sample_runs, tmp_path, monkeypatch):
    """In each format: without the cache, when it is filled, and from it; then no reader is asked."""
    runs = tmp_path / "runs"
    shutil.copytree(sample_runs, runs, ignore=shutil.ignore_patterns("*.pt", "*.py"))
    for format_ in ("json", "html"):
        shutil.rmtree(folder, ignore_errors=True)
        first = postmortem("scan", runs, "-v", "--format", format_, "--no-cache")
        assert not folder.exists()
        assert postmortem("scan", runs, "-v", "--format", format_) == first
        assert len(list(folder.iterdir())) > 10
        with monkeypatch.context() as patch:
            patch.setattr(TextReader, "read", lambda path: pytest.fail(f"read {path}"))
            assert postmortem("scan", runs, "-v", "--format", format_) == first


@pytest.mark.parametrize("change", ["append", "truncate", "rewrite", "replace", "swap", "move"])
def test_a_file_that_changed_is_read_again(postmortem, folder, log, change):
    """Also one of the same size whose time of change was set back."""
    postmortem("scan", log.parent)
    times = log.stat().st_atime_ns, log.stat().st_mtime_ns
    if change == "append":
        log.write_text(LOG + "step 200 loss nan lr 0.001\n")
    elif change == "truncate":
        log.write_text(LOG[: len(LOG) // 2])
    elif change in ("rewrite", "replace"):
        new = log.with_name("new") if change == "replace" else log
        new.write_text(LOG.replace("3.000", "9.000"))
        os.utime(new, ns=times)
        new.replace(log)
    elif change == "swap":
        other = log.with_name("other.log")
        other.write_text(LOG.replace("1.0", "9.0"))
        postmortem("scan", log.parent)
        third = log.with_name("third")
        for old, new in ((log, third), (other, log), (third, other)):
            old.rename(new)
    else:
        log = log.rename(log.with_name("moved.log"))
    assert postmortem("scan", log.parent, "--format", "json") == postmortem(
        "scan", log.parent, "--format", "json", "--no-cache"
    )


def test_a_relative_path_is_named_as_given(postmortem, folder, log, monkeypatch):
    """Reports hold paths as they were given, and so do entries."""
    monkeypatch.chdir(log.parent)
    for path in (log.parent, ".", log):
        without = postmortem("scan", path, "--format", "json", "--no-cache")
        assert [postmortem("scan", path, "--format", "json") for _ in range(2)] == [without] * 2


def test_a_damaged_entry_is_named_and_replaced(postmortem, folder, log):
    """It costs one line on stderr and nothing of the report."""
    first = postmortem("scan", log)
    (entry,) = folder.glob("*.reading")
    (of_run,) = folder.glob("*.report")
    of_run.unlink()
    entry.write_bytes(entry.read_bytes()[:-1])
    again = postmortem("scan", log)
    assert (again.code, again.out) == (first.code, first.out)
    assert again.err.startswith(f"postmortem: an entry of the cache is damaged and not used: {entry}")
    assert postmortem("scan", log) == first


def test_no_folder_for_it(postmortem, folder, log):
    """A folder that cannot be made, or is a file, costs nothing but the cache."""
    first = postmortem("scan", log, "--no-cache")
    folder.write_text("a file")
    assert postmortem("scan", log) == first


def test_what_is_not_kept(postmortem, folder, log, monkeypatch):
    """A file that changed just now may change again within the resolution of its times; a run of many files."""
    monkeypatch.setattr(cache, "_SETTLED", 3.0)
    postmortem("scan", log)
    assert not folder.exists()
    monkeypatch.setattr(cache, "_SETTLED", -1.0)
    assert MLflow.other_files
    monkeypatch.setattr(TextReader, "other_files", True, raising=False)
    postmortem("scan", log)
    assert not folder.exists()


def test_plugins_switch_it_off(postmortem, folder, log, monkeypatch):
    """What a plugin reads may change with the plugin."""
    monkeypatch.setattr(cache, "_has_plugins", lambda: True)
    postmortem("scan", log)
    assert not folder.exists()


def test_a_file_that_grows_while_it_is_read_is_not_kept(folder, log, monkeypatch):
    """Its entry would be of a state that never was on disk."""
    read = TextReader.read

    def growing(path):
        with path.open("a") as file:
            file.write("step 999 loss 1\n")
        return read(path)

    monkeypatch.setattr(TextReader, "read", growing)
    with cache.cached(pytest.fail):
        api.scan(log)
    assert not folder.exists()


def test_it_is_bounded(postmortem, folder, log, monkeypatch):
    """The entries that were not used for the longest time make room, and what a killed scan left."""
    logs = []
    for i in range(6):
        logs.append(log.with_name(f"run{i}.log"))
        logs[-1].write_text(LOG)
        postmortem("scan", logs[-1])
    entries = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for i, entry in enumerate(entries):
        os.utime(entry, (i, i))
    size = entries[0].stat().st_size
    (folder / ".new-x").write_bytes(b"x" * size)
    os.utime(folder / ".new-x", (0, 0))
    postmortem("scan", logs[0])  # used: the newest
    monkeypatch.setattr(cache, "_LARGEST", 4 * size + 100)
    postmortem("scan", log)
    left = set(folder.iterdir())
    assert entries[0] in left
    assert not {folder / ".new-x", *entries[1:3]} & left
    assert sum(path.stat().st_size for path in left) <= 4 * size + 100


def test_scans_at_the_same_time(folder, log, monkeypatch):
    """Threads that write, read and remove the same entries all read the same."""
    monkeypatch.setattr(cache, "_LARGEST", 1)
    notes: list[str] = []
    found: list[bytes] = []

    def scan() -> None:
        for _ in range(15):
            used = cache.Cache(folder, notes.append)
            found.append(to_bytes(used.read(TextReader, log)))
            used.make_room()

    threads = [threading.Thread(target=scan) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(found), set(found), notes) == (60, {to_bytes(TextReader.read(log))}, [])


def test_where_it_is(monkeypatch, tmp_path):
    """POSTMORTEM_CACHE_DIR, then the folder of the platform."""
    monkeypatch.setenv(cache.VARIABLE, "/named")
    assert cache.cache_folder() == Path("/named")
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "postmortem"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache.cache_folder() == Path("/home/me/.cache/postmortem")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.cache_folder() == Path("/home/me/Library/Caches/postmortem")
