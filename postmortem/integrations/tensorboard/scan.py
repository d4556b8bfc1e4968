"""``python -m postmortem.integrations.tensorboard.scan OUT FOLDER…``: one scan, as JSON and as a page, into OUT."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem import api
from postmortem.core.errors import PostmortemError
from postmortem.reporters import REPORTERS, RenderOptions
from postmortem.reporters.shared.outline import folded, headline, totals, worst_first
from postmortem.reporters.shared.words import clean

if TYPE_CHECKING:
    from postmortem.core.report import RunReport

_MOST = 50  # findings of one run


def main(out: str, *folders: str) -> int:
    """Writes findings.json and page.html into `out`; 1 and a line on stderr where the folders cannot be scanned."""
    try:
        report = api.scan(folders, keep=False, draw=True)
    except PostmortemError as error:
        print(error, file=sys.stderr)
        return 1
    runs = worst_first(report)  # the order of the page, whose anchors count the runs
    told = {"totals": totals(report), "runs": [_run(run, i) for i, run in enumerate(runs)]}
    Path(out, "findings.json").write_text(json.dumps(told, allow_nan=False), "utf-8")
    Path(out, "page.html").write_text(REPORTERS["html"](report, RenderOptions(verbose=True)), "utf-8", errors="replace")
    return 0


def _run(run: RunReport, index: int) -> dict[str, Any]:
    findings = [f for fold in folded(run) for f in (fold.first, *(c.first for c in fold.consequences))]
    return {
        "name": clean(run.name, 200),
        "verdict": run.verdict,
        "headline": headline(run),
        "anchor": f"run-{index}",
        "findings": [
            {
                "code": clean(f.code),
                "name": clean(f.name),
                "severity": f.severity,
                "tag": clean(f.tag) if f.tag else None,
                "step": f.step,
                "message": clean(f.message, 400),
            }
            for f in findings[:_MOST]
        ],
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
