"""Cases of detectors: a function of the healthy training's {tag: values} that returns the tags of the run.

`fires` takes the step of the first finding (None: any); both take arguments of `make_view`, such as ``ended="hung"``.
"""

from __future__ import annotations

import numpy as np

from tests.cases import case

N = 400
"""Steps of the healthy training."""

fires = case("fires")
quiet = case("quiet")


def spoiled(base, tag, change):
    """`base` with the values of one tag changed in place by `change(values)`."""
    step, value = base[tag] if isinstance(base[tag], tuple) else (np.arange(len(base[tag])), base[tag])
    value = value.copy()
    change(value)
    return base | {tag: (step, value)}


def put(at, value):
    """A change that sets the values at an index or slice."""

    def change(x):
        x[at] = value

    return change


def scale(at, factor):
    """A change that multiplies the values at an index or slice."""

    def change(x):
        x[at] = x[at] * factor

    return change


def noise(level=0.05, n=N, seed=1):
    """Factors around 1: log-normal noise of that standard deviation in the log."""
    return np.exp(level * np.random.default_rng(seed).standard_normal(n))
