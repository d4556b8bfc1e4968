"""Which metric of a run looks like its objective, where no tag is named as a loss.

Evidence is of several kinds: what the configuration says is minimised, what the name suggests, the same metric on
held-out data, and how the values behave. One kind alone decides nothing except a configuration that says it. Names in
`_NEVER` decide against a tag whatever its values do: a temperature may fall as a loss does.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from postmortem.core.patterns import later
from postmortem.core.roles import HELD_OUT, plain_name
from postmortem.core.stats import centred_median, median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray


class Presumption(NamedTuple):
    """That a tag is the objective: the role it gets, how sure that is, and why, as sentences without their subject."""

    role: Literal["loss", "val_loss"]
    strength: Literal["likely", "possible"]
    why: tuple[str, ...]


def _words(text: str, after: str = r"(?=$|[ /)\]])") -> re.Pattern[str]:
    return later(rf"(?:^|[ /(\[])(?:{'|'.join(text.split())})\d*{after}")


_GROWS = (
    # positions and counts; "batch cost" is one of a batch
    _words(
        r"steps? iter(?:ation)?s? epochs? episodes? batch(?:es)? updates? rounds? generations? counts? counter secs?"
        r" seconds? ms minutes? hours? tokens? tok samples? examples? frames? images? items? rows? seen"
        r" errors",
        r"(?=$|/)",
    ),
    later(r"(?:^|/)(?:total|sum|mean|avg|average)(?=$|/)"),
    _words(
        r"num n nb number idx index id time timestamp date eta elapsed duration latency wall clock age remaining"
        r" progress length len depth size sizes queue queued buffer backlog pending seed rank worker version"
        r" nans? infs? retries overflows? skipped failed dropped lost patience wait bytes? kb mb gb kib mib gib"
    ),
    # settings and schedules
    _words(
        r"weights? weighting w wt coefs? coeffs? coefficients? lambda lam alpha beta gamma delta eta mu nu rho eps"
        r" epsilon tau temp temperature sigma momentum mom decay wd dropout rate rates scale scaler logscale ratio"
        r" factor mult multiplier thresh(?:old)? clip clipping clipfrac lr noise schedule sched warmup anneal"
        r" annealing prob(?:s|ability|abilities)? p mask masked teacher forcing curriculum difficulty exploration"
        r" resolution bandwidth radius step_?size trust learning ema"
    ),
    # what is to rise
    _words(
        r"rewards? returns? scores? acc accuracy success wins? winrate elo gains? profit pnl payoff fitness utility"
        r" likelihood loglik ll logp llh elbo bound map iou miou f1 auc dice snr psnr ssim sim similarity cos cosine"
        r" corr correlation pearson spearman r2 quality coverage recall precision hits? confidence conf margins?"
        r" agreement consensus sharpe ev explained health lives throughput speed fps tps util utili[sz]ation usage"
        r" bleu rouge"
    ),
    # the machine
    _words(
        r"gpu cpu ram vram mem memory disk net network io power watts? joules? kwh wh volts? fan system sys proc"
        r" thermal celsius carbon co2"
    ),
)
"""Words of names of what is set, counts, is to rise, or belongs to the machine: its growth says nothing."""
_NEVER = (
    *_GROWS,
    # what goes either way, or is measured beside the objective
    _words(
        r"entropy ent kl kld kls divergence js jsd mmd fid kid wer cer ter per edit distance dist norms? grads?"
        r" gradients? gnorm std stds stddev sd var vars variance variances cov min minimum max maximum best lowest"
        r" worst median sparsity sparse dead density frac fraction percent pct percentage share gap diff change"
        r" improvement q qs qf q_?values? values? v advantages? adv td logits? acts? activations? preds? predictions?"
        r" outputs? targets? labels? cond condition eig eigenvalues? singular curvature hessian trace hist mode"
        r" commit commitment codebook clusters?"
    ),
)
"""Words of names that are no objective, however their values behave."""
_WHOLE = _words(
    r"objectives? obj fobj f_?obj objval obj_?fn crit criterion criteria energy energies free_?energy vfe costs?"
    r" energie energia objectif objetivo obiettivo lagrangian hamiltonian risk fval fun deviance chi chisq chi2"
    r" stress inertia zielfunktion zielwert kosten co[uû]t"
    r" coste custo p[eé]rdida perda perdita potential"
)
_PART = _words(
    r"err error residuals? resid misfit mismatch discrepancy distortion penalty violation regret surprisal infeas\w*"
    r" fehler erreur erro errore deviation nll nllh"
)
"""Words of names of what is minimised: those of a whole objective, and those that may also be parts of one."""
_LETTERS = later(r"(?:^|.*[/ ])[JLEF]")
"""Formulas write an objective as a capital letter."""
_VALUE_OF = later(r"\b(objective|obj|energy|cost|criterion|function|fn) values?$")
_BESIDE_OBJ = later(r"(?:^|.*[/ ])(?:box|cls|dfl|kpt|seg|noobj|giou|ciou|xy|wh)(?:$|[ /])")
"""Where these are logged, `obj` is the objectness of a detector of objects."""
_PLAYS = later(r"\b(policy|actor|critic|reward|rewards|ep rew\w*|return|returns|advantage|episodic)\b")
"""Names of reinforcement learning, where most of what is logged goes either way."""
_TRAINING = later(r"(?:^|(?<=[ /(\[]))(?:train|training|learn|trn|tr)(?=$|[ /)\]])")
_OF_HELD_OUT = later(rf"(?:^|(?<=[ /(\[])){HELD_OUT}(?=$|[ /)\]])")
_FALLS = "its values fall, with noise"
_LEAST, _MOST_TAGS = 12, 200
"""Fewest finite values that show a behaviour; tags beyond which a run is not searched for an objective."""
_MONITORED = ("monitor", "metric_to_optimize", "metric_for_best_model", "early_stopping_metric", "objective_metric")
_MODES = ("mode", "direction", "goal", "monitor_mode", "metric_mode", "objective_mode", "optimization_mode")


def because(tag: str, found: Presumption) -> str:
    """Why a tag got its role, in a sentence."""
    return f"no metric is named as a loss; that {tag} is the objective is concluded: {'; '.join(found.why)}"


def by_values_alone(found: Presumption) -> bool:
    """Whether neither a name nor a setting says that it is the objective, only how its values behave."""
    return found.why[:1] == (_FALLS,)


def is_excluded(tag: str) -> bool:
    """Whether a name shows a count, a setting, a score, hardware, or what may go either way: no objective."""
    name = _VALUE_OF.sub(r"\1", plain_name(tag))
    return any(words.search(name) for words in _NEVER)


def may_grow(tag: str) -> bool:
    """Whether a name shows a count, a setting, a score or hardware, which may grow without a fault."""
    return any(words.search(plain_name(tag)) for words in _GROWS)


def presumed(
    roles: Mapping[str, str | None],
    values: Callable[[str], NDArray[np.float64]],
    config: Mapping[str, Any],
) -> dict[str, Presumption]:
    """tag -> why it looks like the objective, of a run in which no tag has the role of a loss; else empty.

    `roles` are those by name, `values(tag)` a tag's numbers in the order of the log, `config` the run's settings.
    """
    if "loss" in roles.values() or "perplexity" in roles.values() or len(roles) > _MOST_TAGS:
        return {}
    values = cache(values)
    names = {tag: _VALUE_OF.sub(r"\1", plain_name(tag)) for tag in roles}
    unknown = {tag: name for tag, name in names.items() if roles[tag] is None}
    found = {
        tag: Presumption(_role(name), "likely", ("the configuration says that it is minimised",))
        for tag, name in unknown.items()
        if name in set(map(plain_name, minimised(config)))
    }
    if not found and "reward" not in roles.values() and not any(map(_PLAYS.search, names.values())):
        unknown = {tag: name for tag, name in unknown.items() if not is_excluded(tag)}
        found = _by_name(unknown, names, values) or _by_behaviour(unknown, roles, values)
    return found | _other_split(found, unknown)


def minimised(config: Mapping[str, Any], depth: int = 4) -> Iterator[str]:
    """Names of metrics that a configuration says are minimised: ``monitor: X, mode: min``, W&B's ``metric: {name: X,
    goal: minimize}``, transformers' ``metric_for_best_model: X, greater_is_better: false``."""
    level = {str(k).rsplit(".", 1)[-1].lower(): _bare(v) for k, v in config.items()}
    modes = [str(level[key]).lower() for key in _MODES if isinstance(level.get(key), str)]
    if any(mode in ("min", "minimize", "minimise", "minimal", "lower") for mode in modes) or (
        str(level.get("greater_is_better")).lower() == "false"
    ):
        yield from (level[key] for key in (*_MONITORED, "name") if isinstance(level.get(key), str))
    for value in level.values():
        if isinstance(value, dict) and depth:
            yield from minimised(value, depth - 1)


