from __future__ import annotations

import ast
import builtins
import re
from typing import TYPE_CHECKING, Any

from postmortem.silent.facts import LossComputed, Overlap, Place
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._inputs import training_inputs
from postmortem.silent.faults._modes import trained_roots
from postmortem.silent.source import called, source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_SAMPLES = 20
_SHARED = 0.02
_NEAR = 0.2
_ALIKE = 2.0
"""So many times the share that is expected by chance where samples are short texts and categories, from how often two
training samples of a batch are equal."""
_SEEN = 1.5
"""Each training sample was seen so often on average: nearly all were seen."""
_HELD_OUT = re.compile(
    r"(^|_)[xy]?(va|vl|val|valid|validation|dev|test|testing|te(?=_?(?:set|loader|data|ds|dl))|eval|evaluation|holdout"
    r"|held_out)"
    r"(set|loader|data|ds|dl|[xy])?(_|\d|$)|^(v[xy]|[xy]v|[xy]_?(va|te|ts|ho))$"
)
"""Names of held-out data."""
_SPLITS = {"random_split", "train_test_split", "Subset", "split"}


@fault
class TrainValidationLeak(BaseFault):
    """The validation set contains copies of training samples, so its scores measure how well the model memorises.

    How it is found: samples that are evaluated without gradients, and that the source calls validation or test data,
    have the same values as training samples, or are close to a few of them and far from all others. Nearly all training
    samples were seen.

    Not blamed: evaluations of the training data, also in one line with those of other data; samples with only a few
    values, which may be equal by chance; short texts and categories, where training samples equal one another about as
    often; a graph whose nodes are all given to the model, and of which some are held out
    of the loss; samples of another fold, where weights are set anew and a new optimizer is made for each fold.

    What to do: remove duplicates before the split, and split before samples are repeated or augmented.

    How to confirm: count the rows of the validation set that are in the training set.
    """

    code = "TRN051"
    name = "train-validation-leak"
    family = "evaluation"
    checks = "evaluated samples were not trained on"

    def seen(self, look: Look) -> str:
        return _seen.some(range(sum(o.samples for o in look.of(Overlap))), "evaluated sample", "evaluated samples")

    def blames(self, look: Look) -> Iterator[Blame]:
        roots, judged = trained_roots(look), False
        for overlap in look.of(Overlap):
            if overlap.root not in roots or overlap.samples < _SAMPLES or not overlap.trained:
                continue
            if _of_parts(look, overlap.root):
                continue
            judged = True
            share = overlap.shared / overlap.samples
            share = share if share > _ALIKE * overlap.alike else 0.0
            near = overlap.near / overlap.compared if overlap.compared else 0.0
            complete = overlap.times >= _SEEN * overlap.trained
            if (share < _SHARED and near < _NEAR) or not (complete and _held_out(overlap)):
                continue
            yield self.blame(
                _split(overlap) or overlap.stack,
                f"{_said(overlap, share)} one of the {overlap.trained} training samples",
                confirm="count the rows of the validation set that are in the training set",
                shared=overlap.shared,
                samples=overlap.samples,
                near=overlap.near,
            )
        if not judged:
            raise NotChecked("no evaluation with distinguishable samples was seen")


def _of_parts(look: Look, root: int) -> bool:
    """Whether losses are computed of some of the samples only: the nodes of one graph, of which others are held out."""
    given = [seen.shape[0] for seen in training_inputs(look).get(root, ())]
    targets = [loss.target[0] for loss in look.of(LossComputed) if loss.trained and loss.target]
    return bool(given and targets) and min(given) > max(targets) > 1


def _said(overlap: Overlap, share: float) -> str:
    if share >= _SHARED:
        return f"{overlap.shared} of {overlap.samples} samples of an evaluation ({share:.0%}) have the same values as"
    near = f"{overlap.near} of {overlap.compared} samples of an evaluation"
    return f"{near} are closer than a tenth of the usual distance to"


def _held_out(overlap: Overlap) -> bool:
    """Whether the source calls what is evaluated held-out data, and not training data."""
    if any(_evaluates_more(place) for place in overlap.stack):
        return False
    names = []
    for i, place in enumerate(overlap.stack):
        function = source(place.file).function_at(place.line)
        given = (
            {a.arg.lower() for a in function.args.args} if function is not None and overlap.stack[i + 1 :] else set()
        )
        names += [n for n in _names(place) if n not in given]  # its caller says what they are
    return any(_HELD_OUT.search(n) for n in names) and not any("train" in n for n in names)


def _evaluates_more(place: Place) -> bool:
    """Whether a line evaluates several sets of data alike, not all of them held out: ``f(x), f(x_val)``, or
    ``f(part)`` in a loop over ``(x, x_val)``."""
    read = source(place.file)
    statements = read.statements_at(place.line)
    alike: dict[str, list[list[str]]] = {}
    for call in [call for statement in statements for call in _calls(statement)]:
        alike.setdefault(ast.unparse(call.func), []).append(_named(_given(call)))
    loops = [loop.iter for loop in read.around(place.line, ast.For)[-1:]]
    loops += [n.iter for statement in statements for n in ast.walk(statement) if isinstance(n, ast.comprehension)]
    parts = [loop.values if isinstance(loop, ast.Dict) else getattr(loop, "elts", []) for loop in loops]
    sets = [*alike.values(), *([_named([part]) for part in each] for each in parts)]
    return any(len({any(_HELD_OUT.search(n) for n in names) for names in each if names}) > 1 for each in sets)


def _names(place: Place) -> list[str]:
    """The names that a line hands over, and those that the loop around it goes through."""
    read = source(place.file)
    given = [each for statement in read.statements_at(place.line) for n in _calls(statement) for each in _given(n)]
    return _named([*given, *(loop.iter for loop in read.around(place.line, ast.For)[-1:])])


def _calls(statement: Any) -> list[ast.Call]:
    """The calls in a statement that has no block of its own, but for those that compute nothing of a model, as in
    ``print(val), float(loss)``."""
    found = [] if hasattr(statement, "body") else [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
    return [n for n in found if not hasattr(builtins, called(n))]


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _named(parts: list[ast.expr]) -> list[str]:
    """The names in expressions, in small letters."""
    nodes = [n for part in parts for n in ast.walk(part)]
    names = [n.id if isinstance(n, ast.Name) else n.attr for n in nodes if isinstance(n, (ast.Name, ast.Attribute))]
    return [name.lower() for name in names]


def _split(overlap: Overlap) -> Place | None:
    """The line that splits the data, if the file has one."""
    for place in overlap.stack:
        tree = source(place.file).tree
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Assign) and any(called(n) in _SPLITS for n in ast.walk(node.value)):
                names = [n.id.lower() for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
                if any(_HELD_OUT.search(n) for n in names):
                    return Place(place.file, node.lineno)
    return None
