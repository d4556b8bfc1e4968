"""The role of a tag, from its name.

Roles: loss, val_loss, grad_norm, layer_grad_norm, lr, loss_scale, throughput, step_time, data_time, memory,
accuracy, val_accuracy, perplexity, reward, epoch. A tag without a role is still read, counted and checked
for non-finite values.
"""

from __future__ import annotations

import re
from functools import lru_cache

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

_HELD_OUT = r"(?:val|valid|validation|eval|evaluation|dev|test|held_?out)"
_SPLIT = re.compile(rf"(?:^|[\s/_.:\-]){_HELD_OUT}(?:$|[\s/_.:\-\d])|^{_HELD_OUT}(?=loss|acc)|验证|测试")
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (role, re.compile(pattern))
    for role, pattern in (
        ("loss_scale", r"(loss|grad|amp|fp16)[\s_\-/]*scale|scaler?$|(^|/)scale$"),
        (
            "grad_norm",
            r"(^|[\s/_.])(global[\s_\-]*)?(total[\s_\-]*)?(grad(ient)?s?[\s_\-/.]*(total[\s_\-]*)?(l2[\s_\-]*)?norm(_?(total|global|all|l2|preclip|before_clip(ping)?|unclipped))?|gnorm|(l2[\s_\-]*)?norm[\s_\-]*(of[\s_\-]*)?grad(ient)?s?)($|[\s(])",
        ),
        (
            "layer_grad_norm",
            r"(grad(ient)?s?[\s_\-/.]*(2\.0_|l2_?)?norm|gnorm|grads?/)[\s_\-/.].+|.+[\s_\-/.](grad(ient)?s?[\s_\-/.]*(l2_?)?norm|gnorm)$",
        ),
        ("lr", r"(^|[\s/_.\-])(lr|learning[\s_\-]*rate)([\s/_.\-]*\w{0,12})?$|^lr[\s\-/_.]|^l\.r\.?$|学习率|lernrate"),
        (
            "data_time",
            r"(data|load(ing|er)?|fetch|batch[\s_]*load|input|iter)[\s_\-/]*(load(ing)?[\s_]*)?(time|wait|ms|sec(onds)?|s)$|time[\s_\-/]*data|(^|/)data$|dataload(er|ing)?",
        ),
        (
            "throughput",
            r"(tokens?|samples?|images?|imgs?|seq(uence)?s?|items?|steps?|it(er(ation)?)?s?|examples?|frames?|words?|batches|flops?)[\s_\-]*(per|/)[\s_\-]*(s|sec|second|gpu|device)\b|throughput|(^|[/_\s])(tps|wps|ups|ips|sps|fps|tok/s|it/s|tflops|mfu)($|[\s_/(])",
        ),
        (
            "step_time",
            r"(step|iter(ation)?|batch|train|update|elapsed)[\s_\-/]*(time|wall|duration|ms|cost|sec(onds)?)|time[\s_\-/]*(per[\s_\-]*)?(step|iter(ation)?|batch)|(^|[/_\s])(time|dt|iter_time_ms|time_ms)($|\s*\()|s/it$",
        ),
        (
            "memory",
            r"(^|[\s/_.\-])(mem(ory)?|vram|rss|cuda_mem\w*|gpu[\s_\-]*mem\w*|max[\s_]*mem\w*|memalloc\w*)($|[\s/_.\-(\d])|memory|mem(alloc|used)",
        ),
        ("perplexity", r"perplexity|(^|[\s/_])ppl($|[\s/_])"),
        (
            "accuracy",
            r"(^|[\s/_.\-])(acc(uracy)?|top[\s_\-]?\d|acc@\d|f1|auc|auroc|mean_token_accuracy|map|miou|iou|bleu|dice|psnr|ssim|r2|recall|precision|exact_match)($|[\s/_.\-\d@])|accuracy|准确率|正确率|exactitude|genauigkeit",
        ),
        ("reward", r"(^|[\s/_.\-])(rewards?|returns?|ep_rew_mean|episodic_return|score|success_rate)($|[\s/_.\-])"),
        ("epoch", r"^(\w+/)?epochs?(_float|_frac)?$"),
        (
            "loss",
            # no elbo, objective or kl, which may be meant to rise: a bound, a reward, a distance from a reference model
            r"(^|[\s/_.\-\d])(loss|nll|ce|bce|mse|mae|cross[\s_\-]?entropy|crossentropyloss|cost|tel|trl)($|[\s/_.\-(\d])|loss(es)?($|[\s/_.\-(\d])|crossentropyloss|logloss|损失|損失|(^|[\s_])(perte|verlust)($|[\s_])",
        ),
    )
)
_NOT_A_METRIC = re.compile(
    r"(^|[\s/_])(num|n|count|total|best|min|max)[\s_]+(loss|nan|inf|skipped)|iterations?$|consumed|loss_?(weight|coef)|ema_decay"
    r"|accumulated|cumulative|since|(^|[/_])wall$|total[\s_](time|duration)|train_wall|scale_?window|(min|init|initial)_?scale|hysteresis",
    re.I,
)


_LONGEST = 1000
"""Longest name that is matched, in characters: the patterns' time grows with the square of a name's length."""


@lru_cache(maxsize=65_536)
def role_of(tag: str) -> str | None:
    """The role of a tag, or None if its name does not show it.

    >>> [role_of(tag) for tag in ("train/loss", "eval_loss", "Train/Acc@1", "learning_rate", "grad_norm", "x")]
    ['loss', 'val_loss', 'accuracy', 'lr', 'grad_norm', None]
    """
    if len(tag) > _LONGEST:
        return None
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tag).lower().strip()
    if _NOT_A_METRIC.search(name):
        return None
    for role, pattern in _RULES:
        if pattern.search(name):
            held_out = _SPLIT.search(name) is not None
            if role in ("loss", "accuracy"):
                return f"val_{role}" if held_out else role
            if held_out and role in ("throughput", "step_time", "data_time"):
                return None
            return role
    return None
