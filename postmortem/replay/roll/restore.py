"""Puts a checkpoint's content into a recipe's model, optimizer, scheduler, scaler and random generators.

Each part is looked for by what it looks like (a dict of tensors that fits the model, a dict with ``param_groups``, …), the usual
names deciding where several fit. The account says what fitted, from where, and what did not.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from postmortem.checkpoints.content import read_file
from postmortem.checkpoints.find import companions_of
from postmortem.checkpoints.formats.shared.restricted_pickle import WHOLE
from postmortem.core.errors import ReplayError, UnreadableCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.checkpoints.content import Saved
    from postmortem.replay.step.runner import StepRunner

    Where = tuple[str, ...]

_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_SHADOW = ("ema", "shadow", "swa", "averaged", "teacher", "best")  # a second copy of the weights beside those in training
_CPU_RNG_BYTES = 5056  # torch's mt19937 state on the CPU


NO_RANDOM_STATE = "the checkpoint has no random state: noise (dropout, shuffling) cannot be the run's own"


@dataclass(slots=True)
class SavedRng:
    """Random states found in a checkpoint; None where it has none of that kind."""

    cpu: torch.Tensor | None = None
    cuda: list[torch.Tensor] = field(default_factory=list)
    numpy: Any = None
    python: Any = None

    def restore(self) -> None:
        """Sets every generator: to the saved state, or to a fixed seed, so that what came before has no effect."""
        import random

        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        if self.cpu is not None:
            torch.set_rng_state(self.cpu)
        if self.cuda and torch.cuda.is_available():
            for device, state in enumerate(self.cuda[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state, device)
        if self.numpy is not None:
            np.random.set_state(self.numpy)
        if self.python is not None:
            random.setstate(self.python)

    def names(self) -> list[str]:
        return [n for n in ("cpu", "cuda", "numpy", "python") if (value := getattr(self, n)) is not None and (n != "cuda" or value)]


@dataclass(slots=True)
class Account:
    """What of a checkpoint went where (`fitted`), what did not (`unfitted`), and the random states to set before the first batch."""

    fitted: list[str] = field(default_factory=list)
    unfitted: list[str] = field(default_factory=list)
    rng: SavedRng = field(default_factory=SavedRng)


def load_saved(runner: StepRunner, saved: Saved, *, trust: bool = False) -> Account:
    """Loads what `saved` holds into the runner's objects; the random states are left to the caller (`account.rng.restore()`).

    Of several models, or an optimizer, that it lacks, what was saved beside it for the same step is taken as well (`trust` as in `read_saved`).
    ReplayError where weights have other shapes than the model's, where trainable weights are missing, or where
    no weights are found at all: a replay from such a state would say nothing about the run.
    """
    saved = _with_companions(saved, runner, trust)
    account = Account(rng=find_rng(saved.content))
    for key, model in runner.models.items():
        _load_model(key, model, saved, account)
    _load_parts(account, saved.content, "optimizer", runner.optimizers, _is_optimizer, _load_optimizer(runner))
    schedulers = {"" if len(runner.schedulers) == 1 else str(i): s for i, s in enumerate(runner.schedulers)}
    _load_parts(account, saved.content, "scheduler", schedulers, _is_scheduler, _load_scheduler)
    if runner.scaler is not None:
        _load_parts(account, saved.content, "scaler", {"": runner.scaler}, _is_scaler, lambda s, state: s.load_state_dict(state))
    names = account.rng.names()
    (account.fitted if names else account.unfitted).append(f"random state: {', '.join(names)}" if names else NO_RANDOM_STATE)
    account.unfitted += [f"{p.path}: {p.what}" for p in saved.problems]
    return account


def _with_companions(saved: Saved, runner: StepRunner, trust: bool) -> Saved:
    """`saved` with the files beside it under their names, where it is one of several that make up the state of a step."""
    several = len(runner.models) > 1 or not any(_is_optimizer(state) for _, state in _dicts(saved.content))
    others = companions_of(saved.path) if several else []
    if not others:
        return saved
    content, problems = {saved.path.stem: saved.content}, list(saved.problems)
    for path in others:
        try:
            content[path.stem] = read_file(path, trust=trust)
        except UnreadableCheckpoint as error:
            problems.append(error.problem)
    return replace(saved, content=content, problems=problems)


# ---- weights


def _dicts(content: Any) -> Iterator[tuple[Where, dict[Any, Any]]]:
    """The dicts in nested dicts and short lists, with their paths, outer ones first; of those that hold themselves over and over, some."""
    return itertools.islice(_every_dict(content, (), 4), 100_000)


def _every_dict(value: Any, where: Where, depth: int) -> Iterator[tuple[Where, dict[Any, Any]]]:
    if isinstance(value, WHOLE):
        value = value.state_dict()
    if isinstance(value, dict):
        yield where, value
        items = value.items() if depth else ()
    elif isinstance(value, (list, tuple)) and len(value) <= 64 and depth:
        items = enumerate(value)  # type: ignore[assignment]
    else:
        return
    for key, inner in items:
        if isinstance(inner, (dict, list, tuple, *WHOLE)):
            yield from _every_dict(inner, (*where, str(key)), depth - 1)


def _is_weights(state: dict[Any, Any]) -> bool:
    return any(isinstance(v, torch.Tensor) and isinstance(k, str) for k, v in state.items()) and not _is_optimizer(state)


def _plain(name: str) -> str:
    """A parameter's name without what wrappers (DDP, FSDP, compile, checkpointing) put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


