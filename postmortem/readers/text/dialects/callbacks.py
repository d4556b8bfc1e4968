"""Sentences in which callbacks tell a metric: early stopping, checkpoints, the loss at a step, a new learning rate."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.core.roles import role_of
from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.placing import place
from postmortem.readers.text.records.record import Record, Row, Value
from postmortem.readers.text.records.step_words import position
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

_VALUE = rf"(?P<value>{NUMBER}|{NONFINITE})"
_OLD = rf"(?:{NUMBER}|{NONFINITE})"


@dialect
class Monitored(Dialect):
    """``Metric val_loss improved by 0.010 >= min_delta = 0.0. New best score: 0.042``: the metric is 0.042, not 0.010.

    Lightning's EarlyStopping and ModelCheckpoint (``'val_loss' reached 0.042``), Keras' ModelCheckpoint (``val_loss
    improved from 0.052 to 0.042``), the EarlyStopping class that many copy (``Validation loss decreased (0.052 -->
    0.042)``). A sentence that the metric did not improve, or how long one waits, holds no new value.
    """

    name = "monitored metric"
    priority = 28
    needles: ClassVar[tuple[str, ...]] = ("mprove", "reased", " reached ", "not in top", "EarlyStopping counter")
    _better = re.compile(
        rf"Metric (?P<metric>\S{{1,80}}) improved(?: by \S+ >= min_delta = \S+)?\. New best score: {_VALUE}"
        rf"|(?P<name>[A-Za-z][\w/.@\- ]{{0,60}}?)(?: has)? (?:im\w*prov|de\w*creas|in\w*creas)ed ?(?:from |\(){_OLD}"
        rf" ?(?:to|-+>|=>|→) ?(?P<new>{_OLD})"
        rf"|['\"]?(?P<key>[\w/.@\-]{{1,60}})['\"]? reached (?P<top>{_OLD}) \(best"
    )
    _same = re.compile(
        r"(?i:did(?: not|n't) improve|has not improved|no improvement) (?:in|from|for|since)|was not in top"
        r"|EarlyStopping counter"
    )
    _place = re.compile(r"Epoch (?P<epoch>\d{1,9})(?:, global step (?P<step>\d{1,15}))?: ")

    def parse(self, row: Row) -> Record | None:
        match = self._better.search(row.text)
        if match is None and self._same.search(row.text) is None:
            return None
        record = Record()
        if found := self._place.search(row.text):
            for word, name in (("epoch", "epoch"), ("step", "global_step")):
                if found[word] is not None and (where := position(name)) is not None:
                    place(record, where, found[word], found.span(word), name)
        if match is not None:
            kind = "value" if match["value"] else "new" if match["new"] else "top"
            tag = (match["metric"] or match["name"] or match["key"]).strip()
            record.values.append(Value(tag, number(match[kind]), *match.span(kind)))
        return record


@dialect
class AtStep(Dialect):
    """``Training loss (for one batch) at step 200: 0.94``, ``Cost after 10 epochs = 0.69``.

    The step is inside the name, as in the guides of Keras and in ``Score at iteration 0 is 1.62`` of DL4J.
    """

    name = "metric at a step"
    priority = 29
    needles: ClassVar[tuple[str, ...]] = (" at ", " after ", " for ", " in ", " of ")
    _unit = r"(?:[Ss]tep|[Ee]poch|[Ii]ter(?:ation)?|[Bb]atch)"
    _pattern = re.compile(
        r"(?:^|(?<=[,|;:\]] ))(?P<tag>[A-Za-z][\w/ ]{0,40}?)(?: \([^()]{0,40}\))? "
        r"(?:at|after|for|in|of) (?:the |end of ){0,2}(?:"
        rf"(?P<word>{_unit}) {{0,4}}#? ?(?P<n>\d{{1,15}})(?:/\d{{1,15}})?|(?P<count>\d{{1,15}}) (?P<words>{_unit}e?s))"
        rf"(?: is|:| {{1,4}}:| ?=)?:? {{1,4}}(?:tf\.Tensor\(|tensor\()?{_VALUE}(?![\w.:/])"
    )

    def parse(self, row: Row) -> Record | None:
        match = self._pattern.search(row.text)
        if match is None:
            return None
        word, n = ("word", "n") if match["word"] else ("words", "count")
        where = position(match[word])
        if where is None or (role_of(match["tag"]) is None and match["value"].isdigit()):
            return None  # "Stopped at epoch 12: 3"
        rest = mine(row.text, match.end(), demand=False)
        record = (mine(row.text[: match.start()], demand=False) if match.start() else None) or Record()
        record.values.append(Value(match["tag"], number(match["value"]), *match.span("value")))
        record.values += rest.values if rest is not None else []
        place(record, where, match[n], match.span(n), match[word])
        return record


@dialect
class NewRate(Dialect):
    """``Epoch 00012: reducing learning rate of group 0 to 1.0000e-04.``: the learning rate from here on.

    Schedulers of PyTorch (also ``Adjusting learning rate of group 0 to …``) and of Keras (``ReduceLROnPlateau reducing
    learning rate to 0.0001.``). The epoch in front is not used: it counts calls of the scheduler from one, whatever the
    program counts, so the point belongs to the last position that the program itself printed.
    """

    name = "new learning rate"
    priority = 28
    needles: ClassVar[tuple[str, ...]] = ("earning rate",)
    _sentence = re.compile(
        r"(?:^|[ :])(?:reduc|adjust|sett|decreas|lower|chang)ing (?:the )?learning rate"
        rf"(?: of group (?P<group>\d{{1,4}}))?(?: from {_OLD})? to {_VALUE}\.?\s*$",
        re.IGNORECASE,
    )

    def parse(self, row: Row) -> Record | None:
        match = self._sentence.search(row.text)
        if match is None:
            return None
        group = int(match["group"] or 0)
        tag = f"learning rate (group {group})" if group else "learning rate"
        return Record([Value(tag, number(match["value"]), *match.span("value"))], once=True)  # the tag has a number
