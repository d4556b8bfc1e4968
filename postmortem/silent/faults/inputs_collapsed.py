from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from postmortem.silent.facts import Backward, InputSeen, LossComputed, Place
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._flow import names_behind, stored, values
from postmortem.silent.faults._inputs import training_inputs
from postmortem.silent.faults._words import count
from postmortem.silent.source import Source, called, source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_SEEN = 3
_COMMON = 0.95
_WHOLE = {
    "long",
    "int",
    "byte",
    "short",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "floor",
    "trunc",
    "round",
    "floor_divide",
}
"""Words of casts that cut off what is behind the point."""
_LOSSES = ("NllLoss", "BinaryCrossEntropy", "MseLoss", "SmoothL1", "Huber", "L1Loss", "Mean")


@fault
class InputsCollapsed(BaseFault):
    """The inputs have lost their content: all zero, constant, or reduced to a few values by an integer division, a cast
    or a clip.

    How it is found: all samples of a batch are identical, in each inspected batch; or over 95 % of the elements of a
    sample have the same value, and the source contains an integer division or a cast to an integer type before the
    model.

    Not blamed: inputs that are naturally sparse (one-hot, counts, boards); a model that is given other tensors as well,
    such as the state of a decoder; losses other than those of predictions and targets (a policy with one state).

    What to do: `image.float() / 255` instead of `image // 255`.

    How to confirm: print `x.unique()` of a batch right before the model.
    """

    code = "TRN042"
    name = "inputs-collapsed"
    family = "data"
    checks = "the inputs differ between samples"

    def seen(self, look: Look) -> str:
        return _seen.of(look, InputSeen, "input of a model", "inputs of a model")

    def blames(self, look: Look) -> Iterator[Blame]:
        judged = False
        for seen in training_inputs(look).values():
            measured = [s for s in seen if s.values and s.values["rows"] > 1 and s.values["width"] > 3]
            if len(measured) < _SEEN:
                continue
            judged = True
            common = min(s.values["common"] for s in measured)
            same = all(s.values["distinct"] == 1 and not s.values["others"] for s in measured)
            if same and _supervised(look):
                said, at = "all samples of a batch were the same", _cast(measured[0]) or _centred(measured[0])
            elif common >= _COMMON and (cast := _cast(measured[0])) is not None:
                said, at = f"at least {common:.0%} of the elements of a sample have one value", cast
            else:
                continue
            yield self.blame(
                at,
                f"{said}, in each of {count(len(measured), 'measured input')} {list(measured[0].shape)}",
                confirm="print x.unique() of a batch right before the model",
                common=common,
                measured=len(measured),
            )
        if not judged:
            raise NotChecked(f"fewer than {_SEEN} floating-point inputs were measured")


def _supervised(look: Look) -> bool:
    """Whether the loss is one of predictions and targets that differ: there is something to learn from inputs."""
    chains = [[n for n in b.nodes if not n.startswith(("Add", "Sub", "Div"))] for b in look.of(Backward)]
    direct = sum(bool(chain) and chain[0].startswith(_LOSSES) for chain in chains)
    differ = any(len(loss.labels) > 1 or not loss.labels for loss in look.of(LossComputed) if loss.trained)
    return differ and direct > len(chains) / 2


def _cast(seen: InputSeen) -> Place | None:
    """The first line of the training's file that divides values of the inputs by an integer, or casts them to one."""
    if seen.at is None:
        return None
    read = source(seen.at.file)
    found = [n for n in ast.walk(read.tree) if isinstance(n, ast.stmt)] if read.tree is not None else []
    simple = [n for n in found if isinstance(n, (ast.Assign, ast.AugAssign, ast.Return, ast.AnnAssign, ast.Expr))]
    cuts = [n for n in simple if any(_cuts_off(each, n) for each in ast.walk(n))]
    inputs = names_behind(seen.at) if cuts else None
    lines = [n.lineno for n in cuts if inputs is None or not inputs.isdisjoint(_becomes(n, read))]
    return Place(seen.at.file, min(lines)) if lines else None


def _becomes(statement: ast.stmt, read: Source) -> set[str]:
    """The names that get the value of a statement; of what is returned, the function."""
    if isinstance(statement, ast.Expr):
        return set(values(statement))
    if isinstance(statement, ast.Return):
        function = read.function_at(statement.lineno)
        return {function.name} if function is not None else set()
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]  # type: ignore[attr-defined]
    return {name for target in targets for name in stored(target)}


def _centred(seen: InputSeen) -> Place | None:
    """The first line of the training's file that takes from values their own mean, outside of models; else the call."""
    if seen.at is None:
        return None
    tree = source(seen.at.file).tree
    nodes = list(ast.walk(tree)) if tree is not None and seen.values["common"] == 1 else []
    models = {id(n) for f in nodes if isinstance(f, ast.FunctionDef) and f.name == "forward" for n in ast.walk(f)}
    lines = [n.lineno for n in nodes if isinstance(n, ast.BinOp) and id(n) not in models and _takes_mean(n)]
    return Place(seen.at.file, min(lines)) if lines else seen.at


def _takes_mean(node: ast.BinOp) -> bool:
    """`x - x.mean(...)`, `x - np.mean(x, ...)`, of a mean over some dimensions."""
    mean = node.right
    if not isinstance(node.op, ast.Sub) or not isinstance(mean, ast.Call) or called(mean) not in ("mean", "nanmean"):
        return False
    own = ast.unparse(node.left)
    of = [*mean.args, *([mean.func.value] if isinstance(mean.func, ast.Attribute) else [])]
    return own in {ast.unparse(n) for n in of} and len(mean.args) + len(mean.keywords) > 0


def _cuts_off(node: ast.AST, statement: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        return any(called(n) in ("float", "to", "astype", "FloatTensor") for n in ast.walk(statement)) or _of_pixels(
            node
        )
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.FloorDiv):
        return True
    words = (
        {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)} if called(node) in ("to", "astype") else set()
    )
    divided = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div) for n in ast.walk(statement))
    return divided and (called(node) in _WHOLE or bool(words & _WHOLE))


def _of_pixels(node: ast.BinOp) -> bool:
    return isinstance(node.right, ast.Constant) and node.right.value in (255, 256, 127, 128)
