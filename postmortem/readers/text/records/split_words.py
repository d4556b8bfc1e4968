"""Words for the data that values were measured on, where one word stands for several values of a row."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from postmortem.core.roles import role_of
from postmortem.readers.text.records.record import Trust
from postmortem.readers.text.records.step_words import HELD_OUT, SPLITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.readers.text.records.record import Record, Value

_ROLES = ("loss", "accuracy", "perplexity", "reward", None)
"""Roles that differ between splits of the data."""


_HEAD = re.compile(r"[\s\[({<*#=>\-|]{0,40}(?P<word>[^\W\d_]+(?:-out)?)(?![^\W_]|[_/.\-]\w)")
_LABEL = re.compile(r"\s{0,8}\[(?P<words>[^\W\d][^\[\]\d]{0,60})\]")
"""What the row is about, in brackets at its head: ``[Diff-Val(Test)] Epoch 6: loss = 0.5``."""
_KEY = re.compile(
    r"(?:^|[\s,{|;(\[])[\"']?(?:mode|split|phase|kind|set|stage|subset|partition|_?type)[\"']?\s?[=:]\s?[\"']?"
    r"(?P<word>[^\W\d_]+(?:-out)?)(?:_(?:epoch|iter|step|batch|set|loop))?(?![\w/.\-])",
    re.IGNORECASE,
)
"""A key that tells the data of its row: ``kind=valid``, ``phase: dev``, ``"_type": "val_epoch"``."""


def split_of_row(record: Record, text: str, start: int) -> None:
    """Take the word for held-out data at the head of a row, or behind a key, if no name of the row tells the data.

    The values of a row about the best so far, ``current best: recall: 0.0, train_loss: inf``, are named so.
    """
    if record.values and _OF_THE_BEST.search(text, start, start + 80):
        record.values = [value._replace(tag=f"best {value.tag.removeprefix('best:')}") for value in record.values]
    if record.split or not record.values or any(SPLITS.intersection(_words(value.tag)) for value in record.values):
        return
    if label := _LABEL.match(text, start):
        named = [word for word in re.findall(r"[^\W\d_]+", label["words"]) if word.lower() in SPLITS]
        if named and all(word.lower() in HELD_OUT for word in named):
            record.split = named[0]
            return
    for found in (_HEAD.match(text, start), _KEY.search(text, start)):
        if found is not None and found["word"].lower() in HELD_OUT:
            record.split = found["word"]
            return


def letters_of_label(text: str, start: int) -> int:
    """The letters of the label in brackets at the head of a row, which are part of no sentence."""
    label = _LABEL.match(text, start)
    return sum(map(str.isalpha, label["words"])) if label else 0


def is_of_another_pass(record: Record) -> bool:
    """Whether a row counts batches of held-out data: ``Valid | Epoch 1 | 2/3 | Loss 0.2``."""
    return record.total is not None and record.level <= Trust.LOCAL and record.split.lower() in HELD_OUT


def _words(tag: str) -> list[str]:
    return re.split(r"[\W_]+", tag.lower())


def give_splits(record: Record, splits: Sequence[tuple[int, str]]) -> None:
    """Give the row its split word, or each value its own: ``Train, Loss: 0.8, Val, Loss: 0.9`` has two.

    `splits` are the words of the row, each with the index of the first value after it.
    """
    values = record.values
    if not splits or splits[-1][0] == 0 or not values:
        record.split = record.split or (splits[-1][1] if splits else "")
        return
    for i, value in enumerate(values):
        split = next((word for first, word in reversed(splits) if first <= i), "")
        own = SPLITS.intersection(_words(value.tag))
        if split and not own and role_of(value.tag) in _ROLES:
            values[i] = value._replace(tag=f"{split} {value.tag}")


def follow_held_out(record: Record) -> None:
    """``test_loss 3.8 Accuracy@1 25.0``: behind a loss of held-out data, in a row without one of the training, stand
    scores of the same data."""
    values = record.values
    if record.split or len(values) < 2 or role_of(values[0].tag) != "val_loss":
        return
    words = [word for word in _words(values[0].tag) if word in HELD_OUT]
    roles = {role_of(value.tag) for value in values}
    if not words or not roles.isdisjoint(("loss", "val_accuracy")) or not HELD_OUT.isdisjoint(_others(values)):
        return
    for i, value in enumerate(values[1:], 1):
        if role_of(value.tag) in ("accuracy", "perplexity") and SPLITS.isdisjoint(_words(value.tag)):
            values[i] = value._replace(tag=f"{words[0]} {value.tag}")


def _others(values: Sequence[Value]) -> set[str]:
    """The words of the names after the first that are no losses."""
    return {word for value in values[1:] if role_of(value.tag) != "val_loss" for word in _words(value.tag)}


_OF_THE_BEST = re.compile(
    r"(?i)(?:^|[:\]|>] |- )\s*+(?:the )?(?:current|currently)?[ _-]?best(?: so far)?\s?[:=]\s?(?=[a-z]\w*\s?[:=])"
)


def inherit_split(record: Record, text: str) -> None:
    """``train Loss: 0.8 Acc: 0.6``: a split word in front of the first name holds for the next ones too."""
    split, base, seen, told = "", "", set(), False
    for i, value in enumerate(record.values):
        tag = value.tag
        if i and tag.lower() in HELD_OUT and role_of(before := record.values[i - 1].tag) == "loss":
            words = [tag if word.lower() in SPLITS else word for word in before.split(" ")]
            if tag in words:  # "train loss 2.31, val 2.40"
                record.values[i] = value._replace(tag=" ".join(words))
                continue
        first, rest = tag.split(" ", 1) if " " in tag else ("", "")
        if rest and first.lower() in SPLITS:
            split, base, told = first, rest, role_of(tag) == "val_loss"
        elif split and value.start >= 0 and role_of(tag) in _ROLES:
            between = text[max(0, value.start - len(tag) - 6) : value.start].replace(tag, "")
            # "Val NLL: 2.6; CE: 1.2": behind a loss of held-out data stands no loss of the training without a word
            if tag in seen or (told and tag != base) or not re.search(r"[|,;\-\t]", between):
                record.values[i] = value._replace(tag=f"{split} {tag}")
        seen.add(tag)
