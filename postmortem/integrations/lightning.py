"""A callback of Lightning: `Trainer(callbacks=[PostmortemCallback()])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.attach.in_process import Watch, watch

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the older name of the same package
    from pytorch_lightning.callbacks import Callback  # type: ignore[assignment]

if TYPE_CHECKING:
    from postmortem.core.culprit import ReplayResult


class PostmortemCallback(Callback):
    """Watches the training as `postmortem.watch` does, whose options it takes. result: as there."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._watch: Watch | None = None

    @property
    def result(self) -> ReplayResult | None:
        """What was found."""
        return self._watch.result if self._watch is not None else None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins."""
        self._watch = watch(**self._options).__enter__()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends with an exception."""
        if self._watch is not None:
            self._watch.__exit__(type(exception), exception, exception.__traceback__)
