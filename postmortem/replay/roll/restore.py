"""Loads a checkpoint into a recipe's model, optimizer, scheduler, scaler and random generators.

Each part is recognised by its form (a dict of tensors that fits the model, a dict with ``param_groups``, …); if several
fit, the usual names decide. The account lists what was loaded, from where, and what was not.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from postmortem.checkpoints.content import read_file
from postmortem.checkpoints.find import companions_of
from postmortem.checkpoints.formats.shared.storages import WHOLE
from postmortem.core.errors import ReplayError, UnreadableCheckpoint
from postmortem.replay.roll.random_state import NO_RANDOM_STATE, SavedRng, find_rng
from postmortem.replay.roll.sharded import sharded_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.checkpoints.content import Saved
    from postmortem.replay.roll.random_state import Where
    from postmortem.replay.step.rng import Rng
    from postmortem.replay.step.runner import StepRunner

_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_SHADOW = ("ema", "shadow", "swa", "averaged", "teacher", "best")
"""Names of a second copy of the weights beside those in training."""


@dataclass(slots=True)
class Account:
    """The parts of a checkpoint that were loaded (`fitted`), those that were not (`unfitted`), and the random states to
    set before the first batch."""

    fitted: list[str] = field(default_factory=list)
    unfitted: list[str] = field(default_factory=list)
    rng: Rng = field(default_factory=SavedRng)


def load_saved(runner: StepRunner, saved: Saved, *, trust: bool = False) -> Account:
    """Loads `saved` into the runner's objects. The caller sets the random states (`account.rng.restore()`).

    If it lacks one of several models, or the optimizer, files saved beside it for the same step are read too (`trust`
    as in `read_saved`). Raises ReplayError if weights have other shapes than the model's, if trainable weights are
    missing or if there are no weights: a replay from such a state could not reproduce the run.
    """
    saved = _with_companions(saved, runner, trust)
    rng = find_rng(saved.content)
    account = Account(rng=rng)
    for key, model in runner.models.items():
        _load_model(key, model, saved, account)
    _load_parts(account, saved.content, "optimizer", runner.optimizers, _is_optimizer, _load_optimizer(runner))
    schedulers = {"" if len(runner.schedulers) == 1 else str(i): s for i, s in enumerate(runner.schedulers)}
    _load_parts(account, saved.content, "scheduler", schedulers, _is_scheduler, _load_scheduler)
    if runner.scaler is not None:
        scalers = {"": runner.scaler}
        _load_parts(account, saved.content, "scaler", scalers, _is_scaler, lambda s, state: s.load_state_dict(state))
    if names := rng.names():
        account.fitted.append(f"random state: {', '.join(names)}")
    else:
        account.unfitted.append(NO_RANDOM_STATE)
    account.unfitted += [f"{p.path}: {p.what}" for p in saved.problems]
    return account


def _with_companions(saved: Saved, runner: StepRunner, trust: bool) -> Saved:
    """`saved`, together with the files beside it if it is one of several that make up the state of a step."""
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
    """The dicts in nested dicts and short lists, with their paths, outer ones first. Limited in depth and number, as
    they may contain themselves."""
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
    named = any(isinstance(v, torch.Tensor) and isinstance(k, str) for k, v in state.items())
    return named and not _is_optimizer(state)


def _plain(name: str) -> str:
    """A parameter's name without the components that wrappers (DDP, FSDP, compile, checkpointing) add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


