"""What a checkpoint holds, if there is one, and which optimizer and scheduler wrote their state to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OPTIMIZERS = (  # the settings of a group that only this class has
    ("SGD", {"momentum", "dampening", "nesterov"}, ("lr", "momentum", "dampening", "weight_decay", "nesterov")),
    ("RMSprop", {"alpha", "centered"}, ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")),
    ("Adagrad", {"lr_decay", "initial_accumulator_value"}, ("lr", "lr_decay", "weight_decay", "eps")),
    ("Adam", {"betas", "amsgrad"}, ("lr", "betas", "eps", "weight_decay", "amsgrad")),
)
_SCHEDULERS = (
    ("CosineAnnealingLR", ("T_max", "eta_min")),
    ("StepLR", ("step_size", "gamma")),
    ("ExponentialLR", ("gamma",)),
)


class Layout:
    """The parts of the content of one checkpoint, by form and usual names."""

    def __init__(self, path: Path | None, content: Any) -> None:
        self.path = path
        self.content: dict[Any, Any] = content if isinstance(content, dict) else {"model": content}

    @property
    def is_trainer(self) -> bool:
        """A `checkpoint-N` folder of transformers' Trainer."""
        return self.path is not None and self.path.is_dir() and (self.path / "trainer_state.json").is_file()

    @property
    def is_lightning(self) -> bool:
        """A `.ckpt` of Lightning."""
        return {"state_dict", "pytorch-lightning_version"} <= self.content.keys()

    def described(self) -> str:
        """The name of the checkpoint, and a line per part: its key and what it is."""
        if self.path is None:
            return "No checkpoint was found: the replay begins with the initial state, as this recipe makes it."
        parts = "\n".join(f"    {key}: {_form(value)}" for key, value in self.content.items())
        return f"{self.path.name} holds\n{parts}\n\npostmortem loads that by itself after `recipe` returned."

    def weights(self) -> dict[str, torch.Tensor]:
        """The largest dict of tensors by name."""
        dicts = [d for d in (self.content, *self.content.values()) if isinstance(d, dict) and "param_groups" not in d]
        found = [{k: v for k, v in d.items() if isinstance(v, torch.Tensor)} for d in dicts]
        return max(found, key=len, default={})

    def _states(self, wanted: str) -> Iterator[dict[Any, Any]]:
        for value in self.content.values():
            for state in value if isinstance(value, list) else [value]:
                if isinstance(state, dict) and wanted in state:
                    yield state

    def optimizer(self) -> str | None:
        """The expression that makes the optimizer of `model`; None if its class or its groups are not known."""
        states = list(self._states("param_groups"))
        if len(states) != 1:
            return None
        groups = states[0]["param_groups"]
        for name, own, settings in _OPTIMIZERS:
            if own <= groups[0].keys():
                # Adam and AdamW have the same settings; torch 2.7 and newer note which of them it is
                decoupled = groups[0].get("decoupled_weight_decay", groups[0].get("weight_decay"))
                shown = "AdamW" if name == "Adam" and decoupled else name
                given = ", ".join(f"{key}={groups[0][key]!r}" for key in settings if key in groups[0])
                split = self._groups(groups)
                return f"torch.optim.{shown}({split}, {given})" if split is not None else None
        return None

    def _groups(self, groups: list[dict[str, Any]]) -> str | None:
        if len(groups) == 1:
            return "model.parameters()"
        shapes = [len(t.shape) >= 2 for t in self.weights().values()]
        if [len(g["params"]) for g in groups] != [sum(shapes), len(shapes) - sum(shapes)]:
            return None
        matrices = ("[p for p in model.parameters() if p.dim() >= 2]", "[p for p in model.parameters() if p.dim() < 2]")
        parts = (
            f'{{"params": {which}, "weight_decay": {group.get("weight_decay", 0)!r}}}'
            for which, group in zip(matrices, groups, strict=True)
        )
        return f"[{', '.join(parts)}]"

    def scheduler(self) -> str | None:
        """The expression that makes the scheduler of `optimizer`; "None" without one, None if it is not known."""
        states = list(self._states("last_epoch"))
        if self.path is None:
            return None
        if not states:
            return "None"
        for name, settings in _SCHEDULERS:
            if len(states) == 1 and all(key in states[0] for key in settings):
                given = ", ".join(f"{key}={states[0][key]!r}" for key in settings)
                return f"torch.optim.lr_scheduler.{name}(optimizer, {given})"
        return None


def _form(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, dict) and "param_groups" in value:
        return f"state of an optimizer, {sum(len(g['params']) for g in value['param_groups'])} parameters"
    if isinstance(value, dict) and "last_epoch" in value:
        return "state of a scheduler"
    if isinstance(value, dict) and value and all(isinstance(v, torch.Tensor) for v in value.values()):
        return f"weights, {len(value)} tensors: {', '.join(map(str, list(value)[:3]))}, …"
    if isinstance(value, dict | list):
        return f"{type(value).__name__} of {len(value)}"
    return ascii(value)[:80]