def _bare(value: Any) -> Any:
    """W&B writes a setting as ``{value: …}``."""
    return value["value"] if isinstance(value, dict) and set(value) <= {"value", "desc"} and "value" in value else value


def _role(name: str) -> Literal["loss", "val_loss"]:
    return "val_loss" if _OF_HELD_OUT.search(name) else "loss"


def _by_name(
    unknown: Mapping[str, str], names: Mapping[str, str], values: Callable[[str], NDArray[np.float64]]
) -> dict[str, Presumption]:
    """Tags whose name suggests what is minimised, or that are logged of training and of held-out data, if they fall."""
    split = {_base(name) for name in unknown.values() if _OF_HELD_OUT.search(name)}
    best: dict[str, Presumption] = {}
    rank = 0
    for tag, name in unknown.items():
        if _OF_HELD_OUT.search(name):
            continue
        objectness = "obj" in name.split("/")[-1].split() and any(map(_BESIDE_OBJ.match, names.values()))
        why, weight = [], 0
        if not objectness and (_WHOLE.search(name) or _LETTERS.fullmatch(tag)):
            why, weight = ["its name is usual for an objective"], 3
        elif _PART.search(name):
            why, weight = ["its name is usual for something that is minimised"], 2
        if not objectness and _base(name) in split:
            why, weight = [*why, "it is logged of training and of held-out data"], max(weight, 1)
        if weight < max(rank, 1) or not learns(values(tag)):
            continue
        best = best if weight == rank else {}
        rank = weight
        best[tag] = Presumption("loss", "likely", (*why, "its values fall"))
    return best


