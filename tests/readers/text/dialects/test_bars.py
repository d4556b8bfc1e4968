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


def test_a_bar_that_is_not_of_lightning_counts_its_epochs_as_it_likes(tmp_path: Path) -> None:
    """Only Lightning is known to count from 0: elsewhere the first epoch that was printed is the first."""
    for first, mark in ((1, ""), (0, ""), (1, "v_num=2, ")):
        rows = [
            f"Epoch {e}:  50%|###   | {n}/40 [00:00<00:00, 9.00it/s, {mark}loss={e}.{n}]"
            for e in (first, first + 1)
            for n in range(10, 41)
        ]
        path = tmp_path / f"train{first}{len(mark)}.out"
        path.write_text("\r".join(rows) + "\n")
        points = read_text(path).points
        assert points.step.min() == (50 if mark else 10)


def test_a_bar_that_counts_epochs(tmp_path: Path) -> None:
    """Its unit says so; counts of a bar with scaled units have decimals: ``10.0/171``."""
    rows = []
    for e in range(1, 6):
        rows += [
            f"{n}%|#  | {n:.1f}/40 [00:00<00:20, 7.0batch/s, loss={5 - e / 2 - n / 100:.3f}]" for n in range(1, 41)
        ]
        rows.append(f"{20 * e}%|##   | {e}/5 [00:26<04:01, 26.86s/epoch, val_loss={5.1 - e / 2:.3f}]")
    path = tmp_path / "train.out"
    path.write_text("\n".join(rows) + "\n")
    points = read_text(path).points
    steps = points.step[points.code == points.tags.index("loss")].tolist()
    assert steps == sorted(set(steps))
    assert len(steps) == 200
    held_out = points.step[points.code == points.tags.index("val_loss")]
    assert (held_out % 40 == 0).all()
