"""Everything that a plugin of another package needs. Names are imported on first use.

A plugin is a module that registers something with a decorator, named in the ``pyproject.toml`` of its package as an
entry point of one of these groups; ``examples/plugin/`` is a whole package.

==================================  ======================  ==========================================================
group                               decorator               what is registered
==================================  ======================  ==========================================================
``postmortem.readers``              ``@reader``             a class with `kind`, `priority`, `claims`, `read`
``postmortem.dialects``             ``@dialect``            a subclass of `Dialect`: a style of text log
``postmortem.checkpoint_formats``   ``@checkpoint_format``  a subclass of `CheckpointFormat`
``postmortem.detectors``            ``@detector``           a subclass of `BaseDetector`
``postmortem.diagnoses``            ``@diagnosis``          a class with `name`, `priority`, `diagnose`
``postmortem.reporters``            ``@reporter(name)``     a function from `Report` and `RenderOptions` to str
``postmortem.fixes``                ``@fix``                a subclass of `BaseFix` (needs torch)
==================================  ======================  ==========================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem._lazy import lazy

if TYPE_CHECKING:
    from postmortem.checkpoints.formats import CheckpointFormat, checkpoint_format
    from postmortem.checkpoints.formats.shared.pieces import Piece, Pieces
    from postmortem.core.culprit import Culprit, Fix
    from postmortem.core.errors import UnreadableCheckpoint
    from postmortem.core.model import Checkpoint, Diagnosis, Event, Finding, Problem
    from postmortem.core.points import Points, PointsBuilder
    from postmortem.core.reading import Reading
    from postmortem.core.report import Report, RunReport
    from postmortem.core.run import Run
    from postmortem.core.series import Series
    from postmortem.core.skipped import Skip
    from postmortem.core.view import View
    from postmortem.detectors import NotChecked, detector
    from postmortem.detectors.base import BaseDetector
    from postmortem.diagnoses import diagnosis
    from postmortem.diagnoses.shared.story import Story
    from postmortem.readers import Content, reader
    from postmortem.readers.shared.row_table import RowTable
    from postmortem.readers.shared.row_table import finish as finish_table
    from postmortem.readers.text.dialects import Dialect, dialect
    from postmortem.readers.text.records.record import Record, Row, Trust, Value
    from postmortem.replay.fixes import Advice, BaseFix, Case, Change, Scope, fix
    from postmortem.replay.step.function_mode import StepMode
    from postmortem.replay.step.overrides import Overrides
    from postmortem.reporters import RenderOptions, reporter

__all__ = [
    "Advice",
    "BaseDetector",
    "BaseFix",
    "Case",
    "Change",
    "Checkpoint",
    "CheckpointFormat",
    "Content",
    "Culprit",
    "Diagnosis",
    "Dialect",
    "Event",
    "Finding",
    "Fix",
    "NotChecked",
    "Overrides",
    "Piece",
    "Pieces",
    "Points",
    "PointsBuilder",
    "Problem",
    "Reading",
    "Record",
    "RenderOptions",
    "Report",
    "Row",
    "RowTable",
    "Run",
    "RunReport",
    "Scope",
    "Series",
    "Skip",
    "StepMode",
    "Story",
    "Trust",
    "UnreadableCheckpoint",
    "Value",
    "View",
    "checkpoint_format",
    "detector",
    "diagnosis",
    "dialect",
    "finish_table",
    "fix",
    "reader",
    "reporter",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        **dict.fromkeys(("Checkpoint", "Diagnosis", "Event", "Finding", "Problem"), "postmortem.core.model"),
        **dict.fromkeys(("Culprit", "Fix"), "postmortem.core.culprit"),
        **dict.fromkeys(("Advice", "BaseFix", "Case", "Change", "Scope", "fix"), "postmortem.replay.fixes"),
        **dict.fromkeys(("Points", "PointsBuilder"), "postmortem.core.points"),
        **dict.fromkeys(("Report", "RunReport"), "postmortem.core.report"),
        **dict.fromkeys(("NotChecked", "detector"), "postmortem.detectors"),
        **dict.fromkeys(("Dialect", "dialect"), "postmortem.readers.text.dialects"),
        **dict.fromkeys(("Record", "Row", "Trust", "Value"), "postmortem.readers.text.records.record"),
        **dict.fromkeys(("Content", "reader"), "postmortem.readers"),
        **dict.fromkeys(("RenderOptions", "reporter"), "postmortem.reporters"),
        **dict.fromkeys(("CheckpointFormat", "checkpoint_format"), "postmortem.checkpoints.formats"),
        **dict.fromkeys(("Piece", "Pieces"), "postmortem.checkpoints.formats.shared.pieces"),
        "BaseDetector": "postmortem.detectors.base",
        "Overrides": "postmortem.replay.step.overrides",
        "Reading": "postmortem.core.reading",
        "RowTable": "postmortem.readers.shared.row_table",
        "Run": "postmortem.core.run",
        "Series": "postmortem.core.series",
        "Skip": "postmortem.core.skipped",
        "StepMode": "postmortem.replay.step.function_mode",
        "Story": "postmortem.diagnoses.shared.story",
        "View": "postmortem.core.view",
        "UnreadableCheckpoint": "postmortem.core.errors",
        "diagnosis": "postmortem.diagnoses",
        "finish_table": "postmortem.readers.shared.row_table:finish",
    },
)
