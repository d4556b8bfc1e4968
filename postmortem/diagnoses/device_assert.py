from __future__ import annotations

import re
from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.crash import Reason, crash_of, with_reasons
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_MEANS = (
    (re.compile(r"(input|target)_val >= zero"), "bce-range"),
    (re.compile(r"n_classes|\btarget\w* ?(>=|<)"), "label-oob-cpu"),
    (re.compile(r"out of bounds|Index <|<= ?index|\b(idx|ind|index)\w* ?(>=|<)"), "index-oob-cpu"),
    (re.compile(r"probability|cumdist|_?isnan|_?isinf|\bval >= zero"), "nan-distribution"),
)
"""Conditions that the kernels of aten/src/ATen/native/cuda check, and the signature of the same fault on the CPU.

Loss.cu, NLLLoss2d.cu, Indexing.cu, ScatterGatherKernel.cu, MultinomialKernel.cu.
"""


@diagnosis
class DeviceAssert:
    """An assertion inside a CUDA kernel failed; the printed condition shows which kind of value was wrong.

    Kernels run asynchronously: the line in the traceback may come after the faulty call.
    """

    name = "device-assert"
    priority = 64

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = crash_of(view, findings, "device-assert")
        if found is None:
            return None
        story, event = found
        said = str(event.fields.get("assertion", ""))
        known = next((CATALOGUE[name] for pattern, name in _MEANS if pattern.search(said)), None)
        if known is None:
            return story
        kernel = event.fields.get("kernel", "operator()")
        where = f" in {kernel}" if kernel != "operator()" else ""  # a lambda has no name that says anything
        meaning = f"{known.meaning[0].lower()}{known.meaning[1:].rstrip('.')}"
        reason = Reason(f"{meaning}: `{said}` failed{where}", tuple(known.fixes))
        return with_reasons(story, event, [reason], instead_of=CATALOGUE[event.kind].fixes[1:])
