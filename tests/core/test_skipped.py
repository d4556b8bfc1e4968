"""The closed list of reasons for which a value that was seen is no point."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from click.testing import CliRunner

import postmortem
from postmortem.cli.main import cli
from postmortem.core.skipped import Skip, Skips
from postmortem.readers.csv_table import CsvTable


@pytest.mark.parametrize("why", list(Skip))
def test_each_reason_has_words_and_a_sentence(why):
    """Reports print the words; the sentence explains them."""
    assert why == str(why) == why.value == why.strip()
    assert why.sentence.endswith(".")


def test_reasons_of_plugins_are_counted_as_other():
    """A key outside of the list, and what a plugin names itself, are under one reason, with their words."""
    skipped, more = Skips({Skip.IMAGES: 2}), Skips()
    more.other("frobs", 3)
    more[Skip.IMAGES] += 1
    more["rows of moonlight"] = 4  # type: ignore[index]
    skipped.add(more)
    skipped.add({"images": 1})  # type: ignore[dict-item]
    assert skipped == {Skip.IMAGES: 4, Skip.OTHER: 7}
    assert skipped.words == {"frobs": 3, "rows of moonlight": 4}
    assert skipped.lines() == ["4 images", "3 frobs (named by a plugin)", "4 rows of moonlight (named by a plugin)"]
    for same in (pickle.loads(pickle.dumps(skipped)), copy.deepcopy(skipped)):
        assert (same, same.words, list(same)) == (skipped, skipped.words, list(skipped))


@pytest.mark.parametrize("own_words", [False, True])
def test_show_and_scan_print_the_reasons(tmp_path, monkeypatch, own_words):
    """`show` lists them in text and JSON, the report has them in its notes; so for those of a reader of a plugin."""
    path = tmp_path / "run.csv"
    path.write_text("step,loss,comment\n" + "".join(f"{i},{1 + i % 3},fine\n" for i in range(30)))
    if own_words:
        read = CsvTable.read

        def with_own_reason(path):
            reading = read(path)
            reading.skipped["moonlight"] = 5
            return reading

        monkeypatch.setattr(CsvTable, "read", staticmethod(with_own_reason))
    text = CliRunner().invoke(cli, ["show", str(path)]).output
    facts = json.loads(CliRunner().invoke(cli, ["show", str(path), "--format", "json"]).output)
    notes = " ".join(postmortem.scan(path).runs[0].notes)
    assert facts["skipped"] == {"non-numeric cells": 30} | ({"other": 5} if own_words else {})
    for output in (text, notes):
        assert "30 non-numeric cells" in output
        assert ("5 moonlight (named by a plugin)" in output) is own_words
    assert facts["skipped_by_plugins"] == ({"moonlight": 5} if own_words else {})
