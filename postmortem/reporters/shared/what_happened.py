"""What happened at a culprit, in a plain sentence: operation, value, step and sample, as far as the replay saw them.

Each sentence follows from the statistics of the operator's inputs and output alone. Where they leave it open, the words
are those of the cause.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from postmortem.core.model import DEATH, MASKED, RATE, RISE
from postmortem.core.printable import listed, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.core.culprit import Culprit

    Stats = Mapping[str, Any]

CAUSES = {
    "bad-input": "the batch contains values that the step cannot handle",
    "bad-parameter": "the model or optimizer state was non-finite before the step",
    "forward-op": "an operator in the forward pass",
    "backward-singularity": "an operator whose derivative is non-finite for this input",
    "dtype-overflow": "a value too large for its dtype",
    "loss-scale": "the loss scale is too large",
    "optimizer-update": "the optimizer update",
    "divergence": "the training diverged: the updates are too large",
    "layout": "a gradient whose strides differ from those of its parameter",
    "transient": "a failure that did not recur: a hardware fault or a race condition",
    "outlier-sample": "samples of one batch carry the rise",
    "exploding-layer": "one layer whose gain grows out of its course",
    "dead-layer": "a layer that does not learn",
    "learning-rate-zero": "the learning rate is zero",
    "none": "nothing found",
}
SHOWN = 5  # samples named
_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308}
_POLES = {"log": "-inf", "log2": "-inf", "log10": "-inf", "rsqrt": "inf", "reciprocal": "inf"}
"""Operators that are infinite at 0."""
_NOT_BELOW_ZERO = ("log", "log2", "log10", "sqrt", "rsqrt")
_GROWING = ("exp", "exp2", "expm1", "sinh", "cosh")
"""Operators without a pole, whose result is infinite only where it is too large for its dtype."""


TOLD = (RATE, RISE, DEATH)
"""Keys of `Culprit.tensor` whose value is the sentence that says what happened."""


class Incident(NamedTuple):
    """What an operator did. name: in a few words, "log(0)"; detail: the numbers that show it."""

    name: str
    detail: str


def incident(c: Culprit) -> Incident | None:
    """What the operator at fault did in the forward pass; None where its numbers do not show it."""
    inputs: list[Stats] = list(c.tensor.get("inputs") or ())
    out: Stats = c.tensor.get("output") or {}
    op = (c.op or "").rpartition("::")[2].strip("_")
    if c.phase == "forward" and inputs and inputs[0].get(MASKED):
        return _all_masked(op, inputs[0])
    if c.phase != "forward" or not op or not inputs or not out or any(i.get("nan") or i.get("inf") for i in inputs):
        return None
    if op in ("div", "true_divide", "divide"):
        return _division(inputs, out)
    return _at_zero(op, inputs[0], out) or _below_zero(op, inputs[0], out) or _too_large(op, inputs[0], out)


def _all_masked(op: str, given: Stats) -> Incident:
    rows = f"in {given[MASKED]:,} of the {given['rows']:,} rows that {op} received every value is -inf (fully masked)"
    return Incident(f"{op} of a fully masked row", f"{rows}, and {op} of such a row is NaN")


def _division(inputs: list[Stats], out: Stats) -> Incident | None:
    if len(inputs) != 2 or not inputs[1].get("zeros"):
        return None
    divisor = f"{_of(inputs[1], 'zeros')} of the divisor"
    if out.get("inf"):
        return Incident("division by 0", f"{divisor} {_are(inputs[1]['zeros'])} 0")
    return Incident("0/0", f"{divisor} {_are(inputs[1]['zeros'])} 0 where what is divided is 0 as well, and 0/0 is NaN")


def _at_zero(op: str, given: Stats, out: Stats) -> Incident | None:
    if op not in _POLES or not given.get("zeros") or not out.get("inf"):
        return None
    received = f"{_of(given, 'zeros')} that {op} received {_are(given['zeros'])} 0"
    return Incident(f"{op}(0)", f"{received}, and {op}(0) is {_POLES[op]}")


def _below_zero(op: str, given: Stats, out: Stats) -> Incident | None:
    low = given.get("min")
    if op not in _NOT_BELOW_ZERO or not out.get("nan") or not isinstance(low, float | int) or not low < 0:
        return None
    return Incident(f"{op} of a negative number", f"{op} received values down to {number(low)}, and is NaN below 0")


def _too_large(op: str, given: Stats, out: Stats) -> Incident | None:
    largest, dtype = _LARGEST.get(str(out.get("dtype"))), out.get("dtype")
    if op not in _GROWING or not out.get("inf") or largest is None or given.get("max") is None:
        return None
    received = f"{op} received values up to {number(given['max'])}"
    return Incident(f"overflow in {op}", f"{received}, and {dtype} ends at {number(largest)}")


def _of(stats: Stats, what: str) -> str:
    """ "16 of the 512 values"."""
    shape = stats.get("shape")
    every = f" of the {math.prod(shape):,}" if shape else ""
    return f"{stats[what]:,}{every} values" if every or stats[what] != 1 else "1 value"


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def samples_of(c: Culprit, most: int = SHOWN) -> str:
    """ "sample 30 of the batch"; empty where no particular ones are at fault."""
    if not c.samples:
        return ""
    listed = ", ".join(map(str, c.samples[:most]))
    more = f" and {len(c.samples) - most:,} more" if len(c.samples) > most else ""
    return f"{'sample' if len(c.samples) == 1 else 'samples'} {listed}{more} of the batch"


def happened(c: Culprit) -> str:
    """One sentence: "log(0) at step 156, in sample 30 of the batch: 16 of the 512 values that log received are 0"."""
    met = incident(c)
    what = met.name if met else _in_general(c)
    at = f" at step {c.step}" if c.step is not None and not is_told(c) else ""
    samples = samples_of(c)
    return f"{what}{at}{f', in {samples}' if samples else ''}{f': {met.detail}' if met else ''}"


def is_told(c: Culprit) -> bool:
    """Whether the culprit has a sentence of its own, which names its steps."""
    return any(key in c.tensor for key in TOLD)


def _in_general(c: Culprit) -> str:
    """Operator and kind of value, where only these are known; how the learning rate rose, where that is the cause."""
    if (told := next((c.tensor[key] for key in TOLD if key in c.tensor), None)) is not None:
        return str(told)
    out: Stats = c.tensor.get("output") or {}
    kinds = [kind for kind in ("nan", "inf") if out.get(kind)]
    if c.phase == "forward" and c.op and kinds:
        words = {"nan": "NaN", "inf": "infinite"}
        op = c.op.rpartition("::")[2]
        return f"{op} gave {' and '.join(words[k] for k in kinds)} values"
    if c.phase == "forward" and c.op:
        return f"{c.op.rpartition('::')[2]} gave the first non-finite value"
    if c.phase == "backward" and c.op:
        return f"the derivative of {c.op.rpartition('::')[2]} is not finite"
    if (held := c.tensor.get("checkpoint")) is not None:
        return f"{held} already holds non-finite values in {listed(c.tensor['non_finite'])}"
    if c.phase == "parameters" and c.param:
        return f"{c.param} was not finite before the step"
    return CAUSES.get(c.cause, c.cause)
