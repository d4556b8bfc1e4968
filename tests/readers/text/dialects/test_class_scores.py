"""Scores of each class: conlleval and scikit-learn's report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

import postmortem
from postmortem.readers.text import read_text
from postmortem.readers.text.dialects.class_scores import ClassificationReport, ConllClass
from postmortem.readers.text.lines.prefixes import NOTHING
from postmortem.readers.text.records.record import Row

if TYPE_CHECKING:
    from pathlib import Path

SHARE = st.integers(0, 100).map(lambda n: n / 100)
LABEL = st.text("ABCdef-_", min_size=1, max_size=12)


def values(path: Path, tag: str) -> list[float]:
    """The values of a tag in the order of the lines."""
    points = read_text(path).points
    return points.value[points.code == points.tags.index(tag)].tolist()


def test_the_scores_of_all_classes_are_a_series_of_their_own(tmp_path: Path) -> None:
    """conlleval prints a line for all classes, then one for each; before each stands what the logger adds."""
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            f"2026-02-10 21:{e:02d}:50,178 - log\\train.log - INFO - {line}\n\n"
            for e in range(12)
            for line in (
                f"processed 742 tokens with 56 phrases; found: {60 + e} phrases; correct: {e}.",
                f"accuracy:  {70 + e}.92%; precision:   {e}.00%; recall:   {e}.50%; FB1:   {e}.25",
                f"              LOC: precision:   {e + 20}.00%; recall:   {e}.50%; FB1:   {e + 20}.25  2873",
                f"             MISC: precision:   {e + 40}.00%; recall:   {e}.50%; FB1:   {e + 40}.25  13",
            )
        )
    )
    run = postmortem.load(log)
    assert values(log, "FB1") == [e + 0.25 for e in range(12)]
    assert values(log, "LOC FB1") == [e + 20.25 for e in range(12)]
    assert values(log, "MISC precision") == [e + 40 for e in range(12)]
    assert {run.roles[tag] for tag in ("FB1", "LOC FB1", "MISC recall")} == {"accuracy"}


REPORT = """              precision    recall  f1-score   support

         cat       0.{e:02d}      0.31      0.42       120
     big dog       0.11      0.{e:02d}      1.00         7

    accuracy                           0.{e:02d}       127
   macro avg       0.21      0.22      0.23       127
weighted avg       0.24      0.25      0.{e:02d}       127

"""


def test_a_classification_report_is_read_by_its_labels(tmp_path: Path) -> None:
    """The support is no metric, the accuracy has no label, and a similar row outside of a table is none of it."""
    log = tmp_path / "train.log"
    log.write_text("".join(f"Epoch {e} loss {2 - e / 20}\n{REPORT.format(e=e)}" for e in range(10, 20)))
    percent = [e / 100 for e in range(10, 20)]
    assert values(log, "accuracy") == values(log, "cat precision") == values(log, "big dog recall") == percent
    assert values(log, "weighted avg f1-score") == percent
    assert len(read_text(log).points.tags) == 1 + 4 * 3 + 1
    row = "         cat       0.12      0.31      0.42       120"
    assert ClassificationReport().parse(Row(row, NOTHING, 3)) is None


@given(st.lists(st.tuples(LABEL, SHARE, SHARE, SHARE, st.integers(0, 9999)), min_size=1, max_size=5))
def test_rows_of_a_report(rows: list[tuple[str, float, float, float, int]]) -> None:
    report = ClassificationReport()
    report.parse(Row("              precision    recall  f1-score   support", NOTHING, 1))
    for line, (label, *shares, support) in enumerate(rows, 3):
        record = report.parse(
            Row(f"{label:>12} " + "".join(f"{x:>10.2f}" for x in shares) + f"{support:>10}", NOTHING, line)
        )
        assert record is not None
        assert [v.number for v in record.values] == shares
        assert all(v.tag.startswith(f"{label} ") for v in record.values)


def test_a_row_with_an_epoch_has_no_label() -> None:
    row = "Epoch 3: precision: 61.97%; recall: 55.07%; FB1: 58.21"
    assert ConllClass().parse(Row(row, NOTHING, 1)) is None


@given(LABEL.filter(lambda label: label[0] != "-"), SHARE, SHARE, SHARE, st.integers(0, 9999))
def test_rows_of_conlleval(label: str, p: float, r: float, f: float, n: int) -> None:
    text = f"{label:>17}: precision: {100 * p:6.2f}%; recall: {100 * r:6.2f}%; FB1: {100 * f:6.2f}  {n}"
    record = ConllClass().parse(Row(text, NOTHING, 1))
    assert record is not None
    tags = [v.tag for v in record.values]
    assert tags == [f"{label} {name}" for name in ("precision", "recall", "FB1")]
    assert [text[v.start : v.end] for v in record.values] == [f"{100 * x:.2f}" for x in (p, r, f)]
