"""The inputs of the outermost modules, and whether they differ between calls."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.facts import InputSeen
from postmortem.silent.observe.identities import Numbers
from postmortem.silent.observe.places import place
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import LayerInput

if TYPE_CHECKING:
    from postmortem.silent.observe.recorder import Recorder

_ELEMENTS = 4096
"""So many elements of an input are compared."""
_LARGEST = 1 << 20
"""Of larger inputs the first samples only are measured."""


@watcher
class Inputs(Watcher):
    """InputSeen, LayerInput."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._tensors = Numbers()
        self._waiting = False
        self._measured: int | None = None
        """The root whose first layer is waited for."""

    def entered(self, module: torch.nn.Module, args: tuple[Any, ...], running: list[torch.nn.Module]) -> None:
        """The first tensor; of a module that is called with keywords only, that of the first one that it calls."""
        if len(running) == 1:
            self._waiting, self._measured = True, None
        elif self._measured is not None and any(p is not None for p in module._parameters.values()):
            self._first_layer(module, args)
        given = _first(args) if self._waiting else None
        if given is None or type(given) not in (torch.Tensor, torch.nn.Parameter) or given.device.type == "meta":
            return
        self._waiting = False
        root = running[0]
        if given.numel() and any(True for _ in root.parameters()):
            self._seen(root, given, args if len(running) == 1 else ())

    def _seen(self, root: torch.nn.Module, given: torch.Tensor, args: tuple[Any, ...]) -> None:
        values = _measured(given.detach()) if self.recorder.sampled and given.is_floating_point() else {}
        if values:
            values["others"] = any(_varied(each) for each in args if each is not given)
        if "sizes" in values:
            self._measured = self.recorder.modules.of(root)[0]
        base = given._base if given._base is not None else given
        rows = base.shape[0] if base is not given and base.dim() == given.dim() else None
        flat = given.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // _ELEMENTS)].cpu().contiguous()
        self.recorder.add(
            InputSeen(
                self.recorder.modules.of(root)[0],
                self.recorder.steps,
                root.training,
                self.recorder.grad,
                tuple(given.shape),
                str(given.dtype).removeprefix("torch."),
                zlib.crc32(some.view(torch.uint8).numpy().tobytes()),
                self._tensors.of(given)[0],
                self._tensors.of(base)[0],
                rows,
                self.recorder.loader,
                values,
                place(),
                given.requires_grad,
            )
        )

    def _first_layer(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        root, self._measured, given = self._measured, None, _first(args)
        if root is None or given is None or type(given) is not torch.Tensor or not given.is_floating_point():
            return
        sizes = _measured(given.detach()).get("sizes") if given.numel() else None
        if sizes:
            self.recorder.add(LayerInput(root, self.recorder.steps, type(module).__name__, tuple(sizes)))


def _first(given: Any) -> torch.Tensor | None:
    if isinstance(given, torch.Tensor):
        return given if given.dim() else None
    if isinstance(given, dict):
        given = list(given.values())
    if isinstance(given, (list, tuple)):
        return next((found for each in given if (found := _first(each)) is not None), None)
    return None


def _varied(given: Any) -> bool:
    """Whether tensors differ within themselves."""
    if isinstance(given, torch.Tensor):
        plain = type(given) in (torch.Tensor, torch.nn.Parameter) and given.device.type != "meta"
        return plain and given.numel() > 1 and bool((given != given.reshape(-1)[0]).any())
    return any(_varied(each) for each in given) if isinstance(given, (list, tuple)) else False


def _measured(given: torch.Tensor) -> dict[str, Any]:
    """rows, width: samples that were measured, and elements of each. others (of a model): it was given other tensors
    that are not constant. distinct: how many samples differ. common: the
    median over the samples of the share of the elements of a sample that have its median. sizes: the smallest
    and the largest root mean square of those columns of a table that are not constant; else, that of all elements."""
    rows = max(1, min(given.shape[0], _LARGEST * given.shape[0] // given.numel()))
    exact = given[:rows].reshape(rows, -1).cpu().double()
    if not bool(exact.isfinite().all()):
        return {}
    usual = exact.median(1, keepdim=True).values
    found: dict[str, Any] = {
        "rows": rows,
        "width": exact.shape[1],
        "distinct": len({r.tobytes() for r in exact.numpy()}),
    }
    found["common"] = float((exact == usual).double().mean(1).median())
    if rows > 1:
        table = exact if given.dim() == 2 else exact.reshape(-1, 1).expand(-1, 2)
        sizes = table.square().mean(0).sqrt()[table.std(0) > 0]
        if sizes.numel() > 1:
            found["sizes"] = [float(sizes.min()), float(sizes.max())]
    return found
