"""What happened at a culprit, told from the numbers of its operator and no more surely than they allow."""

from __future__ import annotations

import pytest

from postmortem.core.culprit import Culprit
from postmortem.reporters.shared.what_happened import happened, incident


def stats(shape=(4, 8), **numbers):
    return {"shape": list(shape), "dtype": "float32", "min": 0.5, "max": 2.0, "zeros": 0, "nan": 0, "inf": 0, **numbers}


def culprit(op, *inputs, output, **fields):
    tensor = {"inputs": list(inputs), "output": output}
    return Culprit(**{"cause": "forward-op", "phase": "forward", "op": op, "tensor": tensor, **fields})


@pytest.mark.parametrize(
    ("found", "name", "detail"),
    [
        (
            culprit("log", stats(zeros=3, min=0.0), output=stats(inf=3)),
            "log(0)",
            "3 of the 32 values that log received",
        ),
        (culprit("rsqrt", stats(zeros=1, min=0.0), output=stats(inf=1)), "rsqrt(0)", "1 of the 32 values that rsqrt"),
        (culprit("sqrt", stats(min=-0.25), output=stats(nan=2)), "sqrt of a negative number", "down to -0.25"),
        (culprit("log", stats(zeros=3, min=-1.0), output=stats(nan=2)), "log of a negative number", "NaN below 0"),
        (
            culprit("div", stats(zeros=8), stats((4, 1), zeros=1), output=stats(nan=8)),
            "0/0",
            "1 of the 4 values of the divisor is 0 where what is divided is 0 as well",
        ),
        (culprit("div", stats(), stats(zeros=2), output=stats(inf=2)), "division by 0", "2 of the 32 values"),
        (
            culprit("aten::exp", stats(max=120.0), output=stats(inf=1)),
            "overflow in exp",
            "up to 120, and float32 ends at",
        ),
    ],
)
def test_operation_and_value_are_named(found, name, detail):
    """In a few words, with the numbers that show it."""
    met = incident(found)
    assert met.name == name
    assert detail in met.detail


@pytest.mark.parametrize(
    "found",
    [
        culprit("log", stats(zeros=3, nan=1), output=stats(nan=1, inf=3)),
        culprit("log", stats(), output=stats(inf=1)),
        culprit("log", stats(zeros=3), output=stats(nan=1)),
        culprit("sqrt", stats(zeros=3, min=0.0), output=stats(inf=1), phase="backward"),
        culprit("div", stats(zeros=1), output=stats(nan=1)),
        culprit("div", stats(), stats(), output=stats(inf=1)),
        culprit("mul", stats(), stats(), output=stats(inf=1)),
        culprit("log", output={}),
        Culprit(cause="divergence", phase="optimizer", tensor={"kind": "x"}),
    ],
)
def test_nothing_is_said_that_the_numbers_do_not_show(found):
    """A non-finite input, a backward pass, an operand that is not known, a result that does not fit."""
    assert incident(found) is None


def test_the_sentence_names_step_and_samples():
    """Many samples are counted; without numbers, the operator and the kind of value, else the cause."""
    log = {"output": stats(inf=3), "step": 7}
    one = culprit("log", stats(zeros=3), samples=(30,), **log)
    assert happened(one).startswith("log(0) at step 7, in sample 30 of the batch: 3 of the 32 values that log received")
    many = culprit("log", stats(zeros=3), samples=tuple(range(9)), **log)
    assert ", in samples 0, 1, 2, 3, 4 and 4 more of the batch: " in happened(many)
    assert happened(culprit("mul", stats(), output=stats(inf=1), step=7)) == "mul gave infinite values at step 7"
    assert happened(Culprit(cause="divergence", phase="optimizer", op="step")).startswith("the training diverged")
    bare = Culprit(cause="forward-op", phase="forward", op="aten::sqrt", step=7)
    assert happened(bare) == "sqrt gave the first non-finite value at step 7"
    backward = Culprit(cause="backward-singularity", phase="backward", op="sqrt", samples=(2,))
    assert happened(backward) == "the derivative of sqrt is not finite, in sample 2 of the batch"
