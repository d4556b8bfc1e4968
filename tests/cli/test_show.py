"""`show` of what lies beside a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from postmortem.cli.show import show

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")


@pytest.mark.torch
def test_the_step_of_a_checkpoint_whose_name_has_none(tmp_path: Path) -> None:
    """It is read from the file; without one in it, the line says that it is not known."""
    (tmp_path / "train.log").write_text("".join(f"step={i} loss={3 / (i + 1):.4f}\n" for i in range(100)))
    torch.save({"model": {"w": torch.zeros(2)}, "step": 60}, tmp_path / "last.pt")
    torch.save({"model": {"w": torch.zeros(2)}}, tmp_path / "best.pt")
    shown = CliRunner().invoke(show, [str(tmp_path)]).output
    assert f"step 60: {tmp_path / 'last.pt'}" in shown.replace("\n   ", "")
    assert "best.pt (step unknown)" in " ".join(shown.split())
    assert "step None" not in shown
