"""Rows of a table whose cells tell what the other cells are: of which data they are, and which metric a value is of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.core import languages
from postmortem.core.roles import is_held_out
from postmortem.readers.shared.json_numbers import number, written_number
from postmortem.readers.shared.row_table import TELLING
from postmortem.readers.shared.step_column import EPOCHS, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SPLIT_KEYS = ("mode", "split", "phase", "kind", "set", "stage", "subset", "partition", "data_split", "dataset_split")
"""Keys of a row that may name the data it was measured on; they do where they hold one of the words below."""
_HELD_OUT = {
    *("val", "vali", "valid", "validation", "validate", "eval", "evaluation", "evaluate", "test", "testing", "dev"),
    *("held", "heldout", "held-out", "held_out", "holdout", "hold-out", "hold_out", *languages.HELD_OUT),
}
_TRAINED = {"train", "training", "trn", "fit", "learn", *languages.TRAINED}
_NAME_KEYS = ("metric", "name", "tag", "key", "measure", "variable", "metric_name")
_VALUE_KEYS = ("value", "metric_value", "scalar")


class LongRows:
    """Names the cells of the rows of one table, one row after the other.

    A row with ``"kind": "valid"`` holds ``valid/bce``, not ``bce``; one of ``"metric": "bce", "value": 0.2`` holds
    ``bce``. Counters keep their names, as they are of the training; one that runs behind that of the training rows
    counts the batches of the evaluation, and is left out.
    """

    @staticmethod
    def apply(names: Iterable[str]) -> bool:
        """Whether a table with these columns may have such rows."""
        return any(plain(name) in SPLIT_KEYS or plain(name) in _NAME_KEYS for name in names)

    def __init__(self) -> None:
        self._reached: dict[str, float] = {}
        """The highest count of the training rows, of each counter."""

    def renamed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row, without the keys that name its data and its metric, and with the names that they give."""
        split, split_key = next(
            ((word, key) for key, word in row.items() if plain(key) in SPLIT_KEYS and _is_split(word)), ("", "")
        )
        found = _with_name({key: value for key, value in row.items() if not split or key != split_key})
        if split.lower() not in _HELD_OUT:
            for key, value in found.items():
                if plain(key) in TELLING and (count := _count(value)) is not None:
                    self._reached[key] = max(count, self._reached.get(key, count))
            return found
        of_loader = "iter" if plain(split_key) == "mode" and not set(map(plain, found)).isdisjoint(EPOCHS) else ""
        named = {}
        for key, value in found.items():
            if plain(key) not in TELLING:
                named[key if is_held_out(key) else f"{split}/{key}"] = value
            elif key != of_loader and not self._is_behind(key, value):  # mmdetection's iter is of the data loader
                named[key] = value
        return named

    def _is_behind(self, key: str, value: Any) -> bool:
        count = _count(value)
        return plain(key) not in EPOCHS and count is not None and count < self._reached.get(key, count)


def _count(value: Any) -> float | None:
    return written_number(value) if isinstance(value, str) else number(value)


def _is_split(word: Any) -> bool:
    return isinstance(word, str) and (word.lower() in _HELD_OUT or word.lower() in _TRAINED)


def _with_name(row: dict[str, Any]) -> dict[str, Any]:
    """``{"step": 1, "metric": "bce", "value": 0.2}`` as ``{"step": 1, "bce": 0.2}``."""
    named = next((key for key in row if plain(key) in _NAME_KEYS and isinstance(row[key], str) and row[key]), None)
    value = next((key for key in row if plain(key) in _VALUE_KEYS), None)
    if named is None or value is None or row[named] in row:
        return row
    return {row[named] if key == value else key: cell for key, cell in row.items() if key != named}
