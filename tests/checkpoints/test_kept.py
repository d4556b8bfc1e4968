"""What a scan learned of a checkpoint is kept: the next scan says the same without torch and without the weights."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch

import postmortem
from postmortem.checkpoints import kept
from postmortem.core.keeper import KEEPER
from postmortem.runs import cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache that keeps files however new they are."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    for module in (cache, kept):
        monkeypatch.setattr(module, "_SETTLED", -1.0)
    return tmp_path / "cache"


@pytest.fixture
def run(tmp_path):
    """A run whose loss became NaN after step 59; its last checkpoint holds a NaN, one has no step in its name."""
    path = tmp_path / "runs" / "exp"
    path.mkdir(parents=True)
    rows = [f"step {i} loss {2 - i / 100:.3f} lr 0.001" for i in range(60)] + [
        f"step {i} loss nan" for i in range(60, 80)
    ]
    (path / "train.log").write_text("\n".join(rows) + "\n")
    for step, value in ((20, 1.0), (50, 1.0), (70, float("nan"))):
        torch.save({"model": {"w": torch.full((3,), value)}, "step": step}, path / f"ckpt_{step}.pt")
    torch.save({"model": {"w": torch.ones(3)}, "global_step": 55}, path / "last.pt")
    return path


def scanned(run):
    """What a scan with the cache says of the checkpoints."""
    with cache.cached(pytest.fail):
        report = postmortem.scan(run)[0]
    return report.checkpoints, repr((report.diagnosis, report.findings, report.notes))  # NaN is not equal to NaN


@pytest.fixture
def opened(monkeypatch):
    """The checkpoints that were opened."""
    paths = []
    for name in ("_look", "_steps"):
        find = getattr(kept, name)
        monkeypatch.setattr(kept, name, lambda path, find=find: (paths.append(path.name), find(path))[1])
    return paths


def test_a_second_scan_opens_no_checkpoint_and_says_the_same(folder, run, opened):
    first = scanned(run)
    assert {"ckpt_70.pt", "last.pt"} <= set(opened)
    assert {c.path.rsplit("/", 1)[-1]: (c.step, c.finite) for c in first[0] if c.looked_into}["last.pt"] == (55, True)
    opened.clear()
    assert scanned(run) == first
    assert opened == []


def test_a_checkpoint_that_changed_is_opened_again(folder, run, opened):
    """Also one of the same size; the others are not."""
    scanned(run)
    opened.clear()
    torch.save({"model": {"w": torch.full((3,), float("inf"))}, "global_step": 55}, run / "last.pt")
    checkpoints, *_ = scanned(run)
    assert "last.pt" in opened
    assert "ckpt_70.pt" not in opened
    assert {c.path.rsplit("/", 1)[-1]: c.finite for c in checkpoints}["last.pt"] is False


def test_a_damaged_entry_is_made_again(folder, run, opened):
    """One that was cut, and one with a changed byte."""
    first = scanned(run)
    entries = sorted(folder.glob("*.checkpoint"))
    for i, entry in enumerate(entries):
        data = bytearray(entry.read_bytes())
        data[-2] ^= 1
        entry.write_bytes(data if i % 2 else data[:20])
    opened.clear()
    assert scanned(run) == first
    assert len(opened) == len(entries)


def test_without_a_cache_nothing_is_kept(folder, run, opened):
    """As with --no-cache."""
    postmortem.scan(run)
    assert KEEPER.get() is None
    assert not folder.exists()


def test_a_second_scan_imports_no_torch(folder, run):
    """Importing it takes longer than such a scan."""
    scanned(run)
    code = (
        "import sys; from postmortem.cli.main import main\n"
        "try: main(['scan', sys.argv[1]])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, timeout=300)
    assert "last.pt" in done.stdout
    assert done.stderr.split()[-1] == "False"
