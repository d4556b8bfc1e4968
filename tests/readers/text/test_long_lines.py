"""A line that is longer than what is kept of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import postmortem
from postmortem.readers.text.lines import blocks

if TYPE_CHECKING:
    from pathlib import Path


def test_a_line_in_pieces_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told once, and the lines after it keep their numbers."""
    monkeypatch.setattr(blocks, "LONGEST_LINE", 4 << 20)
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    text = "step 1 loss 0.5\n" + "x 1 " * (4 << 20) + f"\nstep 2 loss 0.4\n{error}\n"
    (tmp_path / "train.log").write_text(text)
    run = postmortem.load(tmp_path / "train.log")
    assert [p.what for p in run.problems if p.kind == "limit"] == ["1 line is longer than 65536 characters"]
    assert [e.line for e in run.event_list if "OutOfMemory" in e.message or e.kind == "cuda-oom"] == [4]
