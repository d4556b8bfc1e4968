"""A quantity that should vary and does not."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.constant_metric import ConstantMetric
from tests.detectors.cases import N, fires, quiet


@fires(ConstantMetric, step=9)
def an_accuracy_that_is_bit_identical(base):
    return base | {"val_acc": (np.arange(9, N, 10), np.full(40, 0.117))}


@quiet(ConstantMetric)
def an_accuracy_of_few_digits(base):
    """Rounded to two digits a slow rise repeats its values, but moves on."""
    return base | {"val_acc": (np.arange(9, N, 10), np.round(0.5 + np.arange(40) / 200, 2))}