def _by_behaviour(
    unknown: Mapping[str, str], roles: Mapping[str, str | None], values: Callable[[str], NDArray[np.float64]]
) -> dict[str, Presumption]:
    """The one tag that is logged as often as any, is measured and not set, and falls; nothing if several do."""
    size = {tag: len(values(tag)) for tag in roles}
    unknown = {tag: name for tag, name in unknown.items() if not _OF_HELD_OUT.search(name)}
    dense = [tag for tag in unknown if size[tag] >= 0.9 * max(size.values())]
    likely = [tag for tag in dense if is_measured(values(tag)) and learns(values(tag))]
    if len(likely) != 1:
        return {}
    why = [_FALLS, "it is logged as often as any other"]
    optimizer = {"lr", "grad_norm"} & set(roles.values())
    if sole := len(unknown) == 1:
        why.append("no other metric could be it")
    if optimizer:
        why.append("it is logged beside " + ("the learning rate" if "lr" in optimizer else "the gradient norm"))
    return {likely[0]: Presumption("loss", "likely" if sole else "possible", tuple(why))} if sole or optimizer else {}


def _base(name: str) -> str:
    """A name without its words of training or held-out data."""
    return re.sub(r"[ /()\[\]]+", " ", _OF_HELD_OUT.sub("", _TRAINING.sub("", name))).strip()


def _other_split(found: Mapping[str, Presumption], unknown: Mapping[str, str]) -> dict[str, Presumption]:
    """The same metrics of the other split: `val/X` of `train/X`, and the reverse."""
    known = {_base(unknown[tag]): (tag, presumption) for tag, presumption in found.items()}
    others = {}
    for tag, name in unknown.items():
        of, presumption = known.get(_base(name), (None, None))
        if tag not in found and of is not None and presumption is not None and _role(name) != presumption.role:
            others[tag] = Presumption(_role(name), presumption.strength, (f"it is {of} of other data",))
    return others


def is_measured(values: NDArray[np.float64]) -> bool:
    """Whether a series is noisy and no count, as opposed to a schedule, a clock or a counter."""
    finite = values[np.isfinite(values)]
    return len(finite) >= _LEAST and bool((finite % 1).any()) and is_noisy(finite[: max(_LEAST, len(finite) // 2)])


def is_noisy(values: NDArray[np.float64]) -> bool:
    """Whether values go up and down, or one way unevenly, as measured ones do; a schedule goes one way on a curve."""
    steps = np.diff(values)
    if min((steps > 0).mean(), (steps < 0).mean()) > 0.05:
        return True
    bends = np.diff(steps)
    # a schedule that is printed is rounded, which bends it by up to two units of the last digit
    least = max(3 * _last_digit(values), 0.01 * median(np.abs(steps)))
    return bool((bends[1:] * bends[:-1] < 0).mean() > 0.3 and median(np.abs(bends)) > least)


def _last_digit(values: NDArray[np.float64]) -> float:
    """The usual unit of the last significant digit of printed values; next to nothing if they are not rounded."""
    some = [v for v in values[:200].tolist() if v]
    digits = next((n for n in range(1, 12) if all(float(f"{v:.{n}g}") == v for v in some)), 17)
    return median(np.array([10.0 ** (np.floor(np.log10(abs(v))) - digits + 1) for v in some])) if some else 0.0


def learns(values: NDArray[np.float64]) -> bool:
    """Whether a series falls from its beginning to its lowest level, which it need not keep: it may diverge later."""
    finite = values[np.isfinite(values)]
    if len(finite) < _LEAST:
        return False
    smooth = centred_median(finite, 2 * min(max(1, len(finite) // 40), 12) + 1)
    fall = smooth[: int(np.argmin(smooth)) + 1]
    if len(fall) < 6:
        return False
    place = np.argsort(np.argsort(fall, kind="stable"), kind="stable")
    in_order = float(np.corrcoef(place, np.arange(len(fall)))[0, 1])
    third = max(2, len(fall) // 3)
    return in_order < -0.6 and bool(fall[:third].min() > fall[-max(1, third // 3) :].mean())
