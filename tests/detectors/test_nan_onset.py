"""The first NaN of a quantity."""

from __future__ import annotations

import numpy as np
import pytest

import postmortem
from postmortem.detectors.divergence import Divergence
from postmortem.detectors.loss_spike import LossSpike
from postmortem.detectors.nan_onset import NanOnset
from tests.detectors.cases import fires, put, quiet, spoiled


@fires(NanOnset, step=200)
def a_loss_that_turns_nan(base):
    return spoiled(base, "train/loss", put(slice(200, None), np.nan))


@quiet(NanOnset)
def nan_before_the_first_number(base):
    """A quantity that is not measured yet is written as NaN by many loggers."""
    return spoiled(base, "val/loss", put(slice(0, 5), np.nan))


UNDEFINED = np.where(np.arange(40) % 5 == 3, np.nan, 0.8)


def scored(folder, tag, score, loss):
    rows = (f"{i},{x},{y}\n" for i, (x, y) in enumerate(zip(loss, score, strict=True)))
    (folder / "metrics.csv").write_text(f"epoch,val_loss,{tag}\n" + "".join(rows))
    [run] = postmortem.scan(folder).runs
    return {f.severity for f in run.findings if f.name == "nan-onset" and f.tag == tag}


@pytest.mark.parametrize("tag", ["auc_hernia", "val_auroc", "f1_class_3", "pearson"])
def test_a_score_that_is_undefined_at_times_is_info(tmp_path, tag):
    """Some evaluations have no example of a class: with finite losses, the NaN of its score says nothing."""
    assert scored(tmp_path, tag, UNDEFINED, 1 / np.arange(1, 41)) == {"info"}


def test_a_score_that_is_lost_for_good_is_an_error(tmp_path):
    """A score that stays NaN to the end is not undefined by chance."""
    score = np.where(np.arange(40) >= 20, np.nan, 0.8)
    assert scored(tmp_path, "val_auroc", score, 1 / np.arange(1, 41)) == {"error"}


def test_an_explained_variance_that_is_undefined_to_the_end_is_info(tmp_path):
    """Equal returns have no variance to explain, for as long as they are equal."""
    score = np.where(np.arange(40) >= 20, np.nan, 0.8)
    assert scored(tmp_path, "train/explained_variance", score, 1 / np.arange(1, 41)) == {"info"}
    failed = np.where(np.arange(40) >= 30, np.nan, 1.0)
    (tmp_path / "beside").mkdir()
    assert scored(tmp_path / "beside", "train/explained_variance", score, failed) == {"error"}


def test_a_score_beside_a_loss_that_fails_is_an_error(tmp_path):
    """With a loss that is NaN as well, it is no matter of the score."""
    assert scored(tmp_path, "val_auroc", UNDEFINED, np.where(UNDEFINED > 0, 0.5, np.nan)) == {"error"}


def evaluations(folder, bad, rows=40):
    """The severities of the findings about `val_loss`, NaN at these evaluations of a run whose training is sound."""
    lines = [f"{i},{1 / (i + 1)}," for i in range(rows * 5)]
    for i in range(rows):
        lines[5 * i + 4] += "nan" if i in bad else str(1.1 / (5 * i + 1))
    (folder / "metrics.csv").write_text("step,loss,val_loss\n" + "\n".join(lines) + "\n")
    [run] = postmortem.scan(folder).runs
    return [(f.severity, f.step) for f in run.findings if f.name == "nan-onset"], run


@pytest.mark.parametrize(
    ("bad", "severity"),
    [({20}, "info"), ({38}, "warning"), (set(range(3, 30, 3)), "warning"), (set(range(20, 40)), "error")],
)
def test_an_evaluation_that_is_finite_again(tmp_path, bad, severity):
    """A NaN of one evaluation, in a training that is always finite, is information; of many, a warning; to the end, an
    error. The step is that of the evaluation."""
    found, run = evaluations(tmp_path, bad)
    assert found == [(severity, 5 * min(bad) + 4)]
    assert run.diagnosis is None if severity == "info" else run.diagnosis.name == "evaluation-nan"


