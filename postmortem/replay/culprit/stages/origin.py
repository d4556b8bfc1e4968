"""The operator, or the tensor from outside the step, where the non-finite values begin."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.core.errors import ReplayError
from postmortem.core.model import DERIVATIVE
from postmortem.replay.culprit.confirm import Confirm
from postmortem.replay.culprit.investigation import code_at, owner
from postmortem.replay.culprit.sample_hints import SampleHints, are_outliers, made_outside
from postmortem.replay.culprit.stages import stage
from postmortem.replay.trace.operators import FRESH, canonical
from postmortem.replay.trace.tensors import NAN

if TYPE_CHECKING:
    from postmortem.core.culprit import Cause, Culprit, Established, Phase
    from postmortem.replay.culprit.investigation import Investigation
    from postmortem.replay.rerun.candidates import Candidate
    from postmortem.replay.trace.records import Hit

_OUTSIDE: dict[str, tuple[Phase, Cause]] = {
    "batch": ("data", "bad-input"),
    "parameter": ("parameters", "bad-parameter"),
    "optimizer": ("optimizer", "bad-parameter"),
}


@stage(order=60)
def origin(case: Investigation) -> Culprit | None:
    """Answers with the candidate that cures the step when it is masked, else with the earliest one."""
    chosen, established = Confirm(case).choose(case.traced)
    if case.traced.raised is not None and established != "cured":
        raise ReplayError(f"step {case.step}{case.traced.raised.said}")
    if not chosen:
        what = {"loss": "the loss is", "grad": "a gradient is", "param": "a parameter is"}[case.stage]
        case.trail.append(f"{what} non-finite, but no operator was seen to produce it")
        return case.with_fixes({"cause": "forward-op", "phase": "forward", "established": "inferred"})
    return _at_the_update(case, case.with_fixes(_facts(case, chosen, established), chosen[0]))


def _at_the_update(case: Investigation, found: Culprit) -> Culprit:
    """Of an optimizer's own code the user knows the line that calls it. Not before the fixes: what they change is
    there, not on that line."""
    update = case.traced.update
    if found.phase != "optimizer" or update is None:
        return found
    how = (*found.how, f"the update is that of {update.optimizer}")
    if found.file is not None or update.at.file is None:
        return replace(found, how=how)
    file, line = update.at.file, update.at.line
    return replace(found, file=file, line=line, code=code_at(file, line), how=how)


def _facts(case: Investigation, chosen: list[Candidate], established: Established) -> dict[str, Any]:
    """The fields of the culprit: from the first candidate, then additions and corrections by phase and samples."""
    first, hit = chosen[0], chosen[0].hits[0]
    phase, cause = _phase(first)
    file = hit.where.file
    line = hit.where.line or None if file else None
    facts = {
        "cause": cause,
        "phase": phase,
        "module": first.module,
        "op": canonical(first.op) if first.op else None,
        "file": file,
        "line": line,
        "code": code_at(file, line),
        "tensor": _tensor(hit),
        "established": established,
    }
    known = case.traced.known
    if first.outside is None and any(t.bits and t.source < 0 and -t.source not in known for t in hit.inputs):
        unseen = "code that cannot be traced (another thread, an extension, numpy)"
        case.trail.append(f"its input was already non-finite, produced by {unseen}")
    facts |= _of_phase(case, phase, first)
    return facts | _of_samples(case, phase, chosen)


def _phase(candidate: Candidate) -> tuple[Phase, Cause]:
    if candidate.outside is not None:
        return _OUTSIDE[candidate.outside[0]]
    hit = candidate.hits[0]
    if hit.stage == "optimizer":
        return "optimizer", "optimizer-update"
    half = hit.half and not candidate.bits & NAN
    if hit.backward:
        return "backward", "dtype-overflow" if half else "backward-singularity"
    return "forward", "dtype-overflow" if half else "forward-op"


def _of_phase(case: Investigation, phase: Phase, first: Candidate) -> dict[str, Any]:
    """The fields that depend on the phase: the parameter, and no operator for values from outside the step."""
    failed = case.traced.names[0] if case.traced.names else None
    if phase == "data":
        return {"module": None, "op": None}
    if phase == "parameters":
        name = first.outside[1] if first.outside else None
        return {"module": owner(name), "param": name, "op": None}
    if phase == "backward":
        return {} if case.stage == "loss" else {"param": failed}  # a gradient of which a loss is made has no name
    if phase != "optimizer":
        if failed in case.traced.buffers and case.stage == "param":
            case.trail.append(f"what it makes non-finite is the buffer {failed}, which the loss does not show")
        return {}
    name = failed if first.outside is None else first.outside[1]
    if first.outside is not None:
        case.trail.append(f"the optimizer state of {name} was non-finite before the step")
    rate = case.failure.lr
    if not math.isfinite(rate):
        case.trail.append(f"the learning rate of the step is {rate}")
    return {"module": owner(name), "param": name}


def _of_samples(case: Investigation, phase: Phase, chosen: list[Candidate]) -> dict[str, Any]:
    """The samples at fault; a finite outlier among them makes the data the culprit."""
    first, hit = chosen[0], chosen[0].hits[0]
    made = case.traced.step_of(hit.index) if first.outside is None else case.last
    if made < case.last:
        kept = f"where loss, gradients and parameters are finite, and kept until step {case.last}"
        case.trail.append(f"produced in step {made}, {kept}")
    samples: list[int] | None = None
    if made == case.last and phase in ("forward", "backward", "data") and case.samples.size > 1:
        samples, note = SampleHints(case).find(phase, chosen)
        if note:
            case.trail.append(f"samples: {note}")
    facts: dict[str, Any] = {"samples": None if samples is None else tuple(samples)}
    if phase == "forward" and samples and (hit.name in FRESH or made_outside(case, hit)):
        case.trail.append("they belong to particular samples, and no operation of the step made them: data")
        facts |= {"phase": "data", "cause": "bad-input", "module": None, "op": None}
    if phase in ("forward", "backward") and not any(t.bits for t in hit.inputs) and are_outliers(samples, case):
        large = "finite values far outside the range of the others; clamped to ±1e4, the step does not fail"
        case.trail.append(f"the samples at fault hold {large}")
        if _phase(first)[1] != "dtype-overflow":  # single precision would hold the values
            facts |= {"phase": "data", "cause": "bad-input", "module": None, "op": None}
    return facts


def _tensor(hit: Hit) -> dict[str, Any]:
    """The statistics of the operator's inputs and of its first non-finite output."""
    return {
        "inputs": [t.stats for t in hit.inputs if t.stats],
        "output": next((t.stats for t in hit.outputs if t.bits and t.stats), {}),
        **({DERIVATIVE: hit.name} if hit.backward else {}),
    }