@dataclass(slots=True)
class _Fit:
    """How a saved dict fits a model: model's name -> saved name; names with other shapes; what was renamed."""

    where: Where
    source: dict[str, Any]
    pairs: dict[str, str]
    mismatched: list[str]
    renamed: str


def _fit(target: dict[str, Any], where: Where, source: dict[str, Any]) -> _Fit:
    wanted = {_plain(k): k for k in target}
    given = {_plain(k): k for k, v in source.items() if isinstance(k, str) and isinstance(v, torch.Tensor)}
    best: tuple[float, dict[str, str], str] = (-1.0, {}, "")
    for strip, add in [("", ""), *((p, "") for p in _prefixes(given)), *(("", p) for p in _prefixes(wanted))]:
        renamed = {add + k.removeprefix(strip): v for k, v in given.items() if k.startswith(strip)}
        pairs = {wanted[k]: v for k, v in renamed.items() if k in wanted}
        same = sum(_same_shape(target[t], source[s]) for t, s in pairs.items())
        score = same + 0.01 * len(pairs)
        if score > best[0]:
            said = f" (prefix {strip!r} taken off)" if strip else f" (prefix {add!r} put on)" if add else ""
            best = score, pairs, said
    pairs = best[1]
    mismatched = [t for t, s in pairs.items() if not _same_shape(target[t], source[s])]
    return _Fit(where, source, pairs, mismatched, best[2])


def _prefixes(names: dict[str, str]) -> list[str]:
    """Leading components ('model.', 'model.net.') that names share, up to three deep."""
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        for n in range(1, min(4, len(parts))):
            found[".".join(parts[:n]) + "."] = None
    return list(found)[:200]


def _same_shape(a: Any, b: Any) -> bool:
    return not isinstance(a, torch.Tensor) or a.shape == b.shape or (a.numel() == b.numel() == 1)


def _named(where: Where, key: str) -> float:
    """How much the path of a part speaks for the name `key`: 1 where a component is it, less where one contains it."""
    parts = [p.lower() for p in where]
    key = key.lower()
    if not key:
        return 0.0
    if key in parts:
        return 1.0
    return (
        0.5
        if any(key in part.replace("-", "_").split("_") or part.endswith(key) for part in parts)
        else 0.25
        if any(key in p for p in parts)
        else 0.0
    )


