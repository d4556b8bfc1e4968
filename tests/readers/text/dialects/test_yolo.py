"""The console of Ultralytics' YOLO, whole and where its two streams were kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest

import postmortem

HEAD = "\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
CLASS = (
    "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|##########| 9/9\n"
)


def bar(epoch: int) -> str:
    return (
        f"     {epoch}/5     2.61G     {3 / epoch:.4g}     {2 / epoch:.4g}     0.9     18     640: 100%|####| 50/50\n"
    )


def scores(epoch: int, more: str = "") -> str:
    return (
        f"                   all        128        929        0.5        0.4       0.{epoch}1        0.{epoch}{more}\n"
    )


def column(text: str, tag: str, folder: Path) -> list[tuple[int, float]]:
    (folder / "train.out").write_text(text)
    frame = postmortem.load(folder).frame
    rows = frame[frame["tag"] == tag]
    return list(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))


EPOCHS = range(1, 6)
OUT = "".join(HEAD + scores(e) for e in EPOCHS)
ERR = "".join(bar(e) + CLASS for e in EPOCHS)


@pytest.mark.parametrize(
    "text",
    ["".join(HEAD + bar(e) + CLASS + scores(e) for e in EPOCHS), OUT, OUT + ERR],
    ids=["whole", "out", "one by one"],
)
def test_the_scores(text: str, tmp_path: Path) -> None:
    """The rows of the validation have their names and epochs where the heads of their columns are elsewhere, too."""
    assert column(text, "mAP50", tmp_path) == [(e, (10 * e + 1) / 100) for e in EPOCHS]
    assert (postmortem.load(tmp_path).step_axis, postmortem.scan(tmp_path).runs[0].verdict) == ("epoch", "healthy")


def test_a_resumed_training(tmp_path: Path) -> None:
    """It counts from the epoch that it was resumed at."""
    text = "Resuming training runs/last.pt from epoch 37 to 100 total epochs\n" + OUT
    assert [step for step, _ in column(text, "mAP50", tmp_path)] == [37, 38, 39, 40, 41]


def test_masks(tmp_path: Path) -> None:
    """A segmentation has the four scores twice."""
    text = "".join(HEAD + scores(e, f"  0.6  0.7  0.{e}8  0.3") for e in EPOCHS)
    assert column(text, "mask mAP50", tmp_path) == [(e, (10 * e + 8) / 100) for e in EPOCHS]
