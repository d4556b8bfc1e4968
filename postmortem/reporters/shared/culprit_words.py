"""A culprit in words, for the reports for people: where it is, how surely, what was tried."""

from __future__ import annotations

import linecache
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.core.model import DERIVATIVE, GROWTH, MASKED, OUTSIDE
from postmortem.core.printable import number
from postmortem.reporters.shared.what_happened import TOLD, incident, is_told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.core.culprit import Culprit, Fidelity, Fix
    from postmortem.core.report import RunReport

ESTABLISHED = {
    "cured": "shown by a cure: with this repaired in a rerun, the step no longer fails",
    "observed": "seen in a rerun, which fails there; that a repair cures the step is not shown",
    "inferred": "inferred from the reruns, not shown directly",
}
"""How surely a culprit is known, the surest first."""
_IN_SHORT = {
    "cured": "established: a rerun with it repaired does not fail",
    "observed": "seen failing in a rerun; that a repair helps was not shown",
    "inferred": "inferred from reruns, not shown directly",
}
_BOUNDED = "with its input bounded a rerun does not fail, and why the input leaves its range was not looked for"
_RISES = ("divergence", "outlier-sample", "exploding-layer", "dead-layer", "learning-rate-zero")
"""Causes of steps that stay finite."""
_AROUND = 2  # lines of source before and after the culprit's


def found(culprit: Culprit | None) -> bool:
    """Whether a replay named something."""
    return culprit is not None and culprit.phase != "none"


def leads(run: RunReport) -> bool:
    """Whether a report of the run begins with its culprit: found by a replay that follows the log."""
    c = run.culprit
    return c is not None and found(c) and (c.fidelity is None or c.fidelity.ok)


def surely(c: Culprit) -> str:
    """How surely the cause is known, in a few words that stand beside the headline."""
    if only_bounded(c):
        return f"the operator is established, the cause is not: {_BOUNDED}"
    return f"the cause is {_IN_SHORT[c.established]}. This is about the cause, not about how good a fix is"


def only_bounded(c: Culprit) -> bool:
    """Whether the cure was to bound values far outside the range of an operator: a bound behind any cause cures it."""
    return c.established == "cured" and OUTSIDE in c.tensor and not c.precision_only


def grade(c: Culprit) -> tuple[str, str]:
    """How surely the cause is known: the name of the grade, of `ESTABLISHED`, and in words."""
    return ("observed", _BOUNDED) if only_bounded(c) else (c.established, ESTABLISHED[c.established])


def in_a_word(c: Culprit) -> str:
    """How the culprit was established, in the word of the JSON. Where no fix cures the step, what the cure was."""
    if only_bounded(c):
        return "cured by a bound on its input; why that leaves its range was not established"
    repaired = c.established == "cured" and bool(c.fixes) and not any(f.cured for f in c.fixes)
    return "cured by masking it, by no fix" if repaired else c.established


def where(c: Culprit) -> str:
    """Operator, module and parameter, as far as they are known."""
    module = "" if c.module is None else f"module {c.module}" if c.module else "outside any submodule"
    place = [f"operator {c.op}" if c.op else "", module, f"parameter {c.param}" if c.param else ""]
    return ", ".join(p for p in place if p)


def brief(c: Culprit) -> str:
    """The culprit in a few words: "log(0) at train.py:33", else its operator or cause."""
    place = f"{os.path.basename(c.file)}:{c.line}" if c.file and c.line else ""
    met = incident(c)
    what = met.name if met else c.op or c.param or c.cause
    return f"{what} at {place}" if place else what


def actions(run: RunReport, path: Callable[[str], str]) -> list[str]:
    """What to do next, the culprit's file as `path` shows it."""
    told = run.diagnosis.next if run.diagnosis else ()
    file = run.culprit.file if run.culprit else None
    return [action.replace(file, path(file)) if file else action for action in told]


def fidelity_words(f: Fidelity) -> str:
    """ "good, it follows the log. 17 of 17 logged values …"; without a comparison only why there was none."""
    if f.ok and not f.compared and f.note:
        return f.note
    trust = "good, it follows the log" if f.ok else "POOR" if f.compared else "unknown"
    note = f.note or f"{f.exact} of {f.compared} logged losses reproduced to every logged digit"
    return f"{trust}. {note}"


