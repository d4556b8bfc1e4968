"""A loss that jumps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postmortem.core.printable import number
from postmortem.core.series import Series
from postmortem.detectors.divergence import Divergence
from postmortem.detectors.loss_plateau import LossPlateau
from postmortem.detectors.loss_spike import _STAYS, LossSpike, _lost_for_good
from postmortem.detectors.shared.excursions import WINDOW, _residuals
from tests.detectors.cases import fires, noise, quiet, scale, spoiled


@fires(LossSpike, step=200)
def three_rows_five_times_the_level(base):
    return spoiled(base, "train/loss", scale(slice(200, 203), 5.0))


@quiet(LossSpike)
def noise_without_an_outlier(base):
    return base | {"train/loss": base["train/loss"] * noise(0.3)}


@pytest.mark.parametrize(("after", "severity"), [(2.3, "error"), (0.4, "warning")])
def test_a_high_peak_does_not_hide_a_loss_that_stays_up(after, severity, view_of):
    """A loss that leaps to 40 and then stays at chance has not recovered, small as chance is beside 40."""
    loss = 0.3 * noise(0.05, 200)
    loss[120], loss[121:] = 40.0, after * noise(0.02, 79, seed=2)
    (found,) = LossSpike().detect(view_of({"loss": loss}))
    assert (found.step, found.severity) == (120, severity)


def test_a_critic_that_swings_about_zero(view_of):
    """The losses of a Wasserstein GAN rise and fall slowly and change their sign: no spike. One far above all before
    is."""
    t = np.arange(350)
    rng = np.random.default_rng(1)
    critic = np.cos(t / 25) * np.exp(-t / 150) + 0.05 * rng.standard_normal(350)
    tags = {"loss/critic": critic, "loss/gen": -critic + 0.05 * rng.standard_normal(350)}
    assert not list(LossSpike().detect(view_of(tags)))
    critic[200] = 60.0
    assert [f.step for f in LossSpike().detect(view_of(tags))] == [200]


def _jumps(at, every=10, n=600):
    """A loss, logged every `every` steps, that jumps at these steps and recovers within a few rows."""
    step = np.arange(n) * every
    loss = (0.3 * np.exp(-step / 3000) + 0.05) * noise(0.04, n)
    for first in at:
        row = first // every
        loss[row : row + 5] *= np.array([6.0, 4.0, 2.5, 1.8, 1.4])
    return step, loss


@pytest.mark.parametrize(
    ("at", "severities"),
    [
        ((1500, 3000, 4500), {"info"}),
        ((1500, 4500, 3000), {"info"}),
        ((1170, 2670, 4170), {"warning"}),  # of equal distance, with an offset: a batch of each epoch
        ((1500, 3000), {"warning"}),
        ((1500, 3000, 4100), {"warning"}),
    ],
)
def test_what_a_program_does_every_n_steps_is_no_accident(at, severities, view_of):
    """Three jumps and more at the multiples of one number, each of which recovers: a reset of the opacity in Gaussian
    splatting, of a buffer, of a schedule that is not logged."""
    found = list(LossSpike().detect(view_of({"loss": _jumps(at)})))
    assert {f.step for f in found} == set(at)
    assert {f.severity for f in found} == severities
    assert all(("multiples of 1500 steps" in f.message) == (severities == {"info"}) for f in found)


@pytest.mark.parametrize(("weight", "severities"), [(True, {"info"}), (False, {"error"})])
def test_the_start_of_a_rise_with_the_weight_of_a_term(weight, severities, view_of):
    """A VAE whose KL weight goes from 0 to 2: the loss rises with it, fast at first. Without that it is a fault."""
    step = np.arange(150)
    beta = np.clip((step - 30) / 70, 0, 1) * 2.0
    loss = (3.0 * np.exp(-step / 10) + 2.6 + 7 * np.sqrt(beta)) * noise(0.02, 150)
    tags = {"loss": loss} | ({"beta": beta} if weight else {})
    found = list(LossSpike().detect(view_of(tags)))
    assert {f.severity for f in found} == severities


@pytest.mark.parametrize(("stays", "found"), [(True, 1), (False, 0)])
def test_a_small_ratio_that_gives_back_what_was_learned(stays, found, view_of):
    """A loss of nats falls from 4.6 to 3.5 and jumps to 4.5: the weights are not those of before."""
    loss = (3.5 + 1.1 * np.exp(-np.arange(200) / 20)) * noise(0.004, 200)
    loss[120 : None if stays else 123] += 1.0
    assert [f.step for f in LossSpike().detect(view_of({"loss": loss}))] == [120] * found


def test_the_score_of_a_split_is_no_schedule(view_of):
    """PyTorch Geometric prints the scores of the splits by their names alone; they stand still with a dead model."""
    loss = 1.9 * noise(0.001, 200)
    loss[120] = 3.8
    score = np.where(np.arange(200) < 119, 0.15, 0.12)
    assert [f.severity for f in LossSpike().detect(view_of({"Loss": loss, "Test": score}))] == ["warning"]


def _once(n: int = 200, at: int = 120, factor: float = 6.0) -> np.ndarray:
    """A loss that jumps in one row."""
    loss = (0.3 + 2 * np.exp(-np.arange(n) / 30)) * noise(0.03, n)
    loss[at] *= factor
    return loss


def test_a_single_poor_evaluation_is_information(view_of):
    """The training goes on: a jump of the validation loss that is gone at the next evaluation cost nothing."""
    steps = np.arange(0, 2000, 10)
    (found,) = LossSpike().detect(
        view_of({"loss": (np.arange(2000), np.full(2000, 0.3)), "val_loss": (steps, _once())})
    )
    assert (found.tag, found.severity) == ("val_loss", "info")


@pytest.mark.parametrize(("end", "severity"), [(300.0, "info"), (20.0, "warning")])
def test_a_jump_that_costs_no_reward_is_information(view_of, end, severity):
    reward = np.interp(np.arange(200), [0, 100, 200], [20.0, 300.0, end])
    (found,) = LossSpike().detect(view_of({"train/loss": _once(factor=40.0), "rollout/ep_rew_mean": reward}))
    assert (found.step, found.severity) == (120, severity)


@pytest.mark.parametrize(("end", "severity"), [(28.0, "info"), (-1.0, "error")])
def test_the_loss_of_a_critic_grows_with_the_returns(view_of, end, severity):
    """It stays at its level of the first returns that are no noise, as long as they rise."""
    rng = np.random.default_rng(5)
    value = np.where(np.arange(100) < 20, 7e-4, 0.25) * np.exp(0.3 * rng.standard_normal(100))
    reward = np.interp(np.arange(100), [0, 20, 100], [-1.6, -1.2, end]) + 0.1 * rng.standard_normal(100)
    found = list(LossSpike().detect(view_of({"train/value_loss": value, "rollout/ep_rew_mean": reward})))
    assert [(f.step, f.severity) for f in found] == [(20, severity)]


@pytest.mark.parametrize(("evaluated", "severity"), [(119, "info"), (60, "warning")])
def test_a_printed_mean_that_starts_again_after_an_evaluation(view_of, evaluated, severity):
    """The first rows of an epoch are the mean of few batches."""
    evaluations = np.array([20, evaluated, 190])
    (found,) = LossSpike().detect(view_of({"loss": _once(factor=1.9), "val_acc": (evaluations, [0.5, 0.6, 0.7])}))
    assert (found.step, found.severity) == (120, severity)


def test_a_jump_that_stays_a_small_share_of_the_first_loss(view_of):
    """A loss near zero scatters by ratio: six times a thousandth is next to nothing of what was learned."""
    loss = np.maximum(np.exp(-np.arange(400) / 30.0), 1e-3) * np.exp(
        0.1 * np.random.default_rng(3).standard_normal(400)
    )
    for peak, severity in ((8e-3, "info"), (0.3, "warning")):
        spoilt = loss.copy()
        spoilt[320] = peak
        (found,) = LossSpike().detect(view_of({"loss": spoilt}))
        assert (found.step, found.severity) == (320, severity)


@pytest.mark.parametrize(("peak", "rows", "severity"), [(0.7, 1, "info"), (0.7, 8, "warning"), (1.9, 1, "warning")])
def test_a_jump_that_gives_back_little_of_what_was_learned(view_of, peak, rows, severity):
    """A person would not mention a loss of 0.3 that is 0.7 in one row of a training that began at 4."""
    loss = (0.3 + 3.7 * np.exp(-np.arange(300) / 20)) * noise(0.02, 300)
    loss[200 : 200 + rows] = peak
    (found,) = LossSpike().detect(view_of({"loss": loss}))
    assert (found.step, found.severity) == (200, severity)


def test_a_spike_before_non_finite_rows_is_not_at_the_end_of_the_log(view_of, healthy):
    """The finite rows end there, the log does not."""
    loss = np.asarray(healthy()["train/loss"]).copy()
    loss[-30:-26] = [150.0, 3e5, 1e14, 2e32]
    cut, whole = loss[:-26], loss.copy()
    whole[-26:] = np.nan
    (at_end,), (inside,) = (list(LossSpike().detect(view_of({"train/loss": x}))) for x in (cut, whole))
    assert "at the end of the log" in at_end.message
    assert f"and is non-finite after step {len(loss) - 27}" in inside.message


def test_a_jump_to_the_level_of_an_untrained_model_is_told_beside_a_noisy_loss(view_of):
    """The noise of a small loss hides the jump, the rows that stay up prove it. No plateau: it did not fall there."""
    rng = np.random.default_rng(0)
    t = np.arange(400)
    loss = (0.35 + 1.2 * np.exp(-t / 30)) * np.exp(0.4 * rng.standard_normal(400))
    loss[150:] = 1.6 * np.exp(0.04 * rng.standard_normal(250))
    view = view_of({"loss": loss})
    (found,) = LossSpike().detect(view)
    assert (found.step, found.severity) == (150, "error")
    assert f"jumps from {number(loss[149])} at step 149 to {number(loss[150])} at step 150" in found.message
    assert "does not recover" in found.message
    assert not list(LossPlateau().detect(view))
    loss[170:] = 0.4 * np.exp(0.4 * rng.standard_normal(230))
    assert not [f for f in LossSpike().detect(view_of({"loss": loss})) if f.severity == "error"]


def test_what_goes_on_for_long_is_not_at_the_end_of_the_log(view_of):
    """A training that diverges from step 125 of 200 on has its highest value later, and did not only just jump."""
    rng = np.random.default_rng(0)
    loss = 0.7 * np.exp(0.02 * rng.standard_normal(200))
    loss[125:] *= 2 * np.exp(np.minimum(np.arange(75) * 0.3, 15))
    view = view_of({"loss": loss})
    (rise,) = Divergence().detect(view)
    assert rise.step == 125
    for found in LossSpike().detect(view):
        assert "at the end of the log" not in found.message
        assert found.evidence["peak"] == loss[125:].max()


def test_one_evaluation_of_twenty_four_far_above_the_others(view_of):
    """A validation loss of few evaluations that jumps and comes back is worth a remark; one that stays is not this."""
    held_out = 0.7 * noise(0.03, 24)
    held_out[16] = 19.7
    tags = {"loss": (np.arange(600), noise(0.05, 600)), "val_loss": (np.arange(0, 600, 25), held_out)}
    (found,) = LossSpike().detect(view_of(tags))
    assert (found.tag, found.step, found.severity) == ("val_loss", 400, "info")
    assert "and has recovered by step 425" in found.message
    held_out[16:] = 19.7
    assert not list(LossSpike().detect(view_of(tags)))


@given(
    level=st.lists(st.integers(1, 40), min_size=12, max_size=90),
    jump=st.integers(0, 89),
    times=st.sampled_from([1, 2, 3, 9]),
)
def test_a_loss_that_is_lost_for_good_is_found_where_each_row_shows_it(level, jump, times):
    """The rows that are looked at are enough: the answer is that of trying one row after the other."""
    value = np.array(level, float)
    value[jump:] *= times
    columns = (np.arange(len(value)), value, np.full(len(value), np.nan))
    res = _residuals(Series("loss", "loss", -1, "text", *columns))
    start = 5

    def lost(at):
        before, first = value[max(0, at - WINDOW) : at], float(np.median(value[:3]))
        middle = float(np.median(before))
        half = middle + 0.5 * (first - middle)
        return value[at:].min() > max(half, 2 * middle) and before.max() < half

    expected = next((at for at in range(start + _STAYS, len(value) - _STAYS + 1) if lost(at)), None)
    found = _lost_for_good(res, start)
    assert (None if found is None else found.first) == expected


@pytest.mark.parametrize(("at", "found"), [(range(26, 400, 16), 1), (range(26, 400, 7), 0)])
def test_samples_that_are_far_off_whenever_they_are_drawn(at, found, view_of):
    """Many jumps to ten thousandfold that return at once are one finding, of the first; at each seventh step they are
    what the loss is like."""
    loss = 2.0 * noise(0.2, 400)
    loss[list(at)] = 3e4
    spikes = list(LossSpike().detect(view_of({"loss": loss})))
    assert [f.step for f in spikes] == [26] * found
    assert all(f.message.endswith("; 23 more such jumps up to step 394") for f in spikes)


def test_many_jumps_with_values_of_every_size_between(view_of):
    """A loss of single samples with a heavy tail, and one of few mistakes beside a level near zero: no spikes."""
    rng = np.random.default_rng(3)
    assert not list(LossSpike().detect(view_of({"loss": 0.01 * np.exp(3.0 * rng.standard_normal(600))})))
    near_zero = np.r_[2.3 * noise(0.05, 100), 1e-4 * noise(0.5, 500)]
    near_zero[110::20] = 4.0
    assert not [f for f in LossSpike().detect(view_of({"loss": near_zero})) if f.severity != "info"]


@pytest.mark.parametrize(("peak", "found"), [(0.0006, 0), (0.05, 1)])
def test_the_last_printed_digit_is_no_jump(peak, found, view_of):
    """A loss printed as 0.0000 and 0.0001 that becomes 0.0006 has not risen 'five hundred million times its noise'."""
    loss = np.tile([0.0, 0.0, 0.0001, 0.0], 100)
    loss[300:302] = peak
    assert len(list(LossSpike().detect(view_of({"loss": loss})))) == found


def test_the_printed_digits_are_counted_once_for_each_loss(monkeypatch, view_of):
    """A long loss with heavy tails has thousands of excursions: none of them goes through all values again."""
    asked = []
    monkeypatch.setattr("postmortem.detectors.loss_spike.decimals", lambda x: asked.append(len(x)) or 4)
    loss = 2.0 * noise(0.01, 3000)
    loss[50::50] *= 5.0
    list(LossSpike().detect(view_of({"loss": loss})))
    assert asked == [3000]


def test_a_jump_over_a_non_finite_point_says_so(view_of):
    """The rows of a jump are not neighbours if NaN lies between them."""
    loss = noise(0.02, 200)
    loss[100], loss[101:] = np.nan, 8.0
    (found,) = LossSpike().detect(view_of({"loss": loss}))
    assert found.step == 101
    assert "at step 101, over non-finite values in between, " in found.message


@pytest.mark.parametrize(("jump", "steps"), [(1.0, []), (3.0, [24])])
def test_a_smooth_hill_of_a_generator_is_no_jump(jump, steps, view_of):
    """Where the two losses of a GAN find their balance, one goes up and down in a smooth curve without noise, so that
    any hill is many times the noise. A jump is a step that is larger than the ones beside it."""
    t = np.arange(80)
    generator = 0.7 - 0.1 * np.exp(-(((t - 15) / 4) ** 2)) + 0.25 * np.exp(-(((t - 25) / 4) ** 2))
    generator *= 1 + 0.004 * np.sin(7.3 * t)
    generator[24:28] *= jump
    tags = {"Loss_D": 1.38 * noise(0.01, 80), "Loss_G": generator}
    assert [f.step for f in LossSpike().detect(view_of(tags))] == steps


@pytest.mark.parametrize(("at", "severity"), [(40, "info"), (500, "warning")])
def test_one_early_point_that_recovers_is_info(at, severity, view_of):
    """A Gaussian likelihood jumps at one sample while its variance still shrinks; later such a jump is looked at."""
    loss = 2 * np.exp(-np.arange(900) / 15) - 1.6 + 0.05 * np.random.default_rng(3).standard_normal(900)
    loss[at] = 0.2
    (found,) = LossSpike().detect(view_of({"train/nll": loss}))
    assert (found.step, found.severity) == (at, severity)


def test_a_loss_that_comes_back_as_far_as_it_used_to_scatter(view_of):
    """After the jump the loss is where it was, as far as its noise shows: a warning, no lasting loss."""
    rng = np.random.default_rng(3)
    loss = 3.0 + 5 * np.exp(-np.arange(320) / 6) + rng.normal(0, 0.45, 320)
    loss[80:120] = np.linspace(13, 5, 40) + rng.normal(0, 0.6, 40)
    loss[120:] += 0.12
    (found,) = LossSpike().detect(view_of({"loss": loss}))
    assert (found.step, found.severity) == (80, "warning")


def test_the_first_row_after_the_summary_of_an_epoch(view_of):
    """A mean that starts again there is high for a row. At another row it is a spike."""
    loss = (2 + 6 * np.exp(-np.arange(400) / 40)) * noise(0.03, 400)
    for at in (200, 300):
        loss[at] *= 3.5
    summaries = (np.array([99, 200, 300, 399]), np.array([3.0, 2.1, 2.0, 2.0]))
    tags = {"Training Loss": loss, "Average Training Loss": summaries}
    assert {f.severity for f in LossSpike().detect(view_of(tags))} == {"info"}
    loss[250], loss[300] = loss[250] * 3.5, loss[300] / 3.5
    assert "warning" in {f.severity for f in LossSpike().detect(view_of(tags))}


def test_numbered_parts_beside_the_whole_are_not_judged(view_of):
    """The quarter of a loss with the highest noise level scatters as it likes; without the whole it is judged."""
    quarter = spoil = 0.05 * noise(0.05)
    spoil[200:203] *= 5
    parts = {"mse_q2_mean": quarter, "lr": np.full(400, 0.1)}
    assert [f.step for f in LossSpike().detect(view_of(parts))] == [200]
    assert not list(LossSpike().detect(view_of(parts | {"mse_mean": 0.06 * noise(0.05, seed=2)})))


def test_a_loss_at_its_floor_has_no_noise(view_of):
    """Nearly all rows print 0.0497: any other number is a jump of many times the noise, and a remark."""
    loss = np.full(150, 0.0497)
    loss[:8] = (0.0511, 0.0506, 0.0541, 0.0955, 0.05, 0.0501, 0.0511, 0.0503)
    loss[10::7] = 0.0496
    loss[41] = 0.0902
    assert {f.severity for f in LossSpike().detect(view_of({"loss": loss}))} <= {"info"}


@pytest.mark.parametrize(("held_out", "severity"), [(1.6, "info"), (2.4, "error")])
def test_a_loss_that_stays_up_while_no_validation_loss_rises(view_of, held_out, severity):
    """What the model is trained on has changed, such as an augmentation that ends; the model has not."""
    loss = (0.6 + 2 * np.exp(-np.arange(100) / 15)) * noise(0.01, 100)
    loss[91:] *= 2
    validation = np.where(np.arange(100) < 91, 1.6, held_out) * noise(0.02, 100)
    found = next(LossSpike().detect(view_of({"train/box_loss": loss, "val/box_loss": validation})))
    assert (found.step, found.severity) == (91, severity)
