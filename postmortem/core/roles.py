"""The role of a tag: what a metric means, from its name, and where the name alone does not tell, from the run.

`role_of` reads one name by the rules of `role_table`. `roles_of` gives all tags of a run their
roles: some names mean a loss or a validation only beside others or if their values fall (`_of_the_run`). A tag
without a role is still read, counted and checked for non-finite values.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core import languages
from postmortem.core.patterns import later
from postmortem.core.role_table import LOSS, compiled, role_by_table
from postmortem.core.stats import median, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from numpy.typing import NDArray

ROLES = (
    "loss",
    "val_loss",
    "grad_norm",
    "layer_grad_norm",
    "lr",
    "loss_scale",
    "throughput",
    "step_time",
    "data_time",
    "memory",
    "accuracy",
    "val_accuracy",
    "perplexity",
    "reward",
    "epoch",
)

HELD_OUT = (
    r"(?:val|vali|valid|validate|validation|valdation|validaton|vaildation|vaild|eval|evaluation|dev|test"
    r"|held(?: ?out)?|hold ?out)"
)
_SPLIT = re.compile(
    rf"(?:^|[ /])['\[(]*{HELD_OUT}(?:$|[ /\d\])'])|^{HELD_OUT}(?=loss|acc)"
    rf"|^(?:va|vl|vld|dv|ho|tst|te|ts|cv)[ /](?=\w)|{languages.HELD_OUT_NAMES}"
)

_OF_HELD_OUT = later(rf"^{HELD_OUT}[ /]+|[ /]+{HELD_OUT}$")


_LONG_NUMBER = re.compile(r"(?<=\d)\d{2,}")
"""No pattern asks which digits these are, after the first: names that differ in nothing else are matched once."""
_FEW = 64
"""Tags of a run whose roles are kept for the next run that has the same."""
_LONGEST = 1000
"""Longest name that is matched, in characters: the patterns' time grows with the square of a name's length."""


_IN_CAPITALS = re.compile(r"(?<=[a-z][a-z])(?=[A-Z])|(?<=\b[TV][rsae])(?=(?:Loss|Acc)(?![a-z]))")
"""Where a new word begins without a blank: ``trainLoss``, ``TrLoss``, ``VaAcc``."""


@lru_cache(maxsize=65_536)
def plain_name(tag: str) -> str:
    """``trainLoss``, ``train_loss`` and ``Train.Loss`` are ``train loss``; slashes stay, and ``mAP`` is one word.

    Accents are left out.
    """
    name = languages.without_accents(_IN_CAPITALS.sub(" ", tag).lower())
    return re.sub(r" ?/ ?", "/", re.sub(r"[\s_\-.:=]+", " ", name)).strip()


def _zeros(match: re.Match[str]) -> str:
    return "0" * len(match[0])


@lru_cache(maxsize=65_536)
def role_of(tag: str) -> str | None:
    """The role of a tag, or None if its name does not show it.

    >>> [role_of(tag) for tag in ("train/loss", "eval_loss", "Train/Acc@1", "learning_rate", "grad_norm", "x")]
    ['loss', 'val_loss', 'accuracy', 'lr', 'grad_norm', None]
    """
    if len(tag) > _LONGEST:
        return None
    return _role_of_name(_LONG_NUMBER.sub(_zeros, plain_name(tag)))


@lru_cache(maxsize=65_536)
def _role_of_name(name: str) -> str | None:
    role = role_by_table(name)
    held_out = _SPLIT.search(name) is not None
    if role in ("loss", "accuracy"):
        return f"val_{role}" if held_out else role
    return None if held_out and role in ("throughput", "step_time", "data_time") else role


@lru_cache(maxsize=65_536)
def is_held_out(tag: str) -> bool:
    """Whether a name says that it was measured on held-out data."""
    return len(tag) <= _LONGEST and _SPLIT.search(plain_name(tag)) is not None


_PARTS = later(
    r"b?box|obj|cls|class|kpt|dfl|seg|mask|b?ce|kld?|rec\w*|reg|sup|unsup|cons\w*|adv|gan|perc\w*|lpips|l1|l2|mse|tv|aux|lm"
    r"|pde|bc|ic|data|phys\w*|policy|value|commit\w*|contrast\w*|distill?|kd|align\w*|smooth\w*|fea\w*|sim|nll|td|mtp"
)
"""Last words of tags that may be parts of a loss beside a `total`."""
_MINIMISED = later(r"(\w+ )?objective( value)?|obj fn|unnamed number( \d+)?|(?!td )(\w+ )?err(or)?")
"""Last words of tags that are minimised if their values fall."""
_RATES = later(languages.BARE_RATES)
"""Names that mean the learning rate where no other is logged and the values may be ones."""
_OBJECTIVE = re.compile(r"\b(objective|criterion|cost)$")
"""Last words of tags that are minimised if their values fall, though a score is named before."""
_ERRORS = re.compile(r"\b(n?r?mae|n?rmse|rmsle|msle|s?mape|mean absolute error|a?epe|lpips|(min ?)?[af]de)\d?\b")
"""Measures of an error that are minimised themselves only where no loss is named beside them."""
_POLICY = later(
    r"\b(policy|actor|critic|pg|pi|entropy|vf|advantage|q|p) ?loss|\bentropy|\bpolicy|\bactor|reward|return"
)
_V = re.compile(r"(^|.*/)v (\w.*)")
_BARE = {"train": "loss", "training": "loss", "trn": "loss", "learn": "loss"} | dict.fromkeys(
    ("val", "valid", "validation", "eval", "dev", "test"), "val_loss"
)


def roles_of(tags: Iterable[str], values: Callable[[str], NDArray[np.float64]]) -> dict[str, str | None]:
    """tag -> role of all tags of a run, in their order; `values(tag)` are a tag's numbers, as they were logged.

    Beyond `role_of`: names that mean something only beside other tags, or only if their values fall.
    """
    names = tuple(tags)
    by_names = _roles_by_names(names) if len(names) <= _FEW else None
    return {**by_names} if by_names is not None else _roles_of(names, values)


class _ValuesNeededError(Exception):
    """The names alone do not tell."""


@lru_cache(maxsize=1024)
def _roles_by_names(tags: tuple[str, ...]) -> dict[str, str | None] | None:
    """The roles where the names tell them all, as many runs have the same; None where values have to be looked at."""

    def refused(tag: str) -> NDArray[np.float64]:
        raise _ValuesNeededError(tag)

    try:
        return _roles_of(tags, refused)
    except _ValuesNeededError:
        return None


def _roles_of(tags: Iterable[str], values: Callable[[str], NDArray[np.float64]]) -> dict[str, str | None]:
    roles = {tag: role_of(tag) for tag in tags}
    names = {tag: plain_name(tag) for tag in roles}
    known = {name: roles[tag] for tag, name in names.items()}
    has_loss = "loss" in roles.values()
    for tag, name in names.items():
        folder, slash, last = name.rpartition("/")
        folder += slash
        if roles[tag] is None:
            if last in ("total", "sum") and (_is_sum(tag, folder, known) or (not has_loss and falls(values(tag)))):
                roles[tag] = "loss"  # "box 0.05 obj 0.02 total 0.07", or "iter 3 total 1.3" and no other loss
            elif last == "r" and {folder + "l", folder + "t"} <= known.keys():
                roles[tag] = "reward"  # with the length and the time of the episode, as Gym's Monitor writes them
            elif (
                _MINIMISED.fullmatch(last)
                and falls(values(tag))
                and (not has_loss or not last.endswith(("err", "error")))
            ):
                roles[tag] = "val_loss" if _SPLIT.search(name) else "loss"
            elif last in ("grad", "gradient", "grads") and has_loss and (values(tag) >= 0).mean() > 0.9:
                roles[tag] = "grad_norm"  # "Loss: 0.4 Grad: 1.2"
            elif (
                _RATES.fullmatch(name)
                and _may_be_rates(values(tag))
                and not _has_rates(roles, values, len(values(tag)))
            ):
                roles[tag] = "lr"  # "loss 2.3 rate 1e-3", "perte 2,3 taux 1e-3"
            elif last in ("norm", "train norm") and folder in ("", "train/", "training/", "optim/") and has_loss:
                if "lr" in roles.values() and _SPLIT.search(name) is None:
                    roles[tag] = "grad_norm"  # "loss 2.3 | norm 1.2 | lr 3e-4", as llm.c prints it
            elif name in _BARE and _is_bare_loss(name, names, roles if has_loss else {}, values):
                roles[tag] = _BARE[name]
        elif roles[tag] in ("loss", "accuracy") and (found := _V.fullmatch(name)):
            if _has_held_out_v(found, known):
                roles[tag] = f"val_{roles[tag]}"  # v_loss beside loss; of reinforcement learning, the value's loss
        elif roles[tag] == "accuracy" and _OBJECTIVE.search(last) and falls(values(tag)):
            roles[tag] = "loss"  # "dice_objective 0.53": one minus the score
        elif name == "score" and not has_loss and _falls_far(values(tag)) and not any(map(_POLICY.search, known)):
            roles[tag] = "loss"  # DL4J's "Score at iteration 100 is 1.6"
    _take_from_times(roles, names)
    _give_to_keras_validation(roles, names)
    _give_to_held_out(roles, names)
    _take_from_errors(roles, names)
    return roles


def _take_from_errors(roles: dict[str, str | None], names: dict[str, str]) -> None:
    """Leaves measures of an error without a role where the run names a loss of its training; in place."""
    if any(roles[tag] == "loss" and _is_named_loss(name) for tag, name in names.items()):
        roles |= {tag: None for tag, name in names.items() if roles[tag] in ("loss", "val_loss") and _is_error(name)}


def _is_named_loss(name: str) -> bool:
    return compiled(LOSS).search(name) is not None


def _is_error(name: str) -> bool:
    """Whether a name is of an error that is measured beside a loss: ``MAE/val``, ``validation rmse``."""
    return _ERRORS.search(name) is not None and not _is_named_loss(name)


def is_error(tag: str) -> bool:
    """Whether a tag is an error of predictions (MAPE, RMSE), not a loss by its name."""
    return _is_error(plain_name(tag))


def _has_held_out_v(found: re.Match[str], known: dict[str, str | None]) -> bool:
    """Whether ``v_x`` is measured on held-out data: ``x`` is logged as well, or ``loss`` beside ``v_loss``."""
    if any(map(_POLICY.search, known)):
        return False
    beside = ("", "t ", "train ", "train/")
    return any(found[1] + word + found[2] in known for word in beside) or {"loss", "v loss"} <= known.keys()


def _give_to_held_out(roles: dict[str, str | None], names: dict[str, str]) -> None:
    """Makes "EVAL objective", with too few values to see them fall, a validation loss beside "objective"; in place."""
    minimised = {names[tag] for tag, role in roles.items() if role == "loss" and role_of(tag) is None}
    for tag, name in names.items():
        if roles[tag] is None and _OF_HELD_OUT.sub("", name) in minimised and is_held_out(tag):
            roles[tag] = "val_loss"


def falls(values: NDArray[np.float64]) -> bool:
    """Whether most of what follows the beginning of a series lies below it: such a metric is minimised.

    Only the first half counts, so that a divergence at the end hides nothing.
    """
    finite = values[np.isfinite(values)]
    half = finite[: max(6, len(finite) // 2)]
    first = max(1, len(half) // 8)
    return len(half) >= 6 and bool(quantile(half[len(half) // 3 :], 0.75) < median(half[:first]))


def _falls_far(values: NDArray[np.float64]) -> bool:
    """Whether a score falls as a loss does. Results of a search, best first, fall as well, but not as far."""
    finite = values[np.isfinite(values)]
    return falls(finite) and bool(median(finite[-3:]) < 0.8 * median(finite[:1]))


def _may_be_rates(values: NDArray[np.float64]) -> bool:
    """Whether all finite values may be learning rates."""
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool((finite >= 0).all() and (finite <= 0.5).all() and finite.min() < 0.1)


def _has_rates(roles: dict[str, str | None], values: Callable[[str], NDArray[np.float64]], rows: int) -> bool:
    """Whether a learning rate is logged in a tenth of `rows` rows or more: printed once per start, it is a setting."""
    return any(role == "lr" and len(values(tag)) >= 0.1 * rows for tag, role in roles.items())


def _is_sum(tag: str, folder: str, known: dict[str, str | None]) -> bool:
    """Whether two tags beside a `total` are parts of a loss, by name or role."""
    beside = [n for n in known if n != plain_name(tag) and n.rpartition("/")[0] == folder.rstrip("/")]
    parts = [n for n in beside if known[n] == "loss" or _PARTS.fullmatch(n.rpartition("/")[2])]
    return len(parts) >= 2 and not any(known[n] == "loss" and is_total(n) for n in beside)


def _take_from_times(roles: dict[str, str | None], names: dict[str, str]) -> None:
    """Leaves ``data`` without a role in "data 0.06 PDE 0.0003 phys 0.005", where it is a part of a loss; in place."""
    known = {name: roles[tag] for tag, name in names.items()}
    for tag, name in names.items():
        folder, _, last = name.rpartition("/")
        if roles[tag] == "data_time" and last == "data" and _is_part(folder, known):
            roles[tag] = None


def _give_to_keras_validation(roles: dict[str, str | None], names: dict[str, str]) -> None:
    """Makes ``epoch_loss`` a validation's where ``evaluation_loss_vs_iterations`` is beside it; in place.

    Keras writes both into the event file of its validation, and only the former into that of its training.
    """
    known = set(names.values())
    for tag, name in names.items():
        folder, slash, last = name.rpartition("/")
        beside = f"{folder}{slash}evaluation {last.removeprefix('epoch ')} vs iterations"
        if roles[tag] in ("loss", "accuracy") and last.startswith("epoch ") and beside in known:
            roles[tag] = f"val_{roles[tag]}"


def _is_part(folder: str, known: dict[str, str | None]) -> bool:
    """Whether ``data`` is a part of a loss: two other parts stand beside it, and no time of a step."""
    beside = {n.rpartition("/")[2]: role for n, role in known.items() if n.rpartition("/")[0] == folder}
    parts = [n for n, role in beside.items() if n != "data" and role is None and _PARTS.fullmatch(n)]
    return len(parts) >= 2 and "step_time" not in beside.values()


def _are_losses(names: dict[str, str], values: Callable[[str], NDArray[np.float64]]) -> bool:
    """Whether a run logs `train` and `val`, nothing else says what is measured, and `train` falls."""
    bare = [tag for tag, name in names.items() if name in _BARE]
    return {_BARE[names[tag]] for tag in bare} == {"loss", "val_loss"} and all(
        falls(values(tag)) for tag in bare if _BARE[names[tag]] == "loss"
    )


def _is_bare_loss(
    name: str, names: dict[str, str], roles: dict[str, str | None], values: Callable[[str], NDArray[np.float64]]
) -> bool:
    """Whether a bare word for a split names a loss: ``train 2.31 val 2.40``, ``pos 1.5 | val 8.6 val_pos 0.2``.

    `roles` are those of the tags, {} if none is a loss by its name.
    """
    if not roles:
        return _are_losses(names, values)
    return _beside_loss(names, roles, values) or (_BARE[name] == "val_loss" and _is_sum_of_parts(name, names.values()))


def _beside_loss(
    names: dict[str, str], roles: dict[str, str | None], values: Callable[[str], NDArray[np.float64]]
) -> bool:
    """Whether bare `train` and `val` are losses of evaluations, beside a loss of the training of the same size."""
    bare = {_BARE[name]: tag for tag, name in names.items() if name in _BARE}
    loss = next((tag for tag in names if roles[tag] == "loss" and is_total(tag)), None)
    if bare.keys() != {"loss", "val_loss"} or loss is None:
        return False
    usual = [median(v[np.isfinite(v)]) for v in map(values, (loss, *bare.values())) if np.isfinite(v).any()]
    return len(usual) == 3 and all(usual[0] / 2 <= v <= 2 * usual[0] for v in usual)


def _is_sum_of_parts(name: str, known: Collection[str]) -> bool:
    """Whether parts are logged under this name of a split, and without it as well: ``val pos`` beside ``pos``."""
    return any(other.startswith(f"{name} ") and other[len(name) + 1 :] in known for other in known)


_WHOLE = re.compile(r"(loss|losses|lossfn|total|objective|sum)$")
_BESIDE = re.compile(
    r"(lm|avg|average|mean|actual|running|batch|mini|step|epoch|iter|iteration|overall|smooth|smoothed|ema|current|value|fn"
    r"|metrics?|opt|optim|reduced|global|train|training|trn|val|valid|validation|eval|evaluation|dev|test|combined"
    r"|final|full|weighted|unnamed)$"
)
"""Words that may stand beside one of `_WHOLE` in the name of the whole loss: of splits, windows and the total."""


@lru_cache(maxsize=65_536)
def is_total(tag: str) -> bool:
    """Whether a loss of this name is the whole loss: ``loss``, ``train/loss``, ``total_loss``, ``lm loss``, ``total``.

    Every word is one for loss, total, split or window; ``box_loss`` and ``loss_cls`` are parts.
    """
    words = set(re.split(r"[ /]+", re.sub(r"[()\[\]]", " ", plain_name(tag)).strip()))
    beside = {word for word in words if not _WHOLE.match(word)}
    return beside < words and all(map(_BESIDE.match, beside))
