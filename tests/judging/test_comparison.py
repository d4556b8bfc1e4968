"""Comparing two runs: the exact step of parting, noise, settings."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

import postmortem


def write(folder, values, config=None, lr=0.1):
    folder.mkdir(parents=True)
    rows = "".join(f"{i},{v!r},{lr}\n" for i, v in enumerate(values))
    (folder / "metrics.csv").write_text("step,loss,lr\n" + rows)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def curve():
    return (2.0 / (1 + np.arange(200) / 50) + np.random.default_rng(0).normal(0, 0.01, 200)).round(6).tolist()


def test_equal_runs_do_not_part(tmp_path, curve, postmortem):
    """Two runs with the same numbers, NaN included, are the same: exit code 0."""
    values = [*curve[:100], math.nan, *curve[100:]]
    called = postmortem("compare", write(tmp_path / "a", values), write(tmp_path / "b", values))
    assert called.code == 0
    assert "identical in all 2 common metrics" in called.out


def test_first_exact_step_and_first_beyond_noise(tmp_path, curve, postmortem):
    """A difference in the last digit sets the step; the step of the lasting difference is reported as well."""
    other = [v + (1e-6 if i >= 40 else 0) + (0.5 if i >= 120 else 0) for i, v in enumerate(curve)]
    called = postmortem("compare", write(tmp_path / "a", curve), write(tmp_path / "b", other), "--format", "json")
    first = json.loads(called.out)["first"]
    assert called.code == 1
    assert (first["tag"], first["exact_step"], first["beyond_noise_step"]) == ("loss", 40, 120)


@pytest.mark.parametrize(
    ("same", "said"),
    [
        (0, "the losses differ from the first common step on, so that they do not tell"),
        (1, "an equal loss at the first common step suggests the same order there"),
        (40, "equal losses at the first 40 common steps suggest the same order there"),
    ],
)
def test_the_order_of_the_data_is_claimed_only_where_losses_are_equal(tmp_path, curve, same, said):
    """No log names the order; equal losses suggest it, as far as they are equal."""
    other = [v + (0.01 if i >= same else 0) for i, v in enumerate(curve)]
    found = postmortem.compare(write(tmp_path / "a", curve), write(tmp_path / "b", other))
    assert found.not_known[-1] == f"data order: not logged; {said}"


def test_two_runs_of_one_name_are_told_by_their_paths(tmp_path, curve):
    """As of Lightning's version_0 below two folders."""
    paths = [write(tmp_path / of / "version_0", curve) for of in ("a", "b")]
    found = postmortem.compare(*paths)
    assert (found.a, found.b) == tuple(map(str, paths))


def test_settings_that_differ(tmp_path, curve):
    """Nested settings are compared by their flattened keys."""
    a = write(tmp_path / "a", curve, {"optim": {"lr": 0.1, "beta": 0.9}, "seed": 1})
    b = write(tmp_path / "b", curve, {"optim": {"lr": 0.3, "beta": 0.9}, "seed": 1})
    from postmortem.api import compare

    found = compare(postmortem.load(a), postmortem.load(b))
    assert found.settings == {"optim/lr": (0.1, 0.3)}


def test_nothing_in_common(tmp_path, postmortem):
    """Two logs without a common step cannot be compared: exit code 3."""
    (tmp_path / "a.csv").write_text("step,loss\n1,2.0\n2,1.9\n")
    (tmp_path / "b.csv").write_text("step,loss\n11,2.0\n12,1.9\n")
    called = postmortem("compare", tmp_path / "a.csv", tmp_path / "b.csv")
    assert called.code == 3
    assert "nothing to compare" in called.out


def test_how_far_a_run_came_is_no_setting(tmp_path):
    """Two logs that announce the same plan have the same settings, where one of them ends earlier, too."""
    from postmortem.api import compare

    for name, rows in (("a", 40), ("b", 50)):
        (tmp_path / f"{name}.out").write_text("".join(f"step {i}/100 loss {2 / (1 + i):.4f}\n" for i in range(rows)))
    assert compare(postmortem.load(tmp_path / "a.out"), postmortem.load(tmp_path / "b.out")).settings == {}


