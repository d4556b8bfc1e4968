"""The planned length of a training, and how much of it was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from postmortem.core.view import View

_TOTALS = (
    "max_steps",
    "total_steps",
    "num_train_steps",
    "max_iters",
    "train_iters",
    "total_iterations",
    "num_iterations",
    "max_train_steps",
    "iterations",
)
_EPOCHS = ("num_train_epochs", "max_epochs", "num_epochs", "epochs", "n_epochs", "total_epochs")


class TrainingLength(NamedTuple):
    """Steps or epochs that were done and planned; a part of an epoch is a fraction."""

    done: float
    planned: float
    unit: str

    def __str__(self) -> str:
        """In words.

        >>> print(TrainingLength(40, 100, "step"), "|", TrainingLength(3.5, 10, "epoch"))
        at step 40 of 100 | in epoch 4 of 10
        >>> print(TrainingLength(3, 10, "epoch"))
        after epoch 3 of 10
        """
        if self.unit == "epoch" and self.done != int(self.done):
            return f"in epoch {int(self.done) + 1} of {self.planned:g}"
        return f"{'after' if self.unit == 'epoch' else 'at'} {self.unit} {self.done:g} of {self.planned:g}"


def training_length(view: View) -> TrainingLength | None:
    """From what the files say of it, else from the configuration; None if neither has it."""
    plans = [r.facts["plan"] for r in view.run.readings if "plan" in r.facts]
    if plans:  # of several files of a run, the one with the most progress
        plan = max(plans, key=lambda p: p["done"] / p["planned"])
        done = max(plan["done"], view.last_step or 0) if plan["unit"] == "step" else plan["done"]
        return TrainingLength(float(done), float(plan["planned"]), plan["unit"])
    steps, epochs = (next((n for _, n in view.settings(*names) if 0 < n < 1e15), None) for names in (_TOTALS, _EPOCHS))
    if steps is not None and view.last_step is not None:
        return TrainingLength(float(view.last_step), steps, "step")
    epoch = view.main("epoch")
    if epochs is not None and epoch is not None and len(epoch.finite):
        return TrainingLength(_epochs_done(epoch.finite.value), epochs, "epoch")
    return None


def _epochs_done(epoch: NDArray[np.float64]) -> float:
    """The number of epochs done, from the logged values float64[n].

    Fractions count what is done. Whole numbers count epochs that ended, from 1 or from 0.
    """
    counts_done = epoch[0] == 1 or bool((epoch % 1).any())
    return float(epoch.max()) + (0 if counts_done else 1)