def _load_model(key: str, model: torch.nn.Module, saved: Saved, account: Account) -> None:
    what = f"model {key!r}" if key else "model"
    target = model.state_dict()
    fits = [_fit(target, where, state) for where, state in _dicts(saved.content) if _is_weights(state)]

    def worth(fit: _Fit) -> tuple[float, float, int]:
        matched = (len(fit.pairs) - len(fit.mismatched)) / max(1, len(target))
        shadow = any(s in part.lower() for part in fit.where for s in _SHADOW) and not _named(fit.where, key)
        return matched + _named(fit.where, key) - 0.3 * shadow, 0.01 * len(fit.pairs), -len(fit.where)

    best = max(fits, key=worth, default=None)
    tail = f"; {saved.problems[0].path}: {saved.problems[0].what}" if saved.problems else ""
    if best is None or not best.pairs:
        raise ReplayError(f"{saved.path}: no weights in it fit the recipe's {what}{tail}")
    place = ".".join(best.where) or "the file itself"
    if best.mismatched:
        shown = ", ".join(
            f"{n} is {tuple(best.source[best.pairs[n]].shape)} in the checkpoint and {tuple(target[n].shape)} in the model"
            for n in best.mismatched[:3]
        )
        raise ReplayError(f"{saved.path}: {len(best.mismatched)} weights do not fit the recipe's {what}: {shown}")
    model.load_state_dict({t: best.source[s] for t, s in best.pairs.items()}, strict=False)
    loaded = {id(t) for name, t in _tensors(model).items() if name in best.pairs}
    missing = [name for name, t in _tensors(model).items() if name not in best.pairs and name in target and id(t) not in loaded]
    trainable = [n for n in missing if _tensors(model)[n].requires_grad]
    adapter = any("lora" in s.lower() or "adapter" in s.lower() for s in best.pairs.values())
    if trainable and not adapter:
        raise ReplayError(
            f"{saved.path}: {len(trainable)} trainable weights of the recipe's {what} are missing in {place}: {', '.join(trainable[:4])}{tail}"
        )
    account.fitted.append(f"{what}: {len(best.pairs)} of {len(target)} tensors from {place}{best.renamed}")
    if missing:
        account.unfitted.append(f"{what}: not in the checkpoint: {_some(missing)}")
    used = set(best.pairs.values())
    unexpected = [k for k, v in best.source.items() if isinstance(v, torch.Tensor) and k not in used]
    if unexpected and best.where:
        account.unfitted.append(f"{what}: not in the recipe's model: {_some(unexpected)}")


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# ---- optimizer, scheduler, scaler


def _is_optimizer(state: dict[Any, Any]) -> bool:
    return isinstance(state.get("param_groups"), (list, dict)) and isinstance(state.get("state"), dict)


def _is_scheduler(state: dict[Any, Any]) -> bool:
    return "last_epoch" in state or "_last_lr" in state or ("lr_lambdas" in state)


def _is_scaler(state: dict[Any, Any]) -> bool:
    return "scale" in state and "growth_factor" in state


def _load_parts(
    account: Account, content: Any, what: str, parts: dict[str, Any], looks: Callable[[dict[Any, Any]], bool], load: Callable[[Any, Any], None]
) -> None:
    """Gives every part the saved dict that is meant for it: by name, else in order."""
    found = [(where, state) for where, state in _dicts(content) if looks(state)]
    # a scheduler made of schedulers (SequentialLR) holds the states of its parts: only the outermost is one
    outer = [(w, s) for w, s in found if not any(w != o and w[: len(o)] == o for o, _ in found)]
    for i, (key, part) in enumerate(parts.items()):
        label = f"{what} {key!r}" if key else what
        if not outer:
            account.unfitted.append(f"{label}: the checkpoint has none; it starts fresh")
            continue
        where, state = max(enumerate(outer), key=lambda e: (_named(e[1][0], key), e[0] == i, -e[0]))[1]
        before = copy.deepcopy(part.state_dict())
        try:
            load(part, state)
            account.fitted.append(f"{label}: from {'.'.join(where) or 'the file itself'}")
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, IndexError) as error:
            account.unfitted.append(f"{label}: {'.'.join(where)} does not fit: {' '.join(str(error).split())[:200]}; it starts fresh")
            part.load_state_dict(before)  # it may have taken a part of it


_BY_GROUP = ("base_lrs", "_last_lr", "lr_lambdas", "min_lrs", "max_lrs")  # lists with one entry per group of the optimizer


def _load_scheduler(scheduler: Any, state: dict[str, Any]) -> None:
    """ValueError where the state is of a scheduler of another kind or of another optimizer: torch itself would take it."""
    own = scheduler.state_dict()
    for key in _BY_GROUP:
        mine, other = own.get(key), state.get(key)
        if isinstance(mine, list) and key in state and (not isinstance(other, list) or len(other) != len(mine)):
            given = f"{len(other)} parameter groups" if isinstance(other, list) else f"{key} {other!r}"
            raise ValueError(f"it is for {given}, the recipe's optimizer has {len(mine)}")
    missing = sorted(k for k in own.keys() - state.keys() if not k.startswith("_"))
    if missing:
        raise ValueError(f"it is of another kind of scheduler than the recipe's {type(scheduler).__name__}: it has no {', '.join(missing[:3])}")
    scheduler.load_state_dict(state)


def _load_optimizer(runner: StepRunner) -> Callable[[Any, Any], None]:
    names = {id(p): _plain(n) for n, p in runner.named_parameters().items()}

    def load(optimizer: Any, state: dict[str, Any]) -> None:
        if isinstance(optimizer, torch.optim.Optimizer):
            state = _by_index(optimizer, state, names)
            _check_groups(optimizer, state)
            _check_shapes(optimizer, state)
        optimizer.load_state_dict(state)

    return load


