"""What several faults ask of the modes in which a model ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent.facts import Backward, Forward, ModeMatters, ModuleRan
from postmortem.silent.faults._words import count, few

if TYPE_CHECKING:
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look


def trained_roots(look: Look) -> set[int]:
    """Outermost modules most of whose parameters an optimizer trains."""
    found = set()
    for root in {f.root for f in look.of(Forward)}:
        own = {p for m in look.modules.values() if m.root == root for p in m.parameters.values()}
        trained = {p for p in own if p in look.held and p in look.reached and p not in look.frozen}
        if own and 2 * len(trained) >= len(own):
            found.add(root)
    return found


def sensitive(look: Look, root: int, *, training: bool, grad: bool) -> list[ModeMatters]:
    """Modules of a root that do something else in training, and that ran in this way; without batch norms whose own
    parameters are not trained."""
    ran = {r.module for r in look.of(ModuleRan) if r.training == training and r.grad == grad}
    found = []
    for each in look.of(ModeMatters):
        own = look.modules[each.module].parameters.values() if each.module in look.modules else ()
        frozen = not each.dropout and any(p not in look.held or p in look.frozen for p in own)
        if each.root == root and each.module in ran and not frozen:
            found.append(each)
    return found


def stuck_parts(look: Look) -> dict[int, list[ModeMatters]]:
    """Parts that are in eval mode all along, though their parameters are trained: the outermost module of each -> its
    batch norms, whose running statistics are those that they were made with. A batch norm that was put into eval mode
    alone is none: that is how one is kept as it is."""
    trained = {r.module for r in look.of(ModuleRan) if r.training}
    stuck = {r.module for r in look.of(ModuleRan) if r.grad and not r.training} - trained
    parts = [m for m in look.modules.values() if m.module in stuck]
    found: dict[int, list[ModeMatters]] = {}
    for root in {m.root for m in parts}:
        for norm in sensitive(look, root, training=False, grad=True):
            name = look.modules[norm.module].name if norm.module in look.modules else ""
            above = [m for m in parts if m.root == root and m.module != norm.module and _holds(m.name, name)]
            if norm.unused and norm.module in stuck and above:
                found.setdefault(min(above, key=lambda m: len(m.name)).module, []).append(norm)
    return found


def _holds(outer: str, inner: str) -> bool:
    return not outer or inner.startswith(f"{outer}.")


def said(modules: list[ModeMatters]) -> str:
    """`2 dropouts (p=0.5) and 1 batch norm`."""
    rates = sorted({m.dropout for m in modules if m.dropout})
    dropouts, norms = sum(bool(m.dropout) for m in modules), sum(not m.dropout for m in modules)
    parts = [f"{count(dropouts, 'dropout')} (p={few([f'{r:g}' for r in rates])})"] if dropouts else []
    return " and ".join([*parts, count(norms, "batch norm")] if norms else parts)


def evaluating(look: Look) -> dict[tuple[int, Place | None], list[Forward]]:
    """Calls of trained roots whose output is not trained on, by root and line: those without gradients, and those with
    them that another line's call always follows before the backward pass. Without lines that run in most steps of the
    optimizers that train the root."""
    last, before = set(), None
    for fact in look.facts:
        if isinstance(fact, Forward):
            before = fact
        elif isinstance(fact, Backward) and before is not None:
            last.add((before.root, before.at))
    roots = trained_roots(look)
    found: dict[tuple[int, Place | None], list[Forward]] = {}
    for forward in look.forwards():
        key = forward.root, forward.at
        if forward.root in roots and not (forward.grad and key in last):
            found.setdefault(key, []).append(forward)
    steps = {root: _steps_of(look, root) for root in roots}
    often = {root: max(1, len(of) // 2) for root, of in steps.items()}
    return {
        (root, at): calls
        for (root, at), calls in found.items()
        if len({c.step for c in calls} & steps[root]) <= often[root]
    }


def _steps_of(look: Look, root: int) -> set[int]:
    """The steps of the optimizers that hold a parameter of a root; another model may make many more."""
    own = {p for m in look.modules.values() if m.root == root for p in m.parameters.values()}
    return {s.step for optimizer, made in look.stepped.items() if own & set(look.held_by(optimizer)) for s in made}
