"""The role of a tag: what a metric means, from its name, and where the name alone does not tell, from the run.

`role_of` reads one name by `_TABLE`, the first rule that matches decides. `roles_of` gives all tags of a run their
roles: some names mean a loss or a validation only beside others or if their values fall (`_of_the_run`). A tag
without a role is still read, counted and checked for non-finite values.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.core import languages
from postmortem.core.role_values import falls, falls_far, may_be_rates

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
    r"(?:val|vali|valid|validation|valdation|validaton|vaildation|vaild|eval|evaluation|dev|test"
    r"|held(?: ?out)?|hold ?out)"
)
_SPLIT = re.compile(
    rf"(?:^|[ /])['\[(]*{HELD_OUT}(?:$|[ /\d\])'])|^{HELD_OUT}(?=loss|acc)"
    rf"|^(?:va|vl|vld|dv|ho|tst|cv)[ /](?=\w)|{languages.HELD_OUT_NAMES}"
)

_OF_HELD_OUT = re.compile(rf"^{HELD_OUT}[ /]+|[ /]+{HELD_OUT}$")

# Patterns are matched against `plain_name(tag)`: small letters, words with single blanks or slashes between them.
_LOSS = rf"(?:(?:\b|(?<=[a-z\d]))loss(?:es|fn)?\d*\b|{languages.LOSS})"
_GRAD = rf"(?:grad(?:ient)?s?|∇|{languages.GRADIENT})"
_NORM = (
    rf"(?:{_GRAD}[ /]*(?:total |global )?(?:l2 |2 0 |2 )?(?:norms?|l2|magnitude|mag|rms|{languages.NORM})"
    rf"|g ?norm|gn(?=$)|grdn(?=$)"
    rf"|[|‖]+ ?(?:∇\w*|g|{_GRAD}) ?[|‖]+"
    rf"|(?:l2 )?(?:norms?|{languages.NORM}) ?(?:of )?(?:the )?{languages.OF_THE}{_GRAD}|norms?/{_GRAD})"
)
_OF_ALL = (
    r"(?:[ /](?:total|global|all|overall|l2|2|pre ?clip\w*|before ?clip\w*|unclipped|raw|avg|mean|average|value|model"
    r"|train|training|step|epoch))*"
)
_LAYER = r"\b(?:layers?|blocks?|weight|bias|kernel|conv\w*|fc\d*|linear\d*|embed\w*|attn|attention|mlp)\b"
_SETTING = (
    r"(?:weights?|coefs?|coeffs?|coefficients?|lambda|alpha|beta|gamma|ratio|factor|mult(?:iplier)?|thresh(?:old)?"
    r"|clip(?:ping)?|decay|warmup|steps|interval|freq|frequency|schedule|type|reduction|every|limit|patience"
    r"|tol|tolerance|size|capacity|bank)"
)
_RECORD = (
    r"(?:num|n|nb|nr|no|number of|skipped|best|min|minimum|max|maximum|lowest|highest|prev|previous|old"
    rf"|{languages.RECORDS})"
)
_OF_VALUES = (
    r"(?:num|counts?|counter|n|tokens|start|delta|change|improvement|improved|gap|std|stddev|variance|min|best|lowest"
    r"|time|ms|nans?|infs?|is ?nan|is ?finite|finite|index|idx|terms?|window|history|smoothing|enabled|version)"
)


class _Rule(NamedTuple):
    role: str | None
    why: str
    pattern: str


_TABLE: tuple[_Rule, ...] = tuple(
    _Rule(role, why, pattern)
    for role, why, pattern in (
        (None, "a count or a record of values, not a value",
         rf"(^|[ /]){_RECORD} (\w+ )?({_LOSS}|nan|inf|skipped)|{languages.BEST_LOSS}|{_LOSS}( \w+)?[ /]{_OF_VALUES}$"
         r"|(^|[ /])(best|lowest) (\w+ )?(score|metric|step|epoch|r?mse|mae|nll|ppl|perplexity)|\bnum memory"),
        (None, "a setting", rf"{_LOSS}( \w+)?[ /]{_SETTING}$"
         rf"|{_NORM}(?! (?:before|pre) clip)( \w+)? {_SETTING}$|\b{_GRAD} ?clip(ping)?( (val\w*|norm|thresh\w*))?$"
         rf"|(?<!pre )\bclip {_GRAD}|\b(max|target) {_GRAD} norm"
         rf"|\b(nll|b?ce|mse|mae|kl|entropy|map|iou|acc|reward|lr|learning rate|mem|memory) {_SETTING}$"
         rf"|(^|[ /])(use|has|is|with|enable|compute|normali[sz]e|skip|disable) (\w+ )?{_LOSS}"
         rf"|(^|[ /]){_LOSS} {_SETTING}/|(^|/)(coef\w*|lambdas?|multipliers?)/|(^|/)weights?/(?!.*{_GRAD}).*{_LOSS}"
         rf"|{_LOSS} every|\b(threshold|patience)$"),
        (None, "the norm after the clipping, which shows no explosion", rf"{_NORM} clipped$|\bclipped {_GRAD} norm"),
        (None, "something else that is lost, or a scale that failed", rf"\bpacket {_LOSS}|\battempted "),
        (None, "what a discriminator says, logged beside its losses", rf"{_LOSS}/(scores?|signs?|logits?)(/|$)"),
        (None, "the settings of the parts of a loss", rf"{_LOSS}[ /]{_SETTING}/"),
        (None, "how long the loss takes, or the loss of a predicted time: the name does not tell",
         rf"(^|[ /])time {_LOSS}$"),
        (None, "how long the loss takes", rf"(^|/)(time|timings?|timers?|duration|latency|perf|profile\w*)/.*{_LOSS}"),
        (None, "gradient accumulation, no accuracy",
         r"\bacc(u|um\w*)? ?(steps?|grad\w*|iters?|batch\w*)\b|\b(grad\w*|batch) acc(um\w*)?( steps?)?$"),
        (None, "grows with the training whatever happens, or is set",
         r"iterations?$|consumed|ema decay|accumulated|cumulative|since|(^|[ /])wall( ?clock)?( time)?$"
         r"|total (\w+ )?(time|duration)|train wall|scale ?window|(min|init|initial) scale|hysteresis"),
        ("loss_scale", "the factor of mixed precision; logit_scale and reward_scale are something else",
         r"\b(loss|grad|gradient|amp|fp16)[ /]*scaler?\b|(^|/)((grad|loss|amp)? ?scaler?|scaler? (scale|value))$"),
        ("layer_grad_norm", "the norm of one layer's gradient, by the words before it or the folder around it",
         rf"({_LAYER}|(?<!l)\d).*[ /]{_NORM}$|^(.*/)?{_GRAD}/(?!total|global|l2).*[ /]norm$|^norm/.+/{_GRAD}$"),
        ("grad_norm", "the norm of the whole gradient", rf"(^|[ /]){_NORM}{_OF_ALL}( ?\(.*)?$"
         rf"|(^|[ /])grad(ient)?s?[ /](total|global|all|overall)$"),
        ("grad_norm", "torch's clip_grad_norm_ returns total_norm, optax and TensorFlow call it global_norm",
         r"^(?!.*(param|weight|update|activ|embed|state|momentum|latent|feature)).*?"
         r"(^|[ /])(total|global) norm( (before|pre) ?clip\w*)?$"),
        ("layer_grad_norm", "the norm of a part of the gradient, named after it", rf"(^|[ /]){_NORM}[ /].+"),
        ("perplexity", "exp(loss)", rf"perplexity|\bppl\b|{languages.PERPLEXITY}"),
        ("accuracy", "a score in a folder of losses", rf"{_LOSS}/(\w+ )*(acc|accuracy)$"),
        (None, "how long something took, by its unit", r"(loss|cost\w*) \((ms|us|µs|ns|s|secs?|min|h|hrs?)\)$"),
        ("loss", "says so", _LOSS),
        ("lr", "the learning rate, also of one group of parameters",
         r"(^|[ /])(lr|learning ?rate)([ /]*\w{0,12})?( ?\(.*)?$|^lr[ /]|^l r$"
         rf"|{languages.LEARNING_RATE}"),
        (None, "how long an epoch or anything else took, and an episode lasts as long as it is played",
         r"(^|[ /])(time|duration|elapsed) cost( ?\(.*)?$|\b(episode|ep|game|match) (time|duration|wall)\b"),
        ("data_time", "waiting for the next batch",
         r"(data|load(ing|er)?|fetch|batch ?load|input|reader)[ /]*(load(ing)? ?)?(time|wait|ms|sec(onds)?|s|cost)$"
         r"|time[ /]*data|(^|/)(data|(batch |data )?(fetch|wait)( (time|ms|s|secs?))?)$"
         r"|dataload(er|ing)?|\bdata ?load(ing)?$"),
        ("throughput", "work per second",
         r"(tok(en)?s?|samples?|images?|imgs?|seq(uence)?s?|items?|steps?|it(er(ation)?)?s?|examples?|frames?|words?"
         r"|batches|elements|flops?) ?(per|/) ?(s|sec|second|gpu|device)\b|throughput"
         r"|(^|[/ ])(tps|wps|ups|ips|sps|fps|tok/s|it/s|tflops|mfu)($|[ /(])"
         rf"|{languages.THROUGHPUT}"),
        ("step_time", "seconds per work",
         r"(step|iter(ation)?|batch|train|updt|update|elapsed)[ /]*"
         r"(time|timing|wall|duration|ms|(?<!train )cost|sec(onds)?)(?![a-z])"
         r"|(?!timesteps?\b)time[ /]*(cost )?(per )?(step|iter(ation)?|batch)"
         r"|(^|[/ ])(time|dt|iter time ms|time ms|updt s)($| ?\()|s/it$"
         rf"|{languages.TIME}"),
        ("memory", "of the device or of the process",
         r"\b(mem(ory)?|vram|rss|cuda ?mem\w*|gpu ?mem\w*|max ?mem\w*|memalloc\w*)\b|memory|mem(alloc|used)"
         r"|(^|[ /])(alloc|allocated|reserved|cached)( (gi?b|mi?b|memory|bytes))?( ?\(.*)?$"
         rf"|{languages.MEMORY}"),
        ("loss", "a negative log-likelihood, or a bound with its sign turned, is minimised",
         r"\b(nll|nelbo)\b|\bneg(ative)? (log ?(likelihood|lik|probs?)|elbo)\b"),
        (None, "a log-likelihood or a bound is to rise: no loss",
         r"log ?lik|log ?probs?\b|\blogp\b|\belbo\b|lower bound"),
        (None, "an error rate, or a distance between distributions, is to fall", r"\btop ?\d+ err(or)?s?$|\bfid\b"),
        ("val_accuracy", "the average precision of a detector, which is measured in an evaluation only",
         r"^(?!.*\btrain).*((^|/)(bbox|segm|keypoints?)[ /]m?ap(?![a-z])"
         r"|(^|/)metrics/(m?ap|precision|recall)(?![a-z]))"),
        ("accuracy", "a score that is to rise",
         r"\b(acc(u|uracy)?|top ?\d+|fb?1|auc|auroc|auprc|ap\d*"
         r"|(?<!kernel )(?<!feature )(?<!attention )[mw]?map\d*|m?ious?|bleu\d?|rouge\w*|m?dice|dsc"
         r"|psnr|ssim|(?<!error )r2|[am]acc|recall|precision|prec\d?|exact match|ndcg|mrr|hits?@?\d+|hit (rate|ratio)"
         r"|(hr|[rp]\d?)@\d+|(txt|img|\w{1,4}2\w{1,4})[ /]r\d+"
         r"|accuracies|mcc|jaccard|pck)(?![^\W\d])|accuracy"
         rf"|{languages.ACCURACY}"),
        ("reward", "what reinforcement learning maximises",
         r"(^|[ /])(rewards?|returns?|ep ?(rew|ret)(ard|urn)?( ?mean)?|episodic return|score|success rate)(?! scale)"
         rf"($|[ /])|{languages.REWARD}"),
        ("epoch", "the position", rf"^(?!time)(\w+/)?(epochs?|{'|'.join(languages.EPOCHS)})( float| frac)?$"),
        ("loss", "the formula of a loss: it is minimised",
         r"\b(b?ce|xe|n?r?mse|rmsle|msle|mae|s?mape|xent|xentropy|huber|hinge|cost|criterion|trl|(info ?)?nce)\d?\b"
         r"|cross ?entropy|log ?loss\b|mean (squared|absolute) error"),
        ("loss", "the formula of a loss, smooth L1", r"(^|[ /])smooth ?l1$"),
        ("loss", "a part of a loss as BasicSR names them: l_pix, l_g_percep",
         r"(^|/)l (g )?(pix\w*|percep\w*|style|total|charb\w*|edge|fft|ssim)$"),
        ("loss", "what CycleGAN and pix2pix print of their losses; D_real may also be what a discriminator says",
         r"(^|/)([dg] [ab]|(cycle|idt) [ab]|g (gan|l1|vgg|gan feat))$"),
        ("loss", "the total of an objective", r"(^|/)(obj|objective|costs?|criterion)/(total|sum|overall)$"),
        ("loss", "bits that the model needs", r"(^|[ /])(bpc|bpb|bpd|bits per (byte|char\w*|dim\w*|token|word))$"),
        ("val_loss", "the loss of the test set, as llm.c prints it", r"(^|/)tel$"),
        ("loss", "the name of a task, as in 'lm: 5.2'; errD and errG are DCGAN's",
         r"(^|/)(lm|mlm|clm|ctc|rnnt|td|err ?[dg])$"),
        ("loss", "the name of a loss of metric learning, as in 'triplet | active%'",
         r"(^|/)((train|training|val|valid|validation|eval|test|dev|mean|avg) )?"
         r"(triplet|contrastive|nt ?xent|arcface|cosface|info ?nce)$"),
    )
)  # fmt: skip
"""Role, reason, and the pattern of names. The first that matches decides."""
_compiled = lru_cache(maxsize=None)(re.compile)
"""The patterns of the table are compiled when a name asks for them: most names are decided by one of the first."""

_LONG_NUMBER = re.compile(r"(?<=\d)\d{2,}")
"""No pattern asks which digits these are, after the first: names that differ in nothing else are matched once."""
_LONGEST = 1000
"""Longest name that is matched, in characters: the patterns' time grows with the square of a name's length."""


@lru_cache(maxsize=65_536)
def plain_name(tag: str) -> str:
    """``trainLoss``, ``train_loss`` and ``Train.Loss`` are ``train loss``; slashes stay, and ``mAP`` is one word.

    Accents are left out.
    """
    name = languages.without_accents(re.sub(r"(?<=[a-z][a-z])(?=[A-Z])", " ", tag).lower())
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
    role = next((rule.role for rule in _TABLE if _compiled(rule.pattern).search(name)), None)
    held_out = _SPLIT.search(name) is not None
    if role in ("loss", "accuracy"):
        return f"val_{role}" if held_out else role
    return None if held_out and role in ("throughput", "step_time", "data_time") else role


@lru_cache(maxsize=65_536)
def is_held_out(tag: str) -> bool:
    """Whether a name says that it was measured on held-out data."""
    return len(tag) <= _LONGEST and _SPLIT.search(plain_name(tag)) is not None


_PARTS = re.compile(
    r"b?box|obj|cls|class|kpt|dfl|seg|mask|b?ce|kld?|rec\w*|reg|sup|unsup|cons\w*|adv|gan|perc\w*|lpips|l1|l2|mse|tv|aux|lm"
    r"|pde|bc|ic|data|phys\w*|policy|value|commit\w*|contrast\w*|distill?|kd|align\w*|smooth\w*|fea\w*|sim|nll|td|mtp"
)
"""Last words of tags that may be parts of a loss beside a `total`."""
_MINIMISED = re.compile(r"(\w+ )?objective( value)?|obj fn|unnamed number( \d+)?|(\w+ )?err")
"""Last words of tags that are minimised if their values fall."""
_RATES = re.compile(languages.BARE_RATES)
"""Names that mean the learning rate where no other is logged and the values may be ones."""
_OBJECTIVE = re.compile(r"\b(objective|criterion|cost)$")
"""Last words of tags that are minimised if their values fall, though a score is named before."""
_ERRORS = re.compile(r"\b(n?r?mae|n?rmse|rmsle|msle|s?mape|mean absolute error)\d?\b")
"""Measures of an error that are minimised themselves only where no loss is named beside them."""
_POLICY = re.compile(
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
            elif _MINIMISED.fullmatch(last) and falls(values(tag)) and (not has_loss or not last.endswith("err")):
                roles[tag] = "val_loss" if _SPLIT.search(name) else "loss"
            elif last in ("grad", "gradient", "grads") and has_loss and (values(tag) >= 0).mean() > 0.9:
                roles[tag] = "grad_norm"  # "Loss: 0.4 Grad: 1.2"
            elif (
                _RATES.fullmatch(name) and may_be_rates(values(tag)) and not _has_rates(roles, values, len(values(tag)))
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
        elif name == "score" and not has_loss and falls_far(values(tag)) and not any(map(_POLICY.search, known)):
            roles[tag] = "loss"  # DL4J's "Score at iteration 100 is 1.6"
    _give_to_held_out(roles, names)
    _take_from_errors(roles, names)
    return roles


def _take_from_errors(roles: dict[str, str | None], names: dict[str, str]) -> None:
    """Leaves measures of an error without a role where the run names a loss of its training; in place."""
    if any(roles[tag] == "loss" and _is_named_loss(name) for tag, name in names.items()):
        roles |= {tag: None for tag, name in names.items() if roles[tag] in ("loss", "val_loss") and _is_error(name)}


def _is_named_loss(name: str) -> bool:
    return _compiled(_LOSS).search(name) is not None


def _is_error(name: str) -> bool:
    """Whether a name is of an error that is measured beside a loss: ``MAE/val``, ``validation rmse``."""
    return _ERRORS.search(name) is not None and not _is_named_loss(name)


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


def _has_rates(roles: dict[str, str | None], values: Callable[[str], NDArray[np.float64]], rows: int) -> bool:
    """Whether a learning rate is logged in a tenth of `rows` rows or more: printed once per start, it is a setting."""
    return any(role == "lr" and len(values(tag)) >= 0.1 * rows for tag, role in roles.items())


def _is_sum(tag: str, folder: str, known: dict[str, str | None]) -> bool:
    """Whether two tags beside a `total` are parts of a loss, by name or role."""
    beside = [n for n in known if n != plain_name(tag) and n.rpartition("/")[0] == folder.rstrip("/")]
    parts = [n for n in beside if known[n] == "loss" or _PARTS.fullmatch(n.rpartition("/")[2])]
    return len(parts) >= 2 and not any(known[n] == "loss" and is_total(n) for n in beside)


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
    usual = [float(np.median(v[np.isfinite(v)])) for v in map(values, (loss, *bare.values())) if np.isfinite(v).any()]
    return len(usual) == 3 and all(usual[0] / 2 <= v <= 2 * usual[0] for v in usual)


def _is_sum_of_parts(name: str, known: Collection[str]) -> bool:
    """Whether parts are logged under this name of a split, and without it as well: ``val pos`` beside ``pos``."""
    return any(other.startswith(f"{name} ") and other[len(name) + 1 :] in known for other in known)


_WHOLE = re.compile(r"(loss|losses|lossfn|total|objective|sum)$")
_BESIDE = re.compile(
    r"(lm|avg|average|mean|running|batch|mini|step|epoch|iter|iteration|overall|smooth|smoothed|ema|current|value|fn"
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
