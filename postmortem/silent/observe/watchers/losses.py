"""Losses: their inputs, and whether these are what the loss expects."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from postmortem.silent.facts import LossComputed
from postmortem.silent.observe.graph import behind, bounds, name_of, nodes_behind, normalised_over, shape_of
from postmortem.silent.observe.places import place
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.silent.facts import Place
    from postmortem.silent.observe.recorder import Recorder

_FUNCTIONS = (
    "cross_entropy",
    "nll_loss",
    "kl_div",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
)
_OF_CLASSES = ("cross_entropy", "nll_loss", "kl_div")
_ELEMENTS = 1 << 20
"""Of larger tensors the values are not looked at."""
_LABELS = 1 << 16
_CLASSES = 64
_FORMULA = 64
"""So many operations of a formula of the program's own are looked at."""
_TERMS = 16
"""So many terms of a loss are looked at."""
_BY_ELEMENT = {"Add", "Sub", "Rsub", "Mul", "Div", "Pow", "Abs", "Neg", "Exp", "Log", "Sqrt", "Square", "Log1P", "Cosh"}
_BY_ELEMENT |= {"Maximum", "Minimum", "Where", "Clamp", "ClampMin", "Relu", "Softplus", "LogSigmoid", "Huber"}
_RECENT = 64
"""Of so many results of these functions the operation is known: they are no formulas of the program's own."""
_CALLS = 4
"""So many calls of one line are told per step."""
_SUM = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""How far a sum of probabilities may be from 1."""


@watcher
class Losses(Watcher):
    """LossComputed."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._told: Counter[tuple[int, Place | None]] = Counter()
        self._computed_by: deque[int] = deque(maxlen=_RECENT)
        for name in _FUNCTIONS:
            self.wrap(functional, name, self._of(name))

    def _of(self, name: str) -> Callable[..., None]:
        def told(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            given = dict(zip(("input", "target"), args, strict=False)) | kwargs
            prediction, target = given.get("input"), given.get("target")
            if isinstance(prediction, torch.Tensor) and isinstance(target, torch.Tensor):
                if isinstance(result, torch.Tensor) and result.grad_fn is not None:
                    self._computed_by.append(result.grad_fn._sequence_nr())
                self._computed(name, prediction, target)

        return told

    def _computed(self, name: str, prediction: torch.Tensor, target: torch.Tensor) -> None:
        at, step = place(), self.recorder.steps
        self._told[step, at] += 1
        if self._told[step, at] > _CALLS or type(prediction) not in (torch.Tensor, torch.nn.Parameter):
            return
        nodes = behind(prediction)
        values = {}
        if self.recorder.sampled and 0 < prediction.numel() <= _ELEMENTS and 0 < target.numel() <= _ELEMENTS:
            limits = bounds(nodes[0]) if nodes else None
            values = _values(name, prediction.detach().cpu(), target.detach().cpu(), limits)
            if values and (over := normalised_over(prediction)) is not None:
                values["over"] = over  # the dimension of the softmax behind it
        self.recorder.add(
            LossComputed(
                name,
                step,
                prediction.requires_grad,
                tuple(prediction.shape),
                tuple(target.shape),
                tuple(name_of(n) for n in nodes),
                _labels(name, target.detach()),
                values,
                at,
            )
        )

    def before_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """A mean or sum of squares or absolutes of a difference, alone or as a term of the loss."""
        for node in _terms(tensors[0].grad_fn) if len(tensors) == 1 else ():
            even = node
            while even is not None and name_of(even) in ("Mean", "Sum"):  # of the pixels of a sample, then of samples
                even = _next(even)
            even = None if even is node else even
            difference = _next(even) if even is not None and name_of(even) in ("Pow", "Abs") else None
            if self._known(node) or (even is not None and self._known(even)):
                continue
            if difference is not None and name_of(difference) in ("Sub", "Rsub"):
                self._difference(even, difference)
            elif name_of(node) in ("Mean", "Sum"):
                self._grown(node)

    def _known(self, node: Any) -> bool:
        return node._sequence_nr() in self._computed_by

    def _grown(self, reduced: Any) -> None:
        """Differences [B, B] of a prediction [B, 1], in a formula of the program's own that goes on by element."""
        waiting = [n for n, _ in reduced.next_functions if n is not None]
        seen = set(waiting)
        while waiting and len(seen) < _FORMULA:
            node = waiting.pop()
            shape, given = shape_of(node), [(n, k) for n, k in node.next_functions if n is not None]
            if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2 or name_of(node) not in _BY_ELEMENT:
                continue
            if name_of(node) in ("Sub", "Rsub") and len(given) == 1:
                made, output = given[0]
                of = shape_of(made, output)
                if of == (shape[0], 1) and name_of(made) != "Unsqueeze":  # made a column on purpose: all pairs
                    behind_it = tuple(name_of(n) for n in nodes_behind(made))
                    found = LossComputed("difference", self.recorder.steps, True, of, shape, behind_it, {}, {}, place())
                    self.recorder.add(found)
                    return
            waiting += [n for n, _ in given if n not in seen]
            seen.update(waiting)

    def _difference(self, even: Any, difference: Any) -> None:
        sides = [(i, n, k) for i, (n, k) in enumerate(difference.next_functions) if n is not None]
        if len(sides) != 1:
            return  # two sides that carry a gradient: none is the target
        side, made, output = sides[0]
        of, shape = shape_of(made, output), shape_of(difference)
        nodes = nodes_behind(made)
        limits = bounds(nodes[0]) if nodes else None
        values: dict[str, Any] = {}
        prediction: Any = getattr(nodes[0], "_saved_result", None) if nodes else None
        error = even._saved_self
        flat = max(of, default=1) == math.prod(of)  # then a change of the shape keeps the order
        known = isinstance(prediction, torch.Tensor) and shape == of and prediction.numel() == error.numel()
        if known and (flat or tuple(prediction.shape) == shape):
            prediction = prediction.reshape(shape)
        else:
            known = False
        if limits is not None and self.recorder.sampled and known and 0 < error.numel() <= _ELEMENTS:
            target = prediction - error if side == 0 else prediction + error
            values = _values("difference", prediction.cpu(), target.cpu(), limits)
        # what the difference has grown to is what is known of the shape of the target
        made_of, squeezed = tuple(name_of(n) for n in nodes), _squeezed(made, of)
        steps = self.recorder.steps
        self.recorder.add(
            LossComputed("difference", steps, True, of, shape, made_of, {}, values, place(), squeezed=squeezed)
        )


def _terms(node: Any) -> list[Any]:
    """The nodes whose results, each times a number, the loss is the sum of: without those that only change a shape."""
    found: list[Any] = []
    waiting = nodes_behind(node, 1)
    while waiting and len(found) < _TERMS:
        term = waiting.pop()
        if name_of(term) in ("Add", "Sub", "Mul", "Div", "Neg") and shape_of(term) == ():
            waiting += [each for n, _ in term.next_functions if n is not None for each in nodes_behind(n, 1)]
        else:
            found.append(term)
    return found


def _squeezed(made: Any, of: tuple[int, ...]) -> bool:
    """Whether a prediction [B] was a column [B, 1] before."""
    given = [(n, k) for n, k in made.next_functions if n is not None]
    return name_of(made) == "Squeeze" and len(given) == 1 and shape_of(*given[0]) == (*of, 1)


def _next(node: Any) -> Any:
    found = [n for n, _ in node.next_functions if n is not None]
    return next(iter(nodes_behind(found[0], 1)), None) if found else None


def _labels(name: str, target: torch.Tensor) -> dict[str, int]:
    """Class -> how often it is in the target."""
    if not 0 < target.numel() <= _LABELS:
        return {}
    flat = target.reshape(-1).cpu()
    if target.is_floating_point() and (
        not name.startswith("binary_cross_entropy") or not bool(((flat == 0) | (flat == 1)).all())
    ):
        return {}
    classes, counts = torch.unique(flat.long(), return_counts=True)
    counted = {str(c): n for c, n in zip(classes.tolist(), counts.tolist(), strict=True)}
    return counted if len(counted) <= _CLASSES else {}


def _values(
    name: str, prediction: torch.Tensor, target: torch.Tensor, limits: tuple[float, float] | None
) -> dict[str, Any]:
    """lowest, highest: of the prediction. ones: dimensions over which it sums to 1, as probabilities do; logs: the same
    of its exponentials. classes: the dimension of the classes. limits: of what made the prediction; beyond: share of
    the target outside of them, lost: mean square of what is outside, by `spread`, the target's variance. size: the
    mean of its squares."""
    exact = prediction.double()
    low, high = float(exact.min()), float(exact.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        return {}
    found: dict[str, Any] = {"lowest": low, "highest": high}
    near = _SUM.get(prediction.dtype, 1e-4)
    axes = [d for d in range(exact.dim()) if exact.shape[d] > 1]
    if low >= 0 and high <= 1 + near:
        found["ones"] = [d for d in axes if bool(((exact.sum(d) - 1).abs() < near).all())]
    if name in _OF_CLASSES:
        found["classes"] = exact.dim() - 1 if name == "kl_div" else min(1, exact.dim() - 1)
        found["logs"] = [d for d in axes if bool((exact.logsumexp(d).abs() < 10 * near).all())]
    if target.is_floating_point() and target.numel() > 1:
        found["spread"] = float(target.double().var())
        found["size"] = float(target.double().square().mean())
    if limits is not None and limits != (-math.inf, math.inf):
        found["limits"] = [each if math.isfinite(each) else None for each in limits]
        if target.is_floating_point():
            goal, spread = target.double(), found.get("spread", 0.0)
            excess = (limits[0] - goal).clamp(min=0) + (goal - limits[1]).clamp(min=0)
            found["beyond"] = float((excess > 0).double().mean())
            found["lost"] = float(excess.square().mean()) / spread if spread else 0.0
    return found