@dataclass(slots=True)
class _Fit:
    """How a saved dict matches a model.

    pairs: name in the model -> saved name. mismatched: names in the model whose shape differs. renamed: how the names
    were changed, in words.
    """

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
            added = f" (prefix {add!r} added)" if add else ""
            best = score, pairs, f" (prefix {strip!r} removed)" if strip else added
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
    """How well the path of a part matches the name `key`: 1 if a component equals it, less if one contains it."""
    parts = [p.lower() for p in where]
    key = key.lower()
    if not key:
        return 0.0
    if key in parts:
        return 1.0
    if any(key in part.replace("-", "_").split("_") or part.endswith(key) for part in parts):
        return 0.5
    return 0.25 if any(key in part for part in parts) else 0.0


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
        raise ReplayError(f"{saved.path}: none of its weights match the recipe's {what}{tail}")
    place = ".".join(best.where) or "the top level"
    if best.mismatched:
        pairs = [(n, tuple(best.source[best.pairs[n]].shape), tuple(target[n].shape)) for n in best.mismatched[:3]]
        shapes = ", ".join(f"{n} is {there} in the checkpoint and {here} in the model" for n, there, here in pairs)
        raise ReplayError(f"{saved.path}: {len(best.mismatched)} weights do not match the recipe's {what}: {shapes}")
    model.load_state_dict({t: sharded_as(target[t], best.source[s]) for t, s in best.pairs.items()}, strict=False)
    tensors = _tensors(model)
    loaded = {id(t) for name, t in tensors.items() if name in best.pairs}
    missing = [name for name, t in tensors.items() if name in target and name not in best.pairs and id(t) not in loaded]
    trainable = [name for name in missing if tensors[name].requires_grad]
    adapter = any("lora" in s.lower() or "adapter" in s.lower() for s in best.pairs.values())
    if trainable and not adapter:
        lost = f"{len(trainable)} trainable weights of the recipe's {what} are missing in {place}"
        raise ReplayError(f"{saved.path}: {lost}: {', '.join(trainable[:4])}{tail}")
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
    account: Account,
    content: Any,
    what: str,
    parts: dict[str, Any],
    looks: Callable[[dict[Any, Any]], bool],
    load: Callable[[Any, Any], None],
) -> None:
    """Loads into every part the saved dict that belongs to it, by name, else in order.

    what: the kind of the parts. looks: whether a dict is the state of such a part.
    """
    found = [(where, state) for where, state in _dicts(content) if looks(state)]
    # the state of a scheduler made of schedulers (SequentialLR) contains those of its parts: only the outermost counts
    outer = [(w, s) for w, s in found if not any(w != o and w[: len(o)] == o for o, _ in found)]
    for i, (key, part) in enumerate(parts.items()):
        label = f"{what} {key!r}" if key else what
        if not outer:
            account.unfitted.append(f"{label}: not in the checkpoint; starts in its initial state")
            continue
        where, state = max(enumerate(outer), key=lambda e: (_named(e[1][0], key), e[0] == i, -e[0]))[1]
        before = copy.deepcopy(part.state_dict())
        try:
            load(part, state)
            account.fitted.append(f"{label}: from {'.'.join(where) or 'the top level'}")
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, IndexError) as error:
            why = " ".join(str(error).split())[:200]
            place = ".".join(where)
            account.unfitted.append(f"{label}: {place} does not match: {why}; starts in its initial state")
            part.load_state_dict(before)  # a part of it may have been loaded


_BY_GROUP = ("base_lrs", "_last_lr", "lr_lambdas", "min_lrs", "max_lrs")
"""Entries of a scheduler's state that are lists with one item per parameter group."""
_NOT_IN_EVERY_TORCH = {"verbose"}
"""Entries of a scheduler's state that older versions of torch keep and newer ones do not save."""


def _load_scheduler(scheduler: Any, state: dict[str, Any]) -> None:
    """Raises ValueError if the state is of another kind of scheduler or optimizer, which torch would not notice."""
    own = scheduler.state_dict()
    for key in _BY_GROUP:
        mine, other = own.get(key), state.get(key)
        if isinstance(mine, list) and key in state and (not isinstance(other, list) or len(other) != len(mine)):
            given = f"{len(other)} parameter groups" if isinstance(other, list) else f"{key} {other!r}"
            raise ValueError(f"it is for {given}, the recipe's optimizer has {len(mine)}")
    missing = sorted(k for k in own.keys() - state.keys() - _NOT_IN_EVERY_TORCH if not k.startswith("_"))
    if missing:
        kind = f"another kind of scheduler than the recipe's {type(scheduler).__name__}"
        raise ValueError(f"it is of {kind}: it has no {', '.join(missing[:3])}")
    scheduler.load_state_dict(state)