def frozen_mean(folder, words):
    """A log that prints a running mean, which takes up no NaN, every 20 iterations; `words` at iteration 340."""
    total = count = 0.0
    with (folder / "train.log").open("w") as log:
        for i in range(1, 1001):
            if i < 340:
                total, count = total + 0.3 + 2 * np.exp(-i / 100) + 0.05 * np.sin(i * i), count + 1
            if i == 340:
                log.write(words + "\n")
            if i % 20 == 0:
                log.write(f"iter {i} avg_loss {total / count:.5f} lr 1e-3\n")
    [run] = postmortem.scan(folder).runs
    return run


@pytest.mark.parametrize("words", ["loss became NaN at iter 340", "WARNING: nan detected at iteration 340"])
def test_words_beside_a_mean_that_stands_still(tmp_path, words):
    """The report in words is the root, an error with its step; the mean that stands still is its consequence."""
    run = frozen_mean(tmp_path, words)
    root = run.findings[0]
    assert (root.name, root.severity, root.step) == ("nan-onset", "error", 340)
    still = [f for f in run.findings if f.name == "constant-metric"]
    assert [f.because_of for f in still] == [root.id]


def test_a_mean_that_stands_still_without_words(tmp_path):
    """Without a report it is a metric that does not change, and no NaN."""
    run = frozen_mean(tmp_path, "saving a checkpoint at iter 340")
    assert "nan-onset" not in {f.name for f in run.findings}
    assert "constant-metric" in {f.name for f in run.findings}


@pytest.mark.parametrize(("tag", "severity"), [("valid_loss_att", "info"), ("valid_att_loss", "error")])
def test_a_part_of_the_loss_that_the_model_does_not_have(tmp_path, tag, severity):
    """Without a decoder its part of the loss is never a number, and the whole is."""
    loss = np.linspace(3.0, 1.0, 30)
    rows = (f"{i},{x},{y},nan\n" for i, (x, y) in enumerate(zip(loss, 1.2 * loss, strict=True)))
    (tmp_path / "metrics.csv").write_text(f"step,loss,valid_loss,{tag}\n" + "".join(rows))
    [run] = postmortem.scan(tmp_path).runs
    assert [f.severity for f in run.findings if f.name == "nan-onset"] == [severity]


def test_a_loss_that_was_nan_in_an_earlier_attempt_is_info(tmp_path):
    """Its steps were logged again with finite losses; that it failed before is told with its step."""
    row = "step {} loss {}\n".format
    first = [row(i, "nan" if i >= 40 else 2 - i / 100) for i in range(0, 60, 2)]
    (tmp_path / "train.log").write_text("".join(first + [row(i, 2 - i / 100) for i in range(0, 100, 2)]))
    [run] = postmortem.scan(tmp_path).runs
    assert [(f.severity, f.step) for f in run.findings if f.name == "nan-onset"] == [("info", 40)]


@pytest.mark.parametrize(
    ("last", "says"), [(np.nan, "from step 191 to the end none is finite"), (1.0, "from step 199 to the end it is")]
)
def test_finite_batches_among_nan_are_no_recovery(last, says, view_of):
    """In fp16 a few small batches do not overflow. What follows is told by how the log ends."""
    loss = 1 / np.arange(10, 210)
    loss[100:] = np.nan
    loss[110:195:10], loss[-1] = 3.0, last
    view = view_of({"loss": loss})
    (found,) = NanOnset().detect(view)
    assert found.step == 100
    assert says in found.message
    assert found.evidence["finite_after"] == np.isfinite(last)
    # these points are no level of a loss from which something could jump or climb
    assert not [*LossSpike().detect(view), *Divergence().detect(view)]
