"""A training that guesses from one row to the next."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.constant_output import ConstantOutput
from tests.diagnoses.cases import from_, quiet, tells

CLASSES = {"num_classes": 10}
NOISE = np.random.default_rng(5).standard_normal(400)


def at_chance(x):
    """The loss of guessing among ten classes, with the noise of batches."""
    return np.log(10) + 0.01 * NOISE[-len(x) :]


@tells(ConstantOutput, root="divergence", config=CLASSES)
def a_network_that_dies_with_a_loss_near_zero(course):
    return {"loss": np.concatenate([0.02 * np.exp(NOISE[:60]), at_chance(NOISE)])}


@tells(ConstantOutput, root="loss-spike", config=CLASSES)
def a_network_that_dies_beside_a_calm_gradient(course):
    return course(loss=from_(150, at_chance))


@tells(ConstantOutput, root="loss-spike", config=CLASSES)
def a_network_that_dies_with_a_leap_of_its_gradient(course):
    """Only the last bias gets a gradient then, of a loss that is a hundred times as high."""
    loss = np.concatenate([0.02 * np.exp(0.3 * NOISE[:150]), at_chance(NOISE[:250])])
    grad_norm = np.concatenate([0.02 * np.exp(0.3 * NOISE[150:300]), 0.4 * np.exp(0.1 * NOISE[:250])])
    return course(grad_norm=lambda x: grad_norm) | {"loss": loss}


@quiet(ConstantOutput, config=CLASSES)
def a_loss_that_explodes_before_it_guesses(course):
    """An update that was too large leaves a dead network as well: what is to change is the learning rate."""

    def exploded(x):
        x = at_chance(x)
        x[:3] = [15.0, 300.0, 40.0]
        return x

    return course(loss=from_(150, exploded))


@quiet(ConstantOutput, config=CLASSES)
def a_loss_that_climbs_to_the_level_of_guessing(course):
    return course(
        loss=from_(150, lambda x: np.interp(np.arange(len(x)), [0, 40], [0.8, np.log(10)]) + 0.01 * NOISE[150:])
    )


def test_the_advice_fits_a_dead_network(story, course):
    """Neither a warm-up nor a longer training helps, and dead units are named."""
    told = story(course(loss=from_(150, at_chance)), config=CLASSES).diagnosis
    assert (told.name, told.strength, told.last_good_step) == ("constant-output", "likely", 149)
    assert "dead units" in told.next[0]
    assert not any("warm" in line for line in told.next)
