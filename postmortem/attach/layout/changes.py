"""The change that a trial makes in the user's program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from postmortem.replay.fixes.contiguous import ContiguousAtLine
from postmortem.replay.fixes.source_edit import contiguous_line, view_line
from postmortem.replay.fixes.view import ViewAtLine
from postmortem.replay.trace.strides import dense, expected

if TYPE_CHECKING:
    from collections.abc import Iterator


class Change:
    """fix: of `told.changes`. `begin` at the start of the program, `on_model` for each model before it is used."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.fix: str = order.get("fix", "none")
        self._places = [(file, line) for file, line in order.get("places", ())]
        self._parameters = order.get("parameters", ())
        self._modes: list[Any] = []
        self._done: set[int] = set()

    def begin(self) -> None:
        """Enters the modes that change calls; they stay to the end."""
        if self.fix == "view":
            self._modes = [ViewAtLine(self._places)]
        elif self.fix == "contiguous":
            self._modes = [ContiguousAtLine(*place) for place in self._places]
        for mode in self._modes:
            mode.__enter__()

    def on_model(self, name: str | None, model: torch.nn.Module) -> None:
        """Changes the parameters of a model; name: what the program calls it, None for any."""
        for parameter, wanted in self._wanted(name, model):
            if id(parameter) in self._done:
                continue
            self._done.add(id(parameter))
            if self.fix == "gradient-hook":
                parameter.register_hook(_copier(parameter))  # type: ignore[no-untyped-call]
            elif self.fix == "parameter-layout" and dense(parameter.shape, wanted):
                turned = torch.empty_strided(
                    tuple(parameter.shape), wanted, dtype=parameter.dtype, device=parameter.device
                )
                parameter.data = turned.copy_(parameter.data)

    def _wanted(self, name: str | None, model: torch.nn.Module) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
        own = dict(unwrapped(model).named_parameters(remove_duplicate=False))
        for each in self._parameters:
            if name in (None, each["model"]) and each["parameter"] in own:
                yield own[each["parameter"]], tuple(each["strides"])

    def buckets(self, options: dict[str, Any]) -> None:
        """Changes what DistributedDataParallel is called with."""
        if self.fix == "no-bucket-view":
            options["gradient_as_bucket_view"] = False

    def met(self) -> list[dict[str, Any]]:
        """The lines that were changed, with the changed source where that can be written."""
        found = []
        for mode in self._modes:
            if isinstance(mode, ViewAtLine):
                found += [{"place": list(p), "diff": view_line(f, span, shape)} for p, f, span, shape in mode.met]
            else:
                found += [{"place": [mode.file, mode.line], "diff": contiguous_line(mode.file, s)} for s in mode.met]
        return found


def _copier(parameter: torch.Tensor) -> Any:
    """A hook that gives a gradient the strides of its parameter; `contiguous()` leaves dimensions of size 1 alone."""
    strides = expected(parameter)

    def copy(grad: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tuple(grad.shape), strides, dtype=grad.dtype, device=grad.device).copy_(grad)

    return copy


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside DDP, DataParallel and torch.compile."""
    while True:
        inner = model._modules.get("_orig_mod")
        if isinstance(model, (DistributedDataParallel, torch.nn.DataParallel)):
            inner = model.module
        if inner is None:
            return model
        model = inner
