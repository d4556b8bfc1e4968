"""What to do after a replay: the advice of the fixes that cured the step, and what follows from the cause itself."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING

from postmortem.core.launched import PLACEHOLDER, resumed_command
from postmortem.core.model import MASKED, OUTSIDE
from postmortem.core.printable import number
from postmortem.replay.fixes import FIXES, Advice, Scope, finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from postmortem.core.culprit import Culprit, Fix, ReplayResult
    from postmortem.core.view import View

_KEEPS = {
    Scope.LINE: "it changes this line alone, and data, learning rate and precision stay as they are",
    Scope.STATE: "code, data and settings stay as they are",
    Scope.DATA: "it changes the data alone, and code and settings stay as they are",
    Scope.PRECISION: "data and learning rate stay as they are",
    Scope.RATE: "code and data stay as they are",
    Scope.TRAINING: "code and data stay as they are",
}
"""Why an advice comes before those of a wider scope."""
_BY_HAND = (
    "let it load the state of model, optimizer, scheduler and random generators before its loop, "
    "and begin with the step after the checkpoint"
)
"""What to do with a script that has no option that resumes."""
_LEARNS = "makes the step finite and lets it learn through this operator"


def advice(culprit: Culprit, view: View | None, checkpoint: str) -> tuple[str, ...]:
    """Sentences, in the order in which to follow them; none where there is no culprit.

    A change of the line or of the data comes before one of the precision, and that before one of the whole training.
    checkpoint: empty for the initial state. `view` is the run's log: the learning rate and the gradient norm in it give
    the values.
    """
    if culprit.phase == "none":
        return ()
    sentences = advised(culprit, view)
    if not checkpoint:
        return (*sentences, "then start again" if sentences else "fix the cause, then start again")
    if culprit.phase == "parameters":
        return (*sentences, f"do not resume from {checkpoint}: its state is the cause")
    return (*sentences, f"{'then' if sentences else 'fix the cause, then'} {_resume(view, checkpoint)}")


def _resume(view: View | None, checkpoint: str) -> str:
    """How the training goes on from `checkpoint`: its own command where the files of the run show it."""
    run = view.run if view is not None else None
    launched = run.launched or run.script if run is not None else None
    command = resumed_command(launched, checkpoint)
    if launched is None or command is None:
        told = "; the training's own command is not known here" if run is not None else ""
        return f"resume from {checkpoint}{told}"
    if launched.resume is None and launched.guessed:
        shows = f"{launched.words[-1]} shows no option for that"
        return f"resume from {checkpoint} ({shows}: {_BY_HAND}), or start the training again"
    notes = [f"add the options that {launched.words[-1]} was given"] if launched.guessed else []
    if launched.resume is None:
        notes.append(f"{PLACEHOLDER} stands for the option by which it resumes; if there is none, {_BY_HAND}")
    note = f" ({'; '.join(notes)})" if notes else ""
    return f"resume from {checkpoint}{note}, by this command: `{command}`"


def advised(culprit: Culprit, view: View | None) -> list[str]:
    """What to change, without a word on the checkpoint to go on from; none where nothing is known."""
    masked = [*_fully_masked(culprit), *_outside(culprit)]
    return [*masked, *_of_the_fixes(culprit, view)] or list(_nothing_cured(culprit))


def _fully_masked(culprit: Culprit) -> Iterator[str]:
    """What to do about rows of a softmax that hold only -inf."""
    inputs = culprit.tensor.get("inputs") or ()
    if not any(t.get(MASKED) for t in inputs):
        return
    tried = culprit.tensor.get(MASKED)
    outcome = {"finite": " (tried: the step is finite then)", "fails": " (tried: the step fails as well)"}
    yield (
        f"{culprit.file}:{culprit.line}: leave at least one value of each row unmasked, or set a row that is -inf from "
        f"end to end to 0 before {culprit.op}{outcome.get(str(tried), '')}, and leave its result out of the loss"
    )


def _outside(culprit: Culprit) -> Iterator[str]:
    """What to do about values that lie outside the range of the operator at fault, farther than rounding explains."""
    if (told := culprit.tensor.get(OUTSIDE)) and not culprit.precision_only:
        found = f"{culprit.file}:{culprit.line}: find where the input of {culprit.op} leaves its range, in the code or"
        yield f"{found} the settings that it comes from: {told}, which is likely no rounding error"


def _of_the_fixes(culprit: Culprit, view: View | None) -> list[str]:
    """Those last whose loss is then far from its course, or against which something else speaks; where there are only
    such, what to look at comes first."""
    given = [(culprit.suggestion is not None and _doubtful(culprit, "eps"), a) for a in _of_the_suggestion(culprit)]
    ask = partial(FIXES.call, default=None, path=culprit.file or "the replay", lost="the advice of this fix")
    for fix in (kind() for kind in FIXES):
        cure = ask(fix, "cure", culprit)
        advised = ask(fix, "advice", culprit, cure, view) if cure is not None else None
        if advised is not None:
            given.append((_is_doubtful(cure), _with_its_loss(advised, cure)))
    if any(a.scope is Scope.LINE for far, a in given if not far):
        given = [(far, a) for far, a in given if a.scope is not Scope.STATE]
    ordered = sorted(given, key=lambda each: (each[0], _place(culprit, each[1].scope)))
    texts = _in_turn([a for far, a in ordered if not far]) + [a.text for far, a in ordered if far]
    only_far = bool(given) and all(far for far, _ in given)
    which = "keeps the loss on its course" if any(f.far_from is not None for f in culprit.fixes) else _LEARNS
    return [*_nothing_cured(culprit, which), *texts] if only_far and OUTSIDE not in culprit.tensor else texts


def _place(culprit: Culprit, scope: Scope) -> float:
    """An overflow is of the dtype, not of the samples whose values are the largest: the precision comes before them."""
    return Scope.DATA - 0.5 if scope is Scope.PRECISION and culprit.cause == "dtype-overflow" else scope


def _in_turn(given: Sequence[Advice]) -> list[str]:
    """The sentences; of several cures, the first says why it is taken first."""
    texts = [a.text for a in given]
    if len(given) > 1 and given[0].scope < given[-1].scope:
        texts[0] += f". Try this first: {_KEEPS[given[0].scope]}"
    return texts


def _doubtful(culprit: Culprit, name: str) -> bool:
    return any(f.name == name and _is_doubtful(f) for f in culprit.fixes)


def _is_doubtful(cure: Fix) -> bool:
    return cure.far_from is not None or bool(cure.note)


def _with_its_loss(advised: Advice, cure: Fix) -> Advice:
    """With the loss that comes of it, where that is far from its course and the advice does not say it itself."""
    said = finite(cure)
    if cure.far_from is None or said in advised.text:
        return advised
    return Advice(advised.scope, f"{advised.text} ({said})")


def _of_the_suggestion(culprit: Culprit) -> Iterator[Advice]:
    if culprit.suggestion:
        lines = culprit.suggestion.splitlines()
        new = [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")]
        cure = next((f for f in culprit.fixes if f.name == "eps" and f.cured), None)
        what = finite(cure) + _without_samples(culprit, cure) if cure is not None else "cures the step"
        what += "; training on with this line was not tested"
        yield Advice(Scope.LINE, f"{culprit.file}:{culprit.line}: `{' '.join(new)}` ({what})")


def _without_samples(culprit: Culprit, cure: Fix) -> str:
    """The loss without the samples at fault, to compare with that of `cure`: which of both to take is the user's."""
    dropped = next((f for f in culprit.fixes if f.name == "drop_sample" and f.cured), None)
    known = dropped is not None and dropped.loss is not None and cure.loss is not None and culprit.samples
    if dropped is None or not known:
        return ""
    them = "without this sample" if len(culprit.samples or ()) == 1 else "without these samples"
    return f"; {them} it is {number(dropped.loss)}"


