"""Rows that go on in the lines below them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from postmortem.readers.text import read_text

if TYPE_CHECKING:
    from pathlib import Path


def points(tmp_path: Path, text: str) -> set[tuple[str, int, float]]:
    """(tag, step, value) of every point of a log with this text."""
    log = tmp_path / "train.log"
    log.write_text(text)
    found = read_text(log).points
    return {(found.tags[c], int(s), float(v)) for c, s, v in zip(found.code, found.step, found.value, strict=True)}


def test_what_rich_wraps_within_its_column(tmp_path: Path) -> None:
    """A name may be cut before its number, and step and split stand in the first line."""
    rows = []
    for step in range(200, 1001, 200):
        rows += [
            f"[05/06/26 10:00:{step // 20:02d}] INFO     trainer - Training Metrics (step {step}) - CTC   log.py:88",
            f"                             Loss: {60 - step / 100:.3f} | Gradient Norm: 1.5 | Learning",
            f"                             Rate: {step / 1e7:.1e} | Batch Size: 32",
        ]
        if step % 400 == 0:
            rows += [
                f"                    INFO     trainer - Validation Metrics (step {step}) - CTC",
                f"                             Loss: {70 - step / 100:.3f} | Word Error Rate: 51.5",
            ]
    found = points(tmp_path, "\n".join(rows) + "\n")
    assert {p for p in found if p[0] == "CTC Loss"} == {("CTC Loss", s, 60 - s / 100) for s in range(200, 1001, 200)}
    assert {p for p in found if "Validation" in p[0]} == {("Validation CTC Loss", s, 70 - s / 100) for s in (400, 800)}
    assert ("Learning Rate", 600, 6e-5) in found
    assert len({p for p in found if p[0] == "Gradient Norm"}) == 5


@pytest.mark.parametrize("indent", [2, 4])
def test_a_json_object_with_objects_in_it(tmp_path: Path, indent: int) -> None:
    """The keys around a value are part of its tag, on however many lines they stand."""
    rows = [
        json.dumps(
            {"epoch": e, "train": {"loss": 2 - e / 10, "top": {"acc": 0.5}}, "val": {"loss": 2.5 - e / 10}, "lr": 0.01},
            indent=indent,
        )
        for e in range(8)
    ]
    found = points(tmp_path, "\n".join(rows) + "\n")
    for e in range(8):
        assert {("train/loss", e, 2 - e / 10), ("val/loss", e, 2.5 - e / 10), ("lr", e, 0.01)} <= found
        assert ("train/top/acc", e, 0.5) in found
