"""The loss and the gradient norm of each sample of a batch, at the present weights: by vmap, else one by one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from postmortem.replay.rerun.samples import Samples
    from postmortem.replay.step.runner import StepRunner
    from postmortem.replay.step.state import State

_AT_ONCE = 2**26
"""Numbers that the gradients of all samples of one pass may hold together."""
_ONE_BY_ONE = 128  # samples that are run alone at most

Values = list[float]


class BySample:
    """Per-sample values of batches at one state of the training, which is restored before each question.

    how: how the last values were found: "vmap", "one by one", or "" if they could not be found.
    """

    def __init__(self, runner: StepRunner, state: State) -> None:
        self._runner, self._state, self.how = runner, state, ""
        self._vmaps = len(runner.models) == 1 and isinstance(runner.train_step.model, torch.nn.Module)

    def losses(self, batch: Any, samples: Samples) -> Values | None:
        """The loss of each sample alone; None if the step cannot be run on single samples."""
        return self._values(batch, samples, range(samples.size), self._loss_by_vmap, self._loss_alone)

    def gradient_norms(self, batch: Any, samples: Samples, of: Collection[int]) -> dict[int, float] | None:
        """Sample -> norm of the gradient of its loss, at least for the samples `of`."""
        few = sorted(of)
        values = self._values(batch, samples, few, self._norm_by_vmap, self._norm_alone)
        if values is None:
            return None
        return dict(zip(few if len(values) == len(few) else range(samples.size), values, strict=True))

    def _values(self, batch: Any, samples: Samples, of: Collection[int], at_once: Any, alone: Any) -> Values | None:
        self.how = ""
        if samples.size < 2 or isinstance(self._runner.train_step.step, dict):
            return None
        ways: list[tuple[str, Callable[[], Values]]] = []
        if self._vmaps and samples.stacks:
            ways.append(("vmap", lambda: at_once(batch, samples)))
        if len(of) <= _ONE_BY_ONE:
            ways.append(("one by one", lambda: [alone(batch, samples, i) for i in of]))
        for how, ask in ways:
            self._runner.restore(self._state)
            try:
                values = ask()
            except Exception:  # noqa: BLE001  (user code under vmap, or on a single sample, may raise anything)
                continue
            if all(map(math.isfinite, values)):
                self.how = how
                return values
        return None

    # ---- vmap

    def _each(self, batch: Any, samples: Samples) -> Iterator[tuple[Any, list[torch.Tensor], tuple[int, ...]]]:
        for part in samples.micro_batches(batch):
            tensors = samples.tensors(part)
            yield samples.rebuilder(part), [t for t, _ in tensors], tuple(dim for _, dim in tensors)

    def _loss_by_vmap(self, batch: Any, samples: Samples) -> Values:
        found: Values = []
        for rebuilt, tensors, dims in self._each(batch, samples):

            def alone(*rows: torch.Tensor, rebuilt: Callable[..., Any] = rebuilt) -> torch.Tensor:
                return self._runner.loss_of(rebuilt(rows))

            with torch.no_grad():
                found += torch.func.vmap(alone, in_dims=dims, randomness="different")(*tensors).double().tolist()
        return found

    def _norm_by_vmap(self, batch: Any, samples: Samples) -> Values:
        root = _Root(self._runner)
        parameters = {name: p.detach() for name, p in root.named_parameters() if p.requires_grad}
        at_once = max(1, _AT_ONCE // max(1, sum(p.numel() for p in parameters.values())))
        found: Values = []
        for rebuilt, tensors, dims in self._each(batch, samples):

            def norm(*rows: torch.Tensor, rebuilt: Callable[..., Any] = rebuilt) -> torch.Tensor:
                def loss(given: dict[str, torch.Tensor]) -> torch.Tensor:
                    value: torch.Tensor = torch.func.functional_call(root, given, (rebuilt(rows),))
                    return value

                gradients = torch.func.grad(loss)(parameters)
                return torch.stack([g.double().square().sum() for g in gradients.values()]).sum().sqrt()

            with torch.enable_grad():
                mapped = torch.func.vmap(norm, in_dims=dims, randomness="different", chunk_size=at_once)
                found += mapped(*tensors).tolist()
        return found

    # ---- one by one

    def _loss_alone(self, batch: Any, samples: Samples, index: int) -> float:
        with torch.no_grad():
            return float(self._runner.loss_of(samples.alone(batch, index)).item())

    def _norm_alone(self, batch: Any, samples: Samples, index: int) -> float:
        with torch.enable_grad():
            loss = self._runner.loss_of(samples.alone(batch, index))
            parameters = [p for p in self._runner.named_parameters().values() if p.requires_grad]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        squares = [g.double().square().sum() for g in gradients if g is not None]
        return float(torch.stack(squares).sum().sqrt().item()) if squares else 0.0


class _Root(torch.nn.Module):
    """The user's step as a module, so that `functional_call` can exchange the parameters."""

    def __init__(self, runner: StepRunner) -> None:
        super().__init__()
        self.model = runner.train_step.model
        self._of = runner.loss_of

    def forward(self, batch: Any) -> torch.Tensor:
        return self._of(batch)
