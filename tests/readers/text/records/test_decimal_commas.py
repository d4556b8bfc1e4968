"""Whether a comma stands before decimals or between thousands is what the whole log shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import postmortem
from postmortem.readers.text.records.decimal_commas import decimal_commas, with_dots

GERMAN = "[20.11.2026 10:00:{:02d}] Schritt {} | Verlust: {} | Zeichen: {}"
VALUES = [
    ("2,506", "1.204"),
    ("2,004", "1.204.000"),
    ("1,9", "12.000"),
    ("1,125", "1.024"),
    ("0,4312", "512"),
    ("3", "2.048"),
    ("1,250", "4.096"),
] * 9


def test_a_log_with_decimal_commas(tmp_path: Path) -> None:
    """One unambiguous number decides how to read all others, also in other rows; dots then separate thousands."""
    log = tmp_path / "train.log"
    log.write_text("Python 3.11.7\n" + "".join(GERMAN.format(i % 60, i, *pair) + "\n" for i, pair in enumerate(VALUES)))
    frame = postmortem.load(log).frame
    loss, letters = (frame[frame.tag == tag].sort_values("step") for tag in ("Verlust", "Zeichen"))
    assert loss.value.tolist() == [float(v.replace(",", ".")) for v, _ in VALUES]
    assert letters.value.tolist() == [float(n.replace(".", "")) for _, n in VALUES]


def test_a_log_with_commas_between_thousands(tmp_path: Path) -> None:
    """A list in the settings is no evidence against the metrics."""
    log = tmp_path / "train.log"
    log.write_text(
        "devices=0,1\n" + "".join(f"step {i} loss: {2 / (i + 1):.3f} tokens: {i + 1},204\n" for i in range(40))
    )
    frame = postmortem.load(log).frame
    assert frame[frame.tag == "tokens"].value.tolist() == [1000.0 * (i + 1) + 204 for i in range(40)]


@pytest.mark.parametrize(
    ("text", "commas"),
    [
        ("Verlust: 0,75", True),
        ("perte 1,25 à 0,5 it/s", True),
        ("Rate: 0,002 | Runde 3", True),
        ("loss: 1,204", False),
        ("loss: 0.75, acc: 0.5\nlr: 0,01", False),
        ("gpus=0,1 loss 3", False),
        ("shape (3,10) betas=(0.9,0.95) ids [0,25]", False),
        ("10:00:00,125 step 3", False),
        ("", False),
    ],
)
def test_the_evidence(text: str, commas: bool) -> None:
    assert decimal_commas(text) is commas


def test_a_line_keeps_its_length() -> None:
    """Marks with another meaning stay; shortened numbers are padded, so that positions in the line do not move."""
    line = "2026-11-20 10:00:00,123 [1,2] Verlust: 0,75, Zeichen: 1.204.000, Rate 1.050,25 (3,5) v1.2.3"
    assert (
        with_dots(line) == "2026-11-20 10:00:00,123 [1,2] Verlust: 0.75, Zeichen:   1204000, Rate  1050.25 (3,5) v1.2.3"
    )
