"""Redrawn bars whose values are those of another moment."""

from __future__ import annotations

from pathlib import Path

from postmortem.readers.text import read_text


def test_the_bar_that_lightning_resets_is_no_restart(tmp_path: Path) -> None:
    """Between two epochs Lightning prints its bar at 0 with the description and values of the one before."""

    def bar(epoch: int, n: int, loss: float, rate: str = "700.00it/s") -> str:
        return f"Epoch {epoch}: {10 * n}%|##        | {n}/10 [00:00<00:00, {rate}, v_num=0, train_loss={loss:.3f}]"

    lines = []
    for epoch in range(3):
        lines += [bar(epoch, n, 2 - 0.1 * epoch - 0.01 * n) for n in range(1, 11)]
        lines += [bar(e, 0, 2 - 0.1 * epoch - 0.1, "?it/s") for e in (epoch, epoch + 1)]
    path = tmp_path / "train.out"
    path.write_text("\r".join(lines) + "\n")
    points = read_text(path).points
    steps = points.step[points.code == points.tags.index("train_loss")].tolist()
    assert steps == sorted(steps)
    assert len(steps) == 30
