"""A training by the steps of a recipe, for `check --recipe`: ``python -m postmortem.attach.recipe_training FILE.py``.

Run under observation as any program is. It begins without a checkpoint, and ends with the batches or after as many
steps as are given as second argument.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch  # first: from here on the process is watched

from postmortem.core.errors import ReplayError
from postmortem.replay.model import Context
from postmortem.replay.recipe.load import Recipe
from postmortem.replay.step.errors import exits_are_errors
from postmortem.replay.step.runner import StepRunner
from postmortem.silent.trials import as_tried

if TYPE_CHECKING:
    from postmortem.replay.model import TrainStep


class Training(StepRunner):
    """Runs one step after another."""

    def __init__(self, train_step: TrainStep) -> None:
        super().__init__(train_step)
        self._next = as_tried(self._ask)

    def train(self, step: int) -> None:
        """One step with its batch. Raises ReplayError if there is no more."""
        if self.train_step.before_step is not None:
            self.train_step.before_step(step)
        with exits_are_errors():
            batch = self._next(step)
        self.run(batch, step)


def main(file: str, steps: int) -> None:
    """Runs the steps."""
    recipe = Recipe(file)
    with recipe.importable():
        training = Training(recipe.build(Context(device=torch.device("cpu"))))
        first = training.train_step.first_step or 0
        with torch.enable_grad():
            for step in range(first, first + steps):
                try:
                    training.train(step)
                except (ReplayError, IndexError, KeyError):
                    if step == first:
                        raise
                    break  # the batches are over


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except ReplayError as error:
        sys.exit(f"{error}")