def test_runs_that_count_epochs_differ_at_an_epoch(tmp_path):
    """Nothing calls what the logs count as epochs a step."""
    for name, change in (("a", 0.0), ("b", 0.5)):
        rows = [f"Epoch {e}: train loss {2 / e + (change if e > 6 else 0):.4f}" for e in range(1, 13)]
        (tmp_path / f"{name}.log").write_text("\n".join(rows) + "\n")
    found = postmortem.compare(*(postmortem.load(tmp_path / f"{name}.log") for name in "ab"))
    assert "first differs from a.log at epoch 7" in found.summary()
    assert " step " not in str(found)


def test_settings_that_only_one_run_logged_are_not_said_to_differ(tmp_path, curve):
    """A run without a configuration may have had the same one; it is told as unknown."""
    from postmortem.api import compare

    a = write(tmp_path / "a", curve)
    b = write(tmp_path / "b", curve, {"seed": 1})
    found = compare(postmortem.load(a), postmortem.load(b))
    assert found.settings == {}
    assert any(what.startswith("configuration: not logged by a") for what in found.not_known)


def test_of_several_first_differences_the_schedule_is_told(tmp_path, curve, postmortem):
    """A learning rate that was set explains a loss that differs at the same step."""
    a = write(tmp_path / "a", curve)
    b = write(tmp_path / "b", [v * 2 for v in curve], lr=0.3)
    assert "the runs first differ at step 0: lr 0.1 vs. 0.3" in postmortem("compare", a, b).out


def test_the_pairing_of_two_names_is_shown(tmp_path, curve):
    """Series of one role are compared whatever their names, and both names are told."""
    write(tmp_path / "a", curve)
    (tmp_path / "b.log").write_text("".join(f"step {k} train_loss {v * 2:.6f}\n" for k, v in enumerate(curve)))
    found = postmortem.compare(postmortem.load(tmp_path / "a"), postmortem.load(tmp_path / "b.log"))
    assert re.search(r"step 0: loss [\d.]+ vs\. train_loss [\d.]+;", str(found)), str(found)
    assert re.search(r"\(train_loss [\d.]+ instead of loss [\d.]+\)", found.summary())


@pytest.mark.parametrize(("above", "told"), [(0.02, "higher by 0.02"), (-0.02, "lower by 0.02"), (0.0, None)])
def test_a_small_difference_of_one_sign_is_told(tmp_path, above, told):
    """Each step is within the noise of the steps, but the mean difference of 300 steps is not."""
    rng = np.random.default_rng(1)
    base = 0.5 + 0.1 * rng.standard_normal(300)
    write(tmp_path / "a", base.tolist())
    write(tmp_path / "b", (base + above + 0.03 * rng.standard_normal(300)).tolist())
    found = postmortem.compare(postmortem.load(tmp_path / "a"), postmortem.load(tmp_path / "b"))
    [line] = [line for line in str(found).splitlines() if line.startswith("  step 0: loss")]
    assert "; within noise from step to step" in line
    assert (told is None) == ("on average" not in line)
    assert told is None or told in line


def test_which_of_several_losses_is_equal_is_told(tmp_path):
    """The total differs at once, as a weight does, and one of its terms does not."""
    for name, weight in (("a", 1), ("b", 2)):
        rows = "".join(f"{k},{3 + weight * 0.1},{3 - k / 100 * weight}\n" for k in range(60))
        (tmp_path / f"{name}.csv").write_text("step,loss,recon_loss\n" + rows)
    found = postmortem.compare(postmortem.load(tmp_path / "a.csv"), postmortem.load(tmp_path / "b.csv"))
    assert any("an equal recon_loss at the first common step suggests" in what for what in found.not_known)
