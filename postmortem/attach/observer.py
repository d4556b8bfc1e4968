"""The actions of a watched program as events. The patches are installed once; the observer can be replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class Observer:
    """Listens to one process of the user's program. Every method does nothing by default.

    In a process that the program forks, who listens is what `in_fork` returned there; what the observer itself holds is
    of the process before. Our own copies of a process go on with what they are told to.

    A tick is what the program does up to the end of one `optimizer.step` (or `scaler.step`, also one that the scaler
    skips); ticks count from 0, from the start of the program. In a tick the events come in this order: `batch`,
    `loss` and `backward_done` once for each backward pass, `before_update`, `after_update`, `tick`. A program may draw
    batches ahead, and a tick may have no backward pass of its own.
    """

    def in_fork(self) -> Observer:
        """This process was just forked by the program -> who listens in it. It may not raise, and is to be fast."""
        return Observer()

    def batch(self, loader: Any, index: int, batch: Any) -> Any:
        """The iterator of a DataLoader was asked, the `index`-th time in this iteration, from 0, and gave this batch.
        What is returned takes its place."""
        return batch

    def no_batch(self, loader: Any, index: int, error: Exception) -> None:
        """It was asked, and raised: StopIteration at the end of an iteration, or what its data set raised."""

    def receive(self, way: int, source: Any, ask: Callable[[], Any]) -> Any:
        """The program waits for another thread or process: `ask` does that, see `boundaries.channels`. What is returned
        or raised takes the place of what it gives. Called in any thread."""
        return ask()

    def forward(self, root: torch.nn.Module, name: str) -> None:
        """A module is called that no other module calls. Only spoken while `boundaries.watch_roots` is on."""

    def loss(self, loss: torch.Tensor) -> None:
        """A backward pass begins at this tensor: the loss as the program scaled it, before the gradients."""

    def backward_done(self) -> None:
        """The backward pass has ended."""

    def read(self, loss: torch.Tensor) -> None:
        """The program reads a non-finite scalar that gradients could flow through: a loss, before its backward pass."""

    def abandoned(self, loss: torch.Tensor) -> None:
        """The loss that was told last by `read` gets no backward pass: the program skips it, or ends."""

    def dropping(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients of this tick are about to be zeroed without an update: the program may skip it."""

    def ready(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer was made, or its state was loaded."""

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """The gradients are final. With a closure (LBFGS, Lightning) at the end of the closure."""

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """The optimizer has changed the parameters, or a scaler skipped that."""

    def skipped_by_the_program(self) -> None:
        """It has seen non-finite gradients itself, by `Watch.skip_bad`, and leaves out their update."""

    def tick(self, number: int) -> None:
        """A tick has ended."""

    def raised(self, error: BaseException) -> None:
        """The program ends with an exception that nobody caught."""

    def end(self) -> None:
        """The program ends by itself."""
