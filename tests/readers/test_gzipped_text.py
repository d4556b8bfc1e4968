"""Compressed text logs."""

from __future__ import annotations

import gzip
from pathlib import Path

import postmortem
from postmortem.readers.gzipped_text import GzippedText
from tests.readers.cases import usual_name

LOG = "".join(f"step {i} loss {3 - i / 100:.3f}\n" for i in range(2000)) + "RuntimeError: CUDA error: out of memory\n"


@usual_name(GzippedText)
def name_of_a_file() -> str:
    return "train.log.gz"


def test_a_compressed_log_is_read_like_the_log(tmp_path: Path) -> None:
    """Its numbers and events are those of the text, and name the compressed file."""
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(LOG[:9000].encode()) + gzip.compress(LOG[9000:].encode()))  # as `cat a.gz b.gz`
    run = postmortem.load(tmp_path)
    assert len(run.frame) == 2000
    assert run.frame["step"].iloc[-1] == 1999
    assert [(e.file, e.line) for e in run.event_list] == [(str(path), 2001)]
    assert run.problems == []
    assert run.sources[0].kind == "text"


def test_a_cut_file_keeps_what_can_be_unpacked(tmp_path: Path) -> None:
    """The crash that ended the run, or a full disk, cut the file: the beginning is read, the loss is reported."""
    path = tmp_path / "a.out.gz"
    packed = gzip.compress(LOG.encode())
    path.write_bytes(packed[: len(packed) // 2])
    run = postmortem.load(tmp_path)
    assert 500 < len(run.frame) < 2000
    assert any("gzip" in p.what and p.lost for p in run.problems)


def test_other_compressed_files_are_left_alone(tmp_path: Path) -> None:
    """Data in a .gz file is no log, whatever it is called."""
    assert not GzippedText.claims(Path("weights.gz"), gzip.compress(LOG.encode()))
    assert not GzippedText.claims(Path("train.log.gz"), gzip.compress(b"\0\1\2\3" * 1000))
    assert not GzippedText.claims(Path("train.log.gz"), b"step 1 loss 2\n")
