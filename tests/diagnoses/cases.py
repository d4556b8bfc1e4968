"""Cases of diagnoses: a function of `course` that returns the tags of the run.

`tells` takes the name and step of the root finding and, where it is not the cause's own, the name of the story; `quiet`
is a run that resembles the cause and has another story or none. Both take arguments of `Run`, such as
``ended="crashed"``.
"""

from __future__ import annotations

import numpy as np

from tests.cases import case

T = np.arange(400)
"""Steps of the stable course."""

tells = case("tells")
quiet = case("quiet")


def from_(at, value):
    """A change: `value` (a number or a function of the values) from point `at` on."""

    def change(x):
        x[at:] = value(x[at:]) if callable(value) else value
        return x

    return change


def at_(at, factor):
    """A change that multiplies the values at an index or slice."""

    def change(x):
        x[at] *= factor
        return x

    return change


def grow(at, pace):
    """A change: exponential growth from point `at` on, e-fold in `pace` points."""
    return from_(at, lambda x: x * np.exp(np.minimum(np.arange(len(x)) / pace, 12)))


RATE_RAMP = from_(150, lambda x: x * 1.02 ** np.arange(len(x)))
NAN_FROM_200 = {"loss": from_(200, np.nan), "grad_norm": from_(200, np.nan), "val_loss": from_(20, np.nan)}
