from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING, Any

from postmortem.silent.facts import Dropped, InputSeen, LossComputed
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._modes import evaluating, said, sensitive
from postmortem.silent.faults._words import count
from postmortem.silent.source import called, source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Forward, Place
    from postmortem.silent.look import Look

_SAMPLES = {"sample", "rsample", "multinomial", "bernoulli"}


@fault
class ValidationInTrainMode(BaseFault):
    """Validation runs with dropout active and with batch norm that uses and updates the statistics of the validation
    batches: the scores do not describe the trained model.

    How it is found: forward passes apart from the training steps, whose outputs are not trained on, run in training
    mode in a model with dropout or batch norm, and a loss is computed from them or the source compares their output
    with the labels; or a dropout function is called with training=True while the model is in eval mode.

    Not blamed: several passes over the same input (dropout as a measure of uncertainty); passes without labels (samples
    of a generator, actions of a policy, new statistics for batch norm); programs that evaluate the model in eval mode
    elsewhere.

    What to do: call `model.eval()` before the validation and `model.train()` after it; `F.dropout(x, p,
    self.training)`.

    How to confirm: validate twice and compare: with dropout the scores differ.
    """

    code = "TRN021"
    name = "validation-in-train-mode"
    family = "train-eval-mode"
    checks = "evaluation runs in eval mode"

    def blames(self, look: Look) -> Iterator[Blame]:
        passes = evaluating(look)
        if not passes:
            raise NotChecked("no evaluation was seen")
        modes = {key: [c for c in calls if c.training] for key, calls in passes.items()}
        for (root, at), calls in modes.items():
            elsewhere = any(r == root and len(modes[r, a]) < len(c) for (r, a), c in passes.items())
            matter = sensitive(look, root, training=True, grad=calls[0].grad) if calls else []
            if elsewhere or not matter or _repeated(look, root, at) or not _measured(look, calls, at):
                continue
            yield self.blame(
                at,
                f"{count(len(calls), 'forward call')} for evaluation at this line ran in training mode, with "
                f"{said(matter)}",
                confirm="call model.eval() before the evaluation, and compare its numbers",
                calls=len(calls),
            )
        yield from self._functions(look, passes)

    def _functions(self, look: Look, passes: dict[tuple[int, Place | None], list[Forward]]) -> Iterator[Blame]:
        """Dropout functions that do not know of the mode."""
        for drop in look.of(Dropped):
            evaluated = [key for key, calls in passes.items() if key[0] == drop.root and not calls[0].training]
            if drop.mode or not drop.training or not evaluated or any(_repeated(look, *key) for key in evaluated):
                continue
            yield self.blame(
                drop.at,
                f"dropout (p={drop.dropout:g}) was called with training=True while the model was in eval mode",
                confirm="pass training=self.training to the function, and evaluate twice",
                dropout=drop.dropout,
            )


def _repeated(look: Look, root: int, at: Place | None) -> bool:
    """Whether one input is given several times at a step: on purpose, to see how the answers differ."""
    given = [i for i in look.of(InputSeen) if i.root == root and i.at == at]
    times = Counter((i.step, i.digest) for i in given)
    return bool(times) and max(times.values()) > 1


def _measured(look: Look, calls: list[Forward], at: Place | None) -> bool:
    """Whether a loss is computed of these passes, or the source compares what follows."""
    steps = {c.step for c in calls}
    if not calls:
        return False
    if at is not None and _sampled(at):
        return False
    if any(x.step in steps and not x.trained for x in look.of(LossComputed)):
        return True
    return at is not None and any(_compares(n) for n in _below(at))


def _sampled(at: Place) -> bool:
    """Whether the block around a line draws from what the model gives: actions, or samples of a generator."""
    read = source(at.file)
    blocks = read.around(at.line, ast.With, ast.FunctionDef)[-1:]
    return any(called(n) in _SAMPLES for block in blocks for n in ast.walk(block))


def _below(at: Place) -> list[Any]:
    """What the source does from a line on, in the function or the loop around it."""
    read = source(at.file)
    scope: Any = read.function_at(at.line) or next(iter(read.around(at.line, ast.For, ast.While)), None) or read.tree
    tests = [n for each in ast.walk(scope) if isinstance(each, ast.If) for n in ast.walk(each.test)] if scope else []
    return [n for n in ast.walk(scope) if getattr(n, "lineno", 0) >= at.line and n not in tests] if scope else []


def _compares(node: Any) -> bool:
    if isinstance(node, ast.Compare):
        return any(isinstance(o, ast.Eq) for o in node.ops)
    return (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)) or called(node) in ("eq", "accuracy")
