"""Bytes to rows: what the file does meanwhile."""

from __future__ import annotations

from postmortem.readers import _lines
from postmortem.readers._lines import Lines


def test_a_log_that_grows_while_it_is_read_has_an_end(tmp_path, monkeypatch):
    """Reading stops where the file ended when it was opened, however much is written meanwhile."""
    monkeypatch.setattr(_lines, "BLOCK", 64)
    path = tmp_path / "train.out"
    path.write_bytes(b"step 1 loss 0.5\n" * 20)
    read = 0
    for block in Lines(path):
        read += block.size
        with path.open("ab") as file:
            file.write(b"step 2 loss 0.4\n" * 20)
    assert read == 20 * 16
