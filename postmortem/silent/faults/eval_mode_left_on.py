from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.facts import Backward, EvalCalled, Forward
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._modes import said, sensitive, stuck_parts, trained_roots
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Cycle, Look

_STEPS = 5
_STAYS = 0.9


@fault
class EvalModeLeftOn(BaseFault):
    """The model stays in eval mode during training: dropout is off, and batch norm uses its running statistics and does
    not update them.

    How it is found: from some step on, a model whose parameters an optimizer trains runs in eval mode before each
    backward pass; it contains dropout, or batch norm with trained parameters, and these modules ran in eval mode too.
    Or a part of it ran in eval mode only, its parameters are trained, and the running statistics of its batch norms are
    the zeros and ones they were made with.

    Not blamed: models without such modules; a model in training mode with only its batch norms in eval mode; batch
    norms with frozen parameters; models that are in eval mode only for some forward passes of a step.

    What to do: call `model.train()` at the start of each epoch and after each evaluation.

    How to confirm: print `model.training` before each forward pass.
    """

    code = "TRN020"
    name = "eval-mode-left-on"
    family = "train-eval-mode"
    checks = "the model trains in training mode"
    trial = Trial("training mode in each pass with gradients", changes.in_training_mode)

    def seen(self, look: Look) -> str:
        return _seen.of(
            look,
            Forward,
            "forward pass with gradients",
            "forward passes with gradients",
            lambda f: f.grad and f.parameters,
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        if not look.stepped or len(cycles := list(look.cycles(look.busiest))) < _STEPS:
            raise NotChecked(f"fewer than {_STEPS} steps were seen")
        parts = stuck_parts(look)
        for root in sorted(trained_roots(look)):
            modes = [(c, mode) for c in cycles if (mode := _training(c, root)) is not None]
            first = next((i for i, (_, training) in enumerate(modes) if not training), len(modes))
            after = [training for _, training in modes[first:]]
            matter = sensitive(look, root, training=False, grad=True)
            if len(after) < _STEPS or sum(after) > (1 - _STAYS) * len(after) or not matter:
                continue
            began = modes[first][0].step.step
            yield self.blame(
                _line(look, root, began) or next(f.at for f in modes[first][0].of(Forward) if f.root == root),
                f"the model was in eval mode at {len(after) - sum(after)} of {count(len(after), 'inspected step')} "
                f"from step {began} on, and so was its {said(matter)}",
                confirm="print model.training before each forward pass, and train once with model.train() there",
                steps=len(after),
                since=began,
            )
            parts.pop(root, None)
        for part, norms in sorted(parts.items()):
            module = look.modules[part]
            whole = module.name or f"the {module.type}"
            name = module.name or "model"
            yield self.blame(
                _line(look, part, look.steps),
                f"{whole} ran in eval mode in every step although its parameters are trained, and the running "
                f"statistics of its {said(norms)} are still those they were made with, mean 0 and variance 1",
                confirm=f"print {name}.training before each forward pass, and train once with {name}.train() there",
                norms=len(norms),
            )


def _training(cycle: Cycle, root: int) -> bool | None:
    """Whether the root was in training mode in a forward pass with gradients before the backward pass; None without
    such a pass."""
    modes: list[bool] = []
    seen: bool | None = None
    for fact in cycle.between:
        if isinstance(fact, Forward) and fact.root == root and fact.grad:
            modes.append(fact.training)
        elif isinstance(fact, Backward) and modes:
            seen = any(modes)
    return seen


def _line(look: Look, root: int, began: int) -> Place | None:
    """Where eval() was called last before the step."""
    inside = {m.module for m in look.modules.values() if m.root == root} | {root}
    calls = [c for c in look.of(EvalCalled) if c.step <= began and c.module in inside]
    whole = [c for c in calls if c.module == root] or calls
    return whole[-1].at if whole else None
