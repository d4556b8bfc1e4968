"""Recognises what postmortem itself wrote, in any of its formats: a report is no run, whatever the name of its file."""

from __future__ import annotations

import re

from postmortem.core.patterns import later
from postmortem.runs.table_file import CSV_HEADER

_VERDICTS = rb"(?:FAILED|SUSPECT|HEALTHY|NOT JUDGED)"
_ANNOTATION = later(rb"::(?:error|warning|notice) file=[^\n]*,title=[^\n]+|\d+ runs?: [^\n]+")
"""A line for GitHub Actions."""
_PAGE_BEGINS = re.compile(rb"%b {2,8}\S| {12}(?:No run was found|\d+ runs?: )" % _VERDICTS)
_PAGE_LINE = re.compile(rb" {0,12}|[A-Za-z ]{11} .*")
"""A line of the text page: a label or none in the first eleven columns, then a blank."""
_OTHERS = re.compile(
    rb'\s*+\{\s*+"schema_version": \d+,\s*+(?:"postmortem": "|"run": ".*"verdict": ")'
    rb'|\s*+\{\s*+"\$schema": "[^"]*sarif[^"]*",[^}]*"name": "postmortem"'
    rb'|<!doctype html>\n<html lang="en"><head>(?:<meta [^>]*>)*<title>postmortem: '
    rb'|<\?xml [^>]*>\s*+<testsuites name="postmortem"'
    rb"|(?:\*\*\d+ runs?: [^\n]*\*\*\s++\| verdict \| |### `[^\n]*`: (?:failed|suspect|healthy|not judged)\n)"
)


def is_own_report(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a report of postmortem.

    A log in which a report stands before the output of a training is none: all lines must be those of a report.
    """
    if _OTHERS.match(head):
        return True
    lines = head.splitlines()
    whole = lines[:-1] if len(lines) > 1 else lines  # the last one may be cut
    if head.startswith(b"::"):
        return all(map(_ANNOTATION.fullmatch, whole))
    return bool(_PAGE_BEGINS.match(head)) and all(map(_PAGE_LINE.fullmatch, whole))


def is_own_table(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a table of `postmortem export`: the numbers of a run twice."""
    return head.startswith(CSV_HEADER.encode() + b"\n")