def _load_optimizer(runner: StepRunner) -> Callable[[Any, Any], None]:
    # of several models, the names in a checkpoint may begin with the model's or not
    names = {id(p): [_plain(n)] for n, p in runner.named_parameters().items()}
    for model in runner.models.values():
        for name, p in model.named_parameters():
            names[id(p)].append(_plain(name))

    def load(optimizer: Any, state: dict[str, Any]) -> None:
        if isinstance(optimizer, torch.optim.Optimizer):
            state = _by_index(optimizer, state, names)
            _check_groups(optimizer, state)
            _check_shapes(optimizer, state)
            state = _sharded(optimizer, state)
        optimizer.load_state_dict(state)

    return load


def _by_index(optimizer: torch.optim.Optimizer, saved: dict[str, Any], names: dict[int, list[str]]) -> dict[str, Any]:
    """`saved` with its state keyed by position, as torch expects it; distributed checkpoints use names or strings."""
    groups = saved["param_groups"]
    groups = [groups[k] for k in sorted(groups)] if isinstance(groups, dict) else groups
    state = {int(k) if isinstance(k, str) and k.isdigit() else k: v for k, v in saved["state"].items()}
    if any(isinstance(k, str) for k in state):
        by_name = {_plain(k): v for k, v in state.items() if isinstance(k, str)}
        params = [p for g in optimizer.param_groups for p in g["params"]]
        known = {i: next((n for n in names.get(id(p), ()) if n in by_name), None) for i, p in enumerate(params)}
        if by_name and not any(known.values()):
            raise ValueError(f"none of its parameters ({', '.join(list(by_name)[:2])}, …) is one of the optimizer's")
        state = {i: by_name[name] for i, name in known.items() if name is not None}
        start, made = 0, []
        for own, group in zip(optimizer.param_groups, groups, strict=True):
            made.append({**group, "params": list(range(start, start + len(own["params"])))})
            start += len(own["params"])
        groups = made
    return {**saved, "state": state, "param_groups": groups}


_SETTINGS = {"lr", "betas", "eps", "momentum", "alpha", "dampening", "lr_decay", "lambd", "rho", "etas", "step_sizes"}


def _sharded(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """`saved` with the whole tensors of parameters that are sharded among ranks sharded as these are."""
    ids = [i for g in saved["param_groups"] for i in g["params"]]
    params = dict(zip(ids, (p for g in optimizer.param_groups for p in g["params"]), strict=False))
    state = {
        i: {key: sharded_as(params[i], value) for key, value in kept.items()}
        if i in params and isinstance(kept, dict)
        else kept
        for i, kept in saved["state"].items()
    }
    return {**saved, "state": state}


def _check_groups(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Raises ValueError if the saved state is of another kind of optimizer, or has other groups."""
    own, given = optimizer.param_groups, saved["param_groups"]
    missing = sorted((_SETTINGS & own[0].keys()) - given[0].keys()) if own and given else []
    if missing:
        kind = f"another kind of optimizer than the recipe's {type(optimizer).__name__}"
        raise ValueError(f"it is of {kind}: it has no {', '.join(missing)}")
    counts = [[len(g["params"]) for g in groups] for groups in (given, own)]
    if counts[0] != counts[1]:
        saves, has = [f"{len(c)} group{'s' * (len(c) > 1)} of {', '.join(map(str, c))} parameters" for c in counts]
        raise ValueError(
            f"it has {saves}, the recipe's optimizer {has}: give the recipe the run's groups, in their order"
        )


def _check_shapes(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Raises ValueError if a saved average has another shape than its parameter, which torch would not notice."""
    ids = [i for g in saved["param_groups"] for i in g["params"]]
    params = [p for g in optimizer.param_groups for p in g["params"]]
    for i, p in zip(ids, params, strict=False):
        for key, value in (saved["state"].get(i) or {}).items():
            average = key in ("exp_avg", "exp_avg_sq", "momentum_buffer") and isinstance(value, torch.Tensor)
            if average and value.shape != p.shape:
                raise ValueError(f"{key} of parameter {i} is {tuple(value.shape)}, the parameter {tuple(p.shape)}")