def _nothing_cured(culprit: Culprit, what: str = "makes the step finite") -> Iterator[str]:
    if culprit.file and culprit.op and culprit.fixes:
        shapes = [str(t["shape"]) for t in culprit.tensor.get("inputs") or () if "shape" in t]
        given = f" (shape {' and '.join(shapes)})" if shapes else ""
        place = f"{culprit.file}:{culprit.line}"
        if culprit.phase == "optimizer":
            seen = f"the settings of the optimizer, its state and the gradient of {culprit.param or 'its parameters'}"
            yield f"check what goes into the update at {place}: {seen}; no general fix {what}"
        else:
            yield (
                _ignored_targets(culprit) or f"check the input of {culprit.op} at {place}{given}: no general fix {what}"
            )


_IGNORED = -100  # `ignore_index` of torch's losses, where it is not given


def _ignored_targets(culprit: Culprit) -> str:
    """Why the mean of a classification loss is 0/0: https://docs.pytorch.org/docs/stable/nn.html#loss-functions."""
    targets = [t for t in culprit.tensor.get("inputs") or () if t.get("dtype") == "int64"]
    if not (culprit.op or "").startswith(("nll_loss", "cross_entropy")) or len(targets) != 1:
        return ""
    if targets[0].get("min") != _IGNORED or targets[0].get("max") != _IGNORED:
        return ""
    place, shape = f"{culprit.file}:{culprit.line}", targets[0].get("shape")
    return (
        f"every target of {culprit.op} at {place} is {_IGNORED}, its ignore_index (shape {shape}): the mean is over "
        "nothing, 0/0. Leave such targets out, or divide the sum by their number, at least 1"
    )


def with_check(result: ReplayResult, run: Path) -> tuple[str, ...]:
    """The advice of a replay of `run`, and the command that shows whether the change helped.

    Before the last sentence, which says from where to go on.
    """
    place = shlex.quote(str(run))
    if result.culprit.phase == "parameters":
        check = f"find the last finite checkpoint: `postmortem checkpoints {place}`"
    else:
        step = "" if result.step is None else f" --step {result.step}"
        command = f"postmortem replay {place}{step} --checkpoint {shlex.quote(result.checkpoint)}"
        at_line = "after the change, replay the step again" if result.culprit.file else "the replay in full"
        check = f"{at_line}: `{command}`"
    return (*result.next[:-1], check, *result.next[-1:]) if result.next else ()
