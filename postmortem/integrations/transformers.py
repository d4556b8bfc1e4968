"""A callback of transformers: `Trainer(…, callbacks=[PostmortemCallback()])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from postmortem.attach.in_process import Watch, watch

if TYPE_CHECKING:
    from postmortem.core.culprit import ReplayResult


class PostmortemCallback(TrainerCallback):
    """Watches the training as `postmortem.watch` does, whose options it takes. result: as there."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._watch: Watch | None = None

    @property
    def result(self) -> ReplayResult | None:
        """What was found."""
        return self._watch.result if self._watch is not None else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins."""
        self._watch = watch(**self._options).__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends. An exception that ends the training is told when it ends the program."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
