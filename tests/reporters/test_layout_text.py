"""The text of `postmortem layout`."""

from __future__ import annotations

from postmortem.core.layout import LayoutResult, StridedGradient
from postmortem.reporters.layout_text import layout_lines


def gradient(file: str | None, line: int | None) -> StridedGradient:
    """One that is a copy, in the first two iterations."""
    phase = {"file": file, "line": line, "first": 0, "last": 1, "iterations": 2}
    return StridedGradient(
        model="",
        parameter="made",
        shape=(4, 8, 1),
        strides=(1, 4, 4),
        expected=(8, 1, 1),
        dtype="float32",
        device="cpu",
        format="",
        difference="copy",
        op="permute",
        file=None,
        line=None,
        code="",
        beside=None,
        called=None,
        phases=(phase,),
        ranks=2,
        bytes=128,
    )


def test_the_backward_pass_of_a_recipe_has_no_line() -> None:
    """It is made by postmortem itself."""
    told = "\n".join(layout_lines(LayoutResult(command=(), gradients=(gradient(None, None),))))
    assert "  backward pass, iterations 0 to 1, 2 ranks" in told
    told = "\n".join(layout_lines(LayoutResult(command=(), gradients=(gradient("/x/train.py", 7),))))
    assert "  backward pass at /x/train.py:7, iterations 0 to 1, 2 ranks" in told