def tried(c: Culprit) -> list[tuple[str, str, str]]:
    """The fixes that were tried: name, outcome and what was changed, the best first.

    Outcomes: "cures"; "finite" (the step is, but its loss is far from its course); "no"; "not run".
    """
    rows = [(f.name, _outcome(f), "; ".join(filter(None, [f.how, f.loss_after, f.note]))) for f in c.fixes]
    if c.fresh_state is not None:
        rows.append(("fresh_state", "cures" if c.fresh_state else "no", "optimizer state reset"))
    return sorted(
        rows, key=lambda row: (("cures", "finite", "no", "not run").index(row[1]), row[0] != "eps")
    )  # the line first


def outcomes(c: Culprit) -> list[str]:
    """What the outcomes of the fixes mean, and a remark where a loss with the changed line stays high."""
    kinds = {outcome for _, outcome, _ in tried(c)}
    notes = []
    if "cures" in kinds:
        holds = "loss, gradients and parameters are finite after the step"
        holds = "the loss stays in the range of the steps before" if c.cause in _RISES or is_told(c) else holds
        notes.append(f"cures: with this change alone, {holds}. How the training goes on with it was not tested.")
    if "finite" in kinds:
        notes.append("finite: the step is finite with this change, but its loss is far from that of the steps before.")
    by_name = {fix.name: fix.loss for fix in c.fixes if fix.cured and fix.loss is not None}
    changed, without = by_name.get("eps"), by_name.get("drop_sample")
    if changed is not None and without is not None and changed - without > 0.1 * abs(without):
        notes.append(
            f"With the changed line the loss ({number(changed)}) is above that without the samples at fault "
            f"({number(without)}): they may still weigh on the training."
        )
    return notes


def _outcome(fix: Fix) -> str:
    return "not run" if not fix.ran else "cures" if fix.good else "finite" if fix.cured else "no"


def suggested(c: Culprit) -> str:
    """What the change of the line does, which a replay suggests."""
    away = any(f.name == "eps" and f.far_from is not None for f in c.fixes)
    beyond = ", but not one that keeps the loss on its course" if away else ""
    return f"A change of this line that makes the step finite{beyond}"


def source_lines(c: Culprit) -> list[tuple[int, str]]:
    """The line at fault with those around it, numbered; it alone where its file is not here or has changed since."""
    if not c.file or not c.line:
        return []
    own, code = linecache.getline(c.file, c.line), (c.code or "").strip()
    if code and own.strip() != code:
        return [(c.line, code)]
    numbered = [
        (n, linecache.getline(c.file, n).rstrip()) for n in range(max(1, c.line - _AROUND), c.line + _AROUND + 1)
    ]
    return [(n, line) for n, line in numbered if line or n == c.line]


def statistics(tensor: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The tensors at the operator, each with its statistics; all other values are one entry.

    The range is that of the finite values, which is said where there are others.
    """
    of = f" of {tensor[DERIVATIVE]} (backward)" if tensor.get(DERIVATIVE) else ""
    inputs = [(f"input {i}{of}", stats) for i, stats in enumerate(tensor.get("inputs") or ())]
    other = {
        k: v for k, v in tensor.items() if k not in ("inputs", "output", GROWTH, MASKED, DERIVATIVE, OUTSIDE, *TOLD)
    }
    for name, stats in [*inputs, (f"output{of}", tensor.get("output")), ("values", other)]:
        if stats:
            of = "finite " if stats.get("nan") or stats.get("inf") else ""
            named = ((f"{of}{k}" if k in ("min", "max") else k, v) for k, v in stats.items())
            yield name, ", ".join(f"{k} {_value(v)}" for k, v in named if v is not None)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return str(value)


def from_here(path: str) -> str:
    """The path relative to the working directory, if it lies below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def from_run(path: str, run: RunReport) -> str:
    """An absolute path relative to the folder of the run, else to the working directory, if it lies below one."""
    if not os.path.isabs(path) or "\0" in run.path + path:
        return path
    folder = run.path if os.path.isdir(run.path) else os.path.dirname(run.path)
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
    return from_here(path) if inside.startswith(os.pardir) else inside
