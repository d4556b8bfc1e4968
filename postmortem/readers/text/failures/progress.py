"""How far a log got: its training output, its other output, and the lines that report a completed training."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TRAINING = re.compile(
    r"(?:\b(?:[Ll]oss|[Ss]tep|[Ii]ter|[Ii]teration|[Ee]poch|ppl|lr|eta|[Aa]cc)\b.{0,40}?\d|it/s|s/it|_loss\W)"
)
_ONCE = re.compile(r"`?Trainer\.fit`? stopped|train_runtime|\[after training is done\]|exits successfully")
"""Printed once, at the end of a training, and not at the end of each epoch."""
_COMPLETED = re.compile(
    "|".join(
        (
            r"`?Trainer\.fit`? stopped: `?max_\w+=",
            r"['\"]train_runtime['\"]: ",
            r"(?i:\b(?:training|train|optimization|fine-?tuning|run|job) (?:of (?:the )?\w{1,30} )?(?:is |has |was )?"
            r"(?:successfully )?(?:completed?|finished|done|ended)\b)",
            r"(?i:\b(?:completed|finished|done) (?:with )?(?:the )?train(?:ing)?\b)",
            r"(?:^|[:\]] )End of training[.!]?(?: Time consumed|\s*$)",
            r"\[after training is done\]",
            r"Process \d+ exits successfully|^# Ended \(code 0\)",
            r"Training time \d|Total training time: ",
            r"\bepochs completed in [\d.]+ hours",
            r"(?i:\bexit(?:ed)?(?: with)?[ _]?(?:code|status)\W{1,3}0\b)",
            r"\bFinal \w{1,80} score: ",
            r"(?i:\b(?:program|script|experiment|everything|all) (?:is |has |was )?(?:successfully )?"
            r"(?:completed?|finished|done|ended|exited)(?: successfully)?\W*$)",
            r"(?i:\b(?:program|script|experiment|process|pipeline|workflows?) (?:completed|finished|ended|exited)"
            r" successfully\b)",
            r"\bBest ckpt path: ",
            r"(?i:\bmax(?:imum)?(?: number of)?[ _](?:train(?:ing)?[ _])?(?:iter(?:ation)?s?|steps|epochs|updates)"
            r"(?: \W?\d+\W?)?,? (?:is |was |has been |have been )?reached\b)",
            r"(?i:\breached (?:the )?max(?:imum)?(?: number of)?[ _](?:train(?:ing)?[ _])?"
            r"(?:iter(?:ation)?s?|steps|epochs|updates)\b)",
            r"(?i:\bearly stopping (?:triggered|activated|in effect|condition|criterion|at epoch|at step|at iteration)"
            r"|\bstopping[_ ]early\b)",
            r"(?i:(?:^\W{0,4}|: )early stopping[.!]*\s*$|\bearly stopping, best\b)"
            r"|\bStopping\. Best iteration|Signaling Trainer to stop",
        )
    )
)
"""What frameworks print when a training ran to its end."""
_PATIENCE_USED_UP = re.compile(
    "|".join(
        (
            r"\b[Ee]arly[- ]?[Ss]topp(?:ing|er|ed)\b.{0,100}"
            r"\b(?:[Rr]estor|[Ll]oad|[Rr]evert|[Rr]oll)(?:ing|ed) (?:\w{1,12} ){0,3}best\b",
            r"\b[Ee]arly[- ]?[Ss]topp(?:ing|er)\W{1,4}[Ss]top(?:ping|ped)? (?:the )?train|\b[Ss]topped early\b"
            r"|\b[Ee]arly[- ]?[Ss]topped (?:at|after|in) ",
            r"\b[Ee]arly[- _]?[Ss]top(?:ping)?\W{1,3}(?:triggered|activated|(?:at|@|in) (?:epoch|step|iter)\w*\W{1,2}\d"
            r"|after (?:epoch )?\d{1,9}(?: \w{1,12})?\W{1,3}[Nn]o improve)",
            r"(?:\b[Pp]atience|\b[Nn]o improvement|(?:not|n't) improve)[^;]{0,80}\W(?<!before )(?<!until )(?<!arly )"
            r"(?:[Ee]arly[- ]stopp|[Ss]topp|[Tt]erminat|[Ee]nd)ing\b(?! (?:rate|in \d|if|when|counter))",
            r"Restoring model weights from the end of the best epoch",
        )
    )
)
"""Early stopping in other words. A count of the patience ("3 out of 5") is no end, unless it is used up."""
_LAST_WORDS = re.compile(
    r"(?i:\b(?:final|fine-?tuned) (?:model|weights|checkpoint)s? (?:is |was |has been )?saved\b"
    r"|\bsaved (?:the )?final (?:model|weights|checkpoint)\b|\b(?:completing|finishing) (?:the )?training in \d"
    r"|\bearly stopping (?:due to|because|since) |^\W{0,4}early stopped[.!]*$)"
    r"|\bfor W&B process to finish\.\.\. \(success\)"  # W&B's word that the program ended without an exception
)
"""What programs of one's own print at the end of a training."""
_COUNTED_PATIENCE = re.compile(
    r"\b[Ee]arly ?[Ss]topping counter: (?P<n>\d{1,9}) (?:out of|of|/) (?P<patience>\d{1,9})\b"
)
COMPLETED_ANCHORS = (
    *(
        "(success)",
        "Trainer.fit",
        "train_runtime",
        "omplete",
        "inished",
        "done",
        "Done",
        "DONE",
        "ended",
        "exits successfully",
        "End of training",
    ),
    *("mpleting", "nishing", "inal ", "tuned ", "aved "),
    *("Training time", "raining time", "code", "status", "COMPLETE", "FINISHED", " score: "),
    *(
        "arly stop",
        "arlyStop",
        "topping counter",
        "arly-stop",
        "arly Stop",
        "topped early",
        "atience",
        "o improvement",
        "t improve",
    ),
    *(
        "Best ckpt path: ",
        " reached",
        "eached max",
        "eached the max",
        "exited",
        "topping early",
        "topping_early",
        "Early Stopping",
        "Stopping. Best",
        "Trainer to stop",
        "Restoring model weights",
        "# Ended (code",
    ),
)
"""Plain texts: every line that one of the patterns matches contains at least one of them."""
AFTER_COMPLETION = 20_000
"""With more bytes of training output than this after it, a completion line belongs to an earlier part of the job."""
_COUNTED = 4 * AFTER_COMPLETION
"""Bytes of training output counted after a failure or a completion; more than this changes no answer."""
_SAME_PLACE = 20
"""Lines within which the same completion line, printed by several ranks, counts as one."""
_MOST_COMPLETIONS = 1000
_MOST_SHAPES = 4096
_ONE_DIGIT = bytes.maketrans(b"0123456789", b"0" * 10)