def _by_index(optimizer: torch.optim.Optimizer, saved: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    """`saved` with its state keyed by position, as torch wants it (distributed checkpoints key it by name or by text)."""
    groups = saved["param_groups"]
    groups = [groups[k] for k in sorted(groups)] if isinstance(groups, dict) else groups
    state = {int(k) if isinstance(k, str) and k.isdigit() else k: v for k, v in saved["state"].items()}
    if any(isinstance(k, str) for k in state):
        by_name = {_plain(k): v for k, v in state.items() if isinstance(k, str)}
        params = [p for g in optimizer.param_groups for p in g["params"]]
        state = {i: by_name[names[id(p)]] for i, p in enumerate(params) if names.get(id(p)) in by_name}
        start, made = 0, []
        for own, group in zip(optimizer.param_groups, groups, strict=True):
            made.append({**group, "params": list(range(start, start + len(own["params"])))})
            start += len(own["params"])
        groups = made
    return {**saved, "state": state, "param_groups": groups}


_SETTINGS = {"lr", "betas", "eps", "momentum", "alpha", "dampening", "lr_decay", "lambd", "rho", "etas", "step_sizes"}


def _check_groups(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """ValueError where the saved state is of another kind of optimizer, or has other groups."""
    own, given = optimizer.param_groups, saved["param_groups"]
    missing = sorted((_SETTINGS & own[0].keys()) - given[0].keys()) if own and given else []
    if missing:
        raise ValueError(f"it is of another kind of optimizer than the recipe's {type(optimizer).__name__}: it has no {', '.join(missing)}")
    counts = [[len(g["params"]) for g in groups] for groups in (given, own)]
    if counts[0] != counts[1]:
        said = [f"{len(c)} group{'s' * (len(c) > 1)} of {', '.join(map(str, c))} parameters" for c in counts]
        raise ValueError(f"it has {said[0]}, the recipe's optimizer {said[1]}: give the recipe the run's groups, in their order")


def _check_shapes(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """ValueError where a saved average belongs to a parameter of another shape: torch itself would load it."""
    ids = [i for g in saved["param_groups"] for i in g["params"]]
    params = [p for g in optimizer.param_groups for p in g["params"]]
    for i, p in zip(ids, params, strict=False):
        for key, value in (saved["state"].get(i) or {}).items():
            if key in ("exp_avg", "exp_avg_sq", "momentum_buffer") and isinstance(value, torch.Tensor) and value.shape != p.shape:
                raise ValueError(f"{key} of parameter {i} is {tuple(value.shape)}, the parameter {tuple(p.shape)}")


# ---- random states


def find_rng(content: Any) -> SavedRng:
    """The random states in a checkpoint, told by their form; those of a data loader's own generator are left alone."""
    found = SavedRng()
    _find_rng(content, (), found, set())
    return found


def _find_rng(value: Any, where: Where, found: SavedRng, seen: set[int]) -> None:
    path = ".".join(where).lower()
    if len(where) > 5 or id(value) in seen or any(word in path for word in ("loader", "sampler", "generator", "dataset")):
        return
    if "optim" in path and not isinstance(value, dict) and "rng" not in path and "random" not in path:
        return  # an optimizer's own bytes; a file optimizer.pt may hold random states as well
    if isinstance(value, (dict, list, tuple)):
        seen.add(id(value))  # a pickle of a few bytes can hold one dict a million times
    if isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.dim() == 1:
        if value.numel() == _CPU_RNG_BYTES and found.cpu is None:
            found.cpu = value.clone()
        elif value.numel() in (16, 24) and ("cuda" in path or "rng" in path or "gpu" in path):
            found.cuda.append(value.clone())
    elif isinstance(value, tuple) and len(value) == 5 and value[0] == "MT19937":
        found.numpy = value if found.numpy is None else found.numpy
    elif isinstance(value, (tuple, list)) and len(value) == 3 and value[0] == 3 and isinstance(value[1], (tuple, list)) and len(value[1]) == 625:
        found.python = (value[0], tuple(value[1]), value[2]) if found.python is None else found.python
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(inner, torch.Tensor) or inner.dtype == torch.uint8:
                _find_rng(inner, (*where, str(key)), found, seen)
    elif isinstance(value, (list, tuple)) and len(value) <= 64:
        for i, inner in enumerate(value):
            _find_rng(inner, (*where, str(i)), found, seen)
