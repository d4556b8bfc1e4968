"""The rules by which the name of a tag tells its role, the first that matches decides."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from postmortem.core import languages

# Patterns are matched against `plain_name(tag)`: small letters, words with single blanks or slashes between them.
LOSS = rf"(?:(?:\b|(?<=[a-z\d]))loss(?:es|fn)?\d*\b|{languages.LOSS})"
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
    needs: str = ""
    """What every match of the pattern holds: the pattern is not tried on names without it, nor compiled for them."""


_TABLE: tuple[_Rule, ...] = tuple(
    _Rule(*rule)
    for rule in (
        (None, "a count or a record of values, not a value",
         rf"(^|[ /]){_RECORD} (\w+ )?(nan|inf|skipped)|{languages.BEST_LOSS}"
         r"|(^|[ /])(best|lowest) (\w+ )?(score|metric|step|epoch|r?mse|mae|nll|ppl|perplexity)|\bnum memory"),
        (None, "a count or a record of losses, not a loss",
         rf"(^|[ /]){_RECORD} (\w+ )?{LOSS}|{LOSS}( \w+)?[ /]{_OF_VALUES}$", LOSS),
        (None, "how far a reward scatters, not the reward",
         r"\b(rewards?|returns?|score)s? (std|stddev|sd|var|variance)$"),
        (None, "a setting",
         rf"\b(nll|b?ce|mse|mae|kl|entropy|map|iou|acc|reward|lr|learning rate|mem|memory) {_SETTING}$"
         r"|(^|/)(coef\w*|lambdas?|multipliers?)/|\b(threshold|patience)$"),
        (None, "a setting of a loss", rf"{LOSS}( \w+)?[ /]{_SETTING}$"
         rf"|(^|[ /])(use|has|is|with|enable|compute|normali[sz]e|skip|disable) (\w+ )?{LOSS}"
         rf"|(^|[ /]){LOSS} {_SETTING}/|(^|/)weights?/(?!.*{_GRAD}).*{LOSS}|{LOSS} every", LOSS),
        (None, "a setting of the clipping", rf"\b{_GRAD} ?clip(ping)?( (val\w*|norm|thresh\w*))?$"
         rf"|(?<!pre )\bclip {_GRAD}|\b(max|target) {_GRAD} norm", _GRAD),
        (None, "a setting of a norm", rf"{_NORM}(?! (?:before|pre) clip)( \w+)? {_SETTING}$", _NORM),
        (None, "the norm after the clipping, which shows no explosion",
         rf"{_NORM} clipped$|\bclipped {_GRAD} norm", _NORM),
        (None, "something else that is lost, or a scale that failed", rf"\bpacket {LOSS}|\battempted "),
        (None, "what a discriminator says beside its losses", rf"{LOSS}/(scores?|signs?|logits?)(/|$)", LOSS),
        (None, "the settings of the parts of a loss", rf"{LOSS}[ /]{_SETTING}/", LOSS),
        (None, "how long the loss takes, or the loss of a predicted time: the name does not tell",
         rf"(^|[ /])time {LOSS}$", LOSS),
        (None, "how long the loss takes",
         rf"(^|/)(time|timings?|timers?|duration|latency|perf|profile\w*)/.*{LOSS}", LOSS),
        (None, "gradient accumulation, no accuracy",
         r"\bacc(u|um\w*)? ?(steps?|grad\w*|iters?|batch\w*)\b|\b(grad\w*|batch) acc(um\w*)?( steps?)?$"),
        (None, "grows with the training whatever happens, or is set",
         r"iterations?$|consumed|ema decay|accumulated|cumulative|since|(^|[ /])wall( ?clock)?( time)?$"
         r"|total (\w+ )?(time|duration)|train wall|scale ?window|(min|init|initial) scale|hysteresis"),
        ("loss_scale", "the factor of mixed precision; logit_scale and reward_scale are something else",
         r"\b(loss|grad|gradient|amp|fp16)[ /]*scaler?\b|(^|/)((grad|loss|amp)? ?scaler?|scaler? (scale|value))$"),
        ("layer_grad_norm", "the norm of one layer's gradient, by the words before it",
         rf"({_LAYER}|(?<!l)\d).*[ /]{_NORM}$", _NORM),
        ("layer_grad_norm", "the norm of one layer's gradient, by the folders around it",
         rf"^(.*/)?{_GRAD}/(?!total|global|l2).*[ /]norm$|^norm/.+/{_GRAD}$", _GRAD),
        ("grad_norm", "the norm of the whole gradient", rf"(^|[ /]){_NORM}{_OF_ALL}( ?\(.*)?$", _NORM),
        ("grad_norm", "by its folder", r"(^|[ /])grad(ient)?s?[ /](total|global|all|overall)$", _GRAD),
        ("grad_norm", "torch's clip_grad_norm_ returns total_norm, optax and TensorFlow call it global_norm",
         r"^(?!.*(param|weight|update|activ|embed|state|momentum|latent|feature)).*?"
         r"(^|[ /])((total|global) norm( (before|pre) ?clip\w*)?|(pre ?clip\w*|unclipped) norm"
         r"|norm (before|pre) ?clip\w*)$"),
        ("layer_grad_norm", "the norm of a part of the gradient, named after it", rf"(^|[ /]){_NORM}[ /].+", _NORM),
        ("perplexity", "exp(loss)", rf"perplexity|\bppl\b|{languages.PERPLEXITY}"),
        ("accuracy", "a score in a folder of losses", rf"{LOSS}/(\w+ )*(acc|accuracy)$", LOSS),
        (None, "how long something took, by its unit", r"(loss|cost\w*) \((ms|us|µs|ns|s|secs?|min|h|hrs?)\)$"),
        ("loss", "says so", LOSS),
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
        (None, "an error rate is to fall, and so is a distance between distributions, which scatters as no loss does",
         r"\btop ?\d+ err(or)?s?$|\b[fk]id\b"),
        ("val_loss", "an error that an evaluation measures, and that is to fall",
         r"^(?!.*\btrain)(.*[ /(])?(nme|(p[ -]?a|p|n)?[ -]?mpjpe|wer|cer)(?![^\W\d])"),
        ("val_accuracy", "the average precision of a detector, which is measured in an evaluation only",
         r"^(?!.*\btrain).*((^|/)(bbox|segm|keypoints?)[ /]m?ap(?![a-z])"
         r"|(^|/)metrics/(m?ap|precision|recall)(?![a-z]))"),
        ("accuracy", "a score that is to rise",
         r"\b(acc(u|uracy)?|top ?\d+|fb?1|auc|auroc|auprc|ap\d*"
         r"|(?<!kernel )(?<!feature )(?<!attention )[mw]?map\d*|m?ious?|bleu\d?|rouge\w*|m?dice|dsc"
         r"|psnr|(ms ?)?ssim|vmaf|(?<!error )r2|[am]acc|recall|precision|prec\d?|exact match|ndcg|mrr"
         r"|hits?@?\d+|hit (rate|ratio)"
         r"|(hr|[rp]\d?)@\d+|(txt|img|\w{1,4}2\w{1,4})[ /]r\d+"
         r"|accuracies|mcc|jaccard|pck|spearman\w*|pearson\w*|srcc|plcc|krcc|kendall\w*|qwk|cider|meteor"
         r"|(cohen\w*|quadratic|weighted) kappa|chrf\w*)(?![^\W\d])|accuracy"
         rf"|{languages.ACCURACY}"),
        ("reward", "what reinforcement learning maximises",
         r"(^|[ /])(rewards?|returns?|ep ?(rew|ret)(ard|urn)?( ?mean)?|episodic return|score|success rate)(?! scale)"
         rf"($|[ /])|^ep r$|{languages.REWARD}"),
        ("epoch", "the position", rf"^(?!time)(\w+/)?(epochs?|{'|'.join(languages.EPOCHS)})( float| frac)?$"),
        ("loss", "the formula of a loss: it is minimised",
         r"\b(b?ce|xe|n?r?mse|rmsle|msle|mae|s?mape|xent|xentropy|huber|hinge|cost|criterion|trl|(info ?)?nce"
         r"|a?epe|lpips|(min ?)?[af]de)\d?\b"
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
compiled = lru_cache(maxsize=None)(re.compile)
"""The patterns of the table are compiled when a name asks for them: most names are decided by one of the first."""


COMMON = {
    **dict.fromkeys(("loss", "train loss", "train/loss", "val loss", "val/loss", "eval loss", "eval/loss"), "loss"),
    **dict.fromkeys(("lr", "train/lr", "learning rate", "train/learning rate"), "lr"),
    **dict.fromkeys(("grad norm", "train/grad norm"), "grad_norm"),
    **dict.fromkeys(("acc", "accuracy", "train/accuracy", "train acc", "val acc", "val accuracy"), "accuracy"),
    **dict.fromkeys(("epoch", "train/epoch"), "epoch"),
    **dict.fromkeys(("step", "train/global step", "iter"), None),
}
"""What the rules say of names that many runs have: to compile the patterns takes longer than to judge such a run."""


def role_by_table(name: str) -> str | None:
    """The role of a plain name by the first rule that matches, None if that has none or no rule matches."""
    return COMMON[name] if name in COMMON else role_by_rules(name)


def role_by_rules(name: str) -> str | None:
    """The same, by the rules themselves."""
    holds = {"": True}
    for rule in _TABLE:
        if rule.needs not in holds:
            holds[rule.needs] = compiled(rule.needs).search(name) is not None
        if holds[rule.needs] and compiled(rule.pattern).search(name) is not None:
            return rule.role
    return None
