"""`df.postmortem`: the findings of a table of metrics. Registered where pandas was imported before postmortem, by
`%load_ext postmortem`, and by importing this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pandas.api.extensions import register_dataframe_accessor

if TYPE_CHECKING:
    import pandas as pd

    from postmortem.core.config import Config
    from postmortem.core.report import Report


@register_dataframe_accessor("postmortem")
class FrameAccessor:
    """``df.postmortem.scan()`` and ``df.postmortem.findings()`` of a wide or a long table with a step column.

    See `postmortem.scan` for what a table is; UsageError where it has no step column.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def scan(self, *, config: Config | None = None) -> Report:
        """The report of the runs in the table."""
        from postmortem import api  # not at the top: importing postmortem may import this module

        return api.scan(self._frame, config=config)

    def findings(self, *, config: Config | None = None) -> pd.DataFrame:
        """One row per finding: run, verdict, code, name, severity, tag, rank, step, message, evidence, …"""
        frame: pd.DataFrame = self.scan(config=config).findings_frame()
        return frame
