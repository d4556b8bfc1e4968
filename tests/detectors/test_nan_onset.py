"""The first NaN of a quantity."""

from __future__ import annotations

import numpy as np
import pytest

import postmortem
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
