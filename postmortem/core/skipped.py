"""Reasons why a number, a value or a line is not among a run's points: the complete list.

Readers count under these reasons only, in a `Skips`; what a plugin leaves out for its own reason is counted under
`Skip.OTHER`, with its words.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Skip(StrEnum):
    """A reason, in the words of the reports ("12 histograms"); `sentence` says what it means for the points."""

    sentence: str

    def __new__(cls, words: str, sentence: str) -> Skip:
        """A member is its words as a string, and has a sentence."""
        member = str.__new__(cls, words)
        member._value_ = words
        member.sentence = sentence
        return member

    # numbers that the log holds
    REPEATED = "repeated prints of the same number", "A row prints a number of the step again; it is one point."
    CARRIED = "values that a progress bar repeats", "A bar prints the last value of a metric until the next is known."
    NOT_YET = (
        "values that a progress bar begins with",
        "Before its first step a bar shows infinity.",
    )
    BEFORE_FIRST_STEP = "numbers printed before the first step", "Nothing shows at which step they belong."
    OUTSIDE_LOOP = "numbers outside the training loop", "They are at a step that the training did not have there."
    LISTING = "numbers printed once, without a step", "They are a listing, such as settings or a summary."
    COARSER = (
        "numbers without a step that another source has with a step",
        "Another file of the run holds the same metric with its steps.",
    )
    NAMELESS = "numbers under more names than are kept", "A log of so many different names has no metrics under them."
    BESIDE_MEAN = "counts and spreads beside a mean", "Of a group of statistics the mean is the metric."
    UNEXPLAINED = "lines with numbers that no parser recognised", "Metrics may be among them."
    OWN = (
        "lines that postmortem wrote",
        "`postmortem run` reports into the output of the training; job scripts add pages of `scan`, `replay`.",
    )
    # cells and values that are no finite or infinite number
    NOT_NUMERIC = "non-numeric values", "Texts, lists and other values that are no number."
    CELLS = "non-numeric cells", "Texts in a table."
    TOO_LARGE = "integers too large for a float (damaged)", "No metric is an integer of hundreds of digits."
    # rows
    NO_STEP = "entries without a step", "Nothing shows at which step they belong."
    NO_NUMBER = "lines without a number", "A row of a table that holds no metric."
    HEADER = "header lines", "They describe the run, and are read as settings where they hold any."
    # data of a logger that are no scalars
    HISTOGRAMS = "histograms", "Distributions; of a gradient's the norm is read, of activations the size."
    IMAGES = "images", "Pictures."
    AUDIO = "audio", "Sound."
    MEDIA = "media and tables", "Files that a run logged beside its metrics."
    TEXT = "text", "Texts that a run logged."
    TENSORS = "tensors", "Arrays of more than one number."
    CURVES = "pr curves", "Curves of precision over recall."
    HPARAMS = "hparams", "Settings; they are in the run's configuration."
    GRAPHS = "graphs", "The structure of the model."
    RUN_METADATA = "run metadata", "Profiles of TensorFlow's runtime."
    LOG_MESSAGES = "log messages", "Messages of TensorFlow's runtime."
    OTHER_VALUES = "other values", "Summary values of a kind that holds no number."
    OTHER_PLUGINS = "values of other TensorBoard plugins", "Their content is known to their plugin only."
    SYSTEM_METRICS = "system metrics", "Measurements of the machine, which have no step."
    ARTIFACTS = "artifacts", "Files that a run stored."
    ALERTS = "alerts", "Messages that a run sent to its user."
    UNKNOWN_RECORDS = "records of unknown format", "A newer version of the logger may have written them."
    # of plugins
    OTHER = "other", "What a plugin leaves out, in its own words."


REASONS = {str(why): why for why in Skip}


class Skips(Counter[Skip]):
    """How many values were left out, by reason; `words` counts those of `Skip.OTHER` by the words of a plugin."""

    def __init__(self, counts: Mapping[Skip, int] | None = None, words: Mapping[str, int] | None = None) -> None:
        dict.__init__(self, counts or ())  # that of Counter takes ten times as long, and each file has its own
        self.words: Counter[str] = Counter.__new__(Counter)
        dict.__init__(self.words, words or ())

    def __reduce__(self) -> tuple[type[Skips], tuple[dict[Skip, int], dict[str, int]]]:
        """A `Counter` would go to another process without the words."""
        return Skips, (dict(self), dict(self.words))

    def other(self, words: str, count: int = 1) -> None:
        """Counts what only a plugin can name."""
        self[Skip.OTHER] += count
        self.words[words] += count

    def add(self, more: Mapping[Skip, int]) -> None:
        """Adds the counts of another reading. Keys outside of the list, which a plugin may use, are other reasons."""
        if isinstance(more, Skips):
            self.words.update(more.words)
        for why, count in more.items():
            if (reason := REASONS.get(why)) is not None:
                self[reason] += count
            else:
                self.other(str(why), count)

    def lines(self) -> list[str]:
        """ "12 histograms", for each reason; those of plugins with their words."""
        told = [f"{count:,} {why}" for why, count in self.items() if count and why is not Skip.OTHER]
        named = [f"{count:,} {words} (named by a plugin)" for words, count in self.words.items()]
        unnamed = self[Skip.OTHER] - self.words.total()
        return told + named + ([f"{unnamed:,} {Skip.OTHER}"] if unnamed > 0 else [])
