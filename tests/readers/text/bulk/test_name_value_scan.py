"""The name=value scan for logs in which no two lines have the same words, against one pattern."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from postmortem.readers.text.bulk.collect import Ordered
from postmortem.readers.text.bulk.name_value_scan import NameValueScan
from postmortem.readers.text.bulk.rows import Rows
from postmortem.readers.text.lines.blocks import Lines
from postmortem.readers.text.lines.own_texts import OwnTexts
from postmortem.readers.text.records.step_words import POSITIONS
from postmortem.readers.text.steps.row_store import NO_STEP, OTHERS, RowStore

_PAIR = re.compile(
    r"\b([A-Za-z_][\w/.@]*+)[\"']?(?: ?[:=] ?| )"
    r"(?!0x)([-+]?\d++(?:\.\d++)?+(?:[eE][-+]?\d++)?+|nan|NaN|-?inf)"
    r"(?=[\s,|;:%)\]}]|(?<=\d)[a-zA-Z]{1,3}(?!\w)(?:[\w/.@+\-]|[^\x00-\x7f])*[\s,|;:%)\]}])",
    re.ASCII,
)


def read(tmp_path, text: str) -> tuple[list[tuple[str, float]], list[int]]:
    """The named numbers of a text in order, and the steps of the rows that have one."""
    path = tmp_path / "train.log"
    path.write_text(text, newline="")
    store = RowStore()
    scan = NameValueScan(store, 0)
    for block in Lines(path):
        rows = Rows(block, OwnTexts())
        out = Ordered(rows.line)
        for which in np.array_split(rows.filled, 2):
            if len(which):
                scan.read(rows, which, out)
        out.into(store)
    table, codes, values = store.release()
    tags = [tag.name for tag in store.tags]
    return [(tags[c], v) for c, v in zip(codes.tolist(), values.tolist(), strict=True)], [
        s for s in table["step"].tolist() if s != NO_STEP
    ]


def test_signs_quotes_units_and_non_finite(tmp_path):
    """What may be between a name and its number, and after it."""
    text = "step 12: loss=1.5 a/b: -2e-05, 'lr': 3E2 \"x_1\":+7 grad_norm = nan | scale -inf; "
    text += "speed=3.40it/s time: 12.5ms acc 81.25%\n"
    found, steps = read(tmp_path, text)
    expected = {
        "loss": 1.5,
        "a/b": -2e-05,
        "lr": 300.0,
        "x_1": 7.0,
        "grad_norm": np.nan,
        "scale": -np.inf,
        "speed": 3.4,
        "time": 12.5,
        "acc": 81.25,
    }
    np.testing.assert_equal(dict(found), expected)
    assert steps == [12]


def test_what_is_no_number(tmp_path):
    """Dates, versions, addresses, words, and numbers after a word that is not the name of a quantity."""
    assert read(
        tmp_path, "day: 2026-11-21 version=1.2.3 at=0xff of 3 with nano=nanometer loss = \nabove 5 1.5=loss loss=1.5.\n"
    ) == ([], [])


def test_digits_of_every_length(tmp_path):
    """Numbers that differ only in how many digits they have are different numbers, up to those that no double holds."""
    numbers = (
        ["1" * n for n in range(1, 40)]
        + [f"0.{'3' * n}" for n in range(1, 40)]
        + [f"-7e{n}" for n in range(-330, 330, 7)]
    )
    found, _ = read(tmp_path, "".join(f"loss={n} or lr: {n}\n" for n in numbers))
    assert found == [(tag, float(n)) for n in numbers for tag in ("loss", "lr")]


def test_long_names_are_told_apart(tmp_path):
    """Names that differ only in the middle and are longer than what is hashed."""
    names = [f"layer{'x' * 40}{i}{'y' * 40}/loss" for i in range(300)]
    found, _ = read(tmp_path, "".join(f"{name}={i}\n" for i, name in enumerate(names)))
    assert found == [(name, float(i)) for i, name in enumerate(names)]


_WORDS = st.one_of(
    st.sampled_from(
        ["loss", "lr", "acc_1", "a.b", "@x", "val/loss", "x-y", "the", "nan", "NaN", "inf", "-inf", "it/s", "%", "é"]
    ),
    st.sampled_from(
        ["=", ":", " ", ": ", " = ", "'", '"', ", ", "|", "(", ")", "\n", "\r\n", "\r", "\t", "  ", "-", "+", "."]
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**6), 10**20).map(str),
)


@example(["loss", "=", "1e+16", "="])
@given(st.lists(_WORDS, min_size=1, max_size=60))
def test_finds_what_the_pattern_finds(tmp_path_factory, words):
    """On any text: the same names with the same numbers, in the same order."""
    text = "".join(words) + "\n"
    found, _ = read(tmp_path_factory.mktemp("log"), text)
    known = re.compile("loss|lr|acc")
    expected = []
    for match in _PAIR.finditer(text):
        bare = match[0][len(match[1])] == " " and not re.match(r" [:=]", match[0][len(match[1]) :])
        if match[1].lower() not in POSITIONS and (not bare or known.search(match[1].lower())):
            expected.append((match[1], float(match[2])))
    np.testing.assert_equal(found, expected)


def test_names_without_end_are_bounded(tmp_path, monkeypatch):
    """If every number has a name of its own only the first names are stored; the others are counted."""
    monkeypatch.setattr("postmortem.readers.text.steps.row_store.MOST_TAGS", 50)
    monkeypatch.setattr("postmortem.readers.text.bulk.name_value_scan._LOOKED_AT", 100)
    found, steps = read(tmp_path, "".join(f"step {i}: loss={i}.5 name{i}x={i}\n" for i in range(5000)))
    tags = {tag for tag, _ in found}
    assert len(tags) == 51
    assert [v for tag, v in found if tag == "loss"] == [i + 0.5 for i in range(5000)]
    assert steps == list(range(5000))
    assert sum(tag == OTHERS.name for tag, _ in found) == 5000 - 49
