"""Numbers that stand in a log more than once are found whatever the pieces in which it is looked through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import postmortem
from postmortem.readers.text import read_text

if TYPE_CHECKING:
    from pathlib import Path

LINES = st.tuples(
    st.integers(-1, 2), st.integers(1, 3), st.sampled_from(["loss {}", "lr {}", "loss {} lr {}", ""]), st.integers(1, 2)
)


@given(lines=st.lists(LINES, max_size=40).map(lambda lines: sorted(lines, key=lambda line: line[1])))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_make_no_difference(lines: list[tuple[int, int, str, int]], tmp_path: Path) -> None:
    """The same numbers are dropped, whatever the pieces; only those that equal the last of their rank and tag are."""
    text = ""
    for rank, step, what, number in lines:
        prefix = f"[rank{rank}]: " if rank >= 0 else ""
        text += f"{prefix}step {step}: {what.format(number, number)}\n"
    path = tmp_path / "train.log"
    path.write_text("step 1: loss 3\n" + text)
    found = []
    for at_once in (1, 3, 1 << 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("postmortem.readers.text.steps.repeats._ROWS_AT_ONCE", at_once)
            points = read_text(path).points
        codes = (points.tags[c] for c in points.code)
        found.append(list(zip(points.rank.tolist(), points.step.tolist(), codes, points.value.tolist(), strict=True)))
    assert found[0] == found[1] == found[2]
    printed = {(rank, step, tag, float(n)) for rank, step, what, n in lines for tag in ("loss", "lr") if tag in what}
    assert set(found[0]) == printed | {(-1, 1, "loss", 3.0)}  # a repeat is dropped, never the number itself


def kept(tmp_path: Path, text: str, tag: str) -> list[tuple[int, float]]:
    """The points of a tag."""
    path = tmp_path / "train.log"
    path.write_text(text)
    points = read_text(path).points
    mine = points.code == points.tags.index(tag)
    return list(zip(points.step[mine].tolist(), points.value[mine].tolist(), strict=True))


def test_equal_numbers_of_the_batches_of_a_step_are_points(tmp_path: Path) -> None:
    rows = "".join(f"step {s} batch {b}/4 loss: {(s + b) % 3}.5 lr: 0.001\n" for s in range(30) for b in range(4))
    assert len(kept(tmp_path, rows, "loss")) == len(kept(tmp_path, rows, "lr")) == 120


def test_equal_numbers_of_rows_without_a_name_of_their_place_are_points(tmp_path: Path) -> None:
    rows = "".join(
        f"step {s} loss: {5 - s / 10:.2f}\nval_acc: 0.5 val_loss: {s}.25\nsaved\nval_acc: 0.5 val_loss: {s}.75\n"
        for s in range(20)
    )
    assert len(kept(tmp_path, rows, "val_acc")) == 40


def test_lines_that_two_handlers_write_are_read_once(tmp_path: Path) -> None:
    rows = "".join(f"step {s} loss: {5 - s / 10:.2f} lr: 0.001\n" * 2 for s in range(30))
    assert len(kept(tmp_path, rows, "loss")) == len(kept(tmp_path, rows, "lr")) == 30


def test_a_number_in_two_styles_is_read_once(tmp_path: Path) -> None:
    rows = "".join(
        f"step {s} loss: {5 - s / 10:.2f} lr: 0.001\n[logger] step={s} | loss=%.4f\n" % (5 - s / 10) for s in range(30)
    )
    assert len(kept(tmp_path, rows, "loss")) == 30


def test_an_equal_score_of_another_evaluation_is_a_point(tmp_path):
    """The bar of each evaluation shows its loss, which moves, and a score that is 0 for a while."""
    text = "".join(
        f"Train Epoch {e}: 100%|██████████| 30/30 [00:04<00:00,  7.23it/s, Loss={2 / (e + 1):.4f}]\n"
        f"Validate: 100%|██████████| 8/8 [00:00<00:00, 19.12it/s, val_loss={3 / (e + 1):.4f}, val_dice={e // 9 / 10}]\n"
        for e in range(27)
    )
    (tmp_path / "train.log").write_text(text)
    frame = postmortem.load(tmp_path).frame
    assert [len(frame[frame.tag == tag]) for tag in ("Loss", "val_loss", "val_dice")] == [27, 27, 27]