@dataclass(slots=True)
class Completion:
    """The last appearance of a line that reports a completed training; `training` is the bytes of training before it.

    `once`: printed only at the end of a training. `repeated`: appeared several times, far apart.
    """

    line: int
    training: int
    once: bool
    repeated: bool = False


class Progress:
    """Counts what a log prints.

    `training` is the bytes of lines that look like training output, counted only from the first failure or completion
    on. `ordinary` is the number of lines that neither belong to a failure nor are warnings or errors of a logger.
    """

    def __init__(self) -> None:
        self.training = 0
        self.ordinary = 0
        self._counted_from: int | None = None
        self._shapes: dict[bytes, bool] = {}
        """Whether lines look like training output, by their beginnings with all digits replaced by 0."""
        self._completions: dict[str, Completion] = {}

    @property
    def counting(self) -> bool:
        """Whether more training output can still change an answer: only the first part after a failure can."""
        return self._counted_from is not None and self.training - self._counted_from < _COUNTED

    def mark(self) -> None:
        """Restarts the count of training output: the current line reports a failure or a completion."""
        self._counted_from = self.training

    def skip(self, texts: Sequence[str]) -> None:
        """Counts lines that report nothing."""
        if self.counting:
            for text in texts:
                self.count(text)
        self.ordinary += len(texts)

    def count(self, text: str) -> None:
        """Counts the bytes of a line if it looks like training output."""
        begin = text[:400]
        shape = begin.encode("utf-8", "surrogatepass").translate(_ONE_DIGIT)
        trains = self._shapes.get(shape)
        if trains is None:
            trains = _TRAINING.search(begin) is not None
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[shape] = trains
        if trains:
            self.training += min(len(text), 4096) + 1

    def complete(self, line: int, text: str, template: str) -> None:
        """Records a line that reports a completed training; `template` is its text with the numbers masked."""
        if not any(anchor in text for anchor in COMPLETED_ANCHORS):
            return
        text = text[:2000]
        patterns = (_COMPLETED, _PATIENCE_USED_UP, _LAST_WORDS)
        if not (any(pattern.search(text) for pattern in patterns) or _counted_down(text)):
            return
        known = self._completions.get(template)
        if known is not None:
            known.repeated = known.repeated or line - known.line > _SAME_PLACE
            known.line, known.training = line, self.training
        elif len(self._completions) < _MOST_COMPLETIONS:
            self._completions[template] = Completion(line, self.training, once=_ONCE.search(text) is not None)
        self.mark()

    def completion(self, last_line: int) -> Completion | None:
        """The last report of a completed training, unless it comes with each epoch and not at the end of the log."""
        return _last(c for c in self._completions.values() if c.once or not c.repeated or last_line - c.line < 10)


def _counted_down(text: str) -> bool:
    counter = _COUNTED_PATIENCE.search(text)
    return counter is not None and int(counter["n"]) >= int(counter["patience"])


def _last(completions: Iterable[Completion]) -> Completion | None:
    return max(completions, key=lambda c: c.line, default=None)
