"""Silent faults: what `postmortem check` and torch-audit say about the same faulty trainings and their healthy twins.

    python benchmarks/silent_peers.py CASES [--only NAME] [--tool postmortem|torch-audit|both]

CASES holds `index.json`, a list of `{"id", "case", "script", "healthy"}`; each script is copied alone into a new folder
as `train.py` and run there. torch-audit (in the environment of this script) is attached without a change to the script:
`autopatch` at the first call of a model after an optimizer was made, with an audit at every step. It has no names of
faults, so that only "said something" can be compared: a finding of severity WARN or ERROR, without the rules about the
speed of the hardware (TA2xx).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

LIMIT = 400.0
"""Seconds for one script under one tool."""

ANSWER = "audit.json"


def main() -> None:
    if sys.argv[1:2] == ["--audited"]:
        audited(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--only", default="", help="only the scripts whose id contains this")
    parser.add_argument("--tool", choices=("postmortem", "torch-audit", "both"), default="both")
    options = parser.parse_args()
    scripts = [e for e in json.loads((options.cases / "index.json").read_text()) if options.only in e["id"]]
    tools = ("postmortem", "torch-audit") if options.tool == "both" else (options.tool,)
    said: dict[str, Counter[bool]] = {tool: Counter() for tool in tools}
    asked = Counter(bool(e["healthy"]) for e in scripts)
    for entry in scripts:
        for tool in tools:
            names = answer(tool, options.cases / entry["script"])
            said[tool][bool(entry["healthy"])] += bool(names)
            kind = "healthy" if entry["healthy"] else "faulty"
            print(f"{entry['id']:34} {kind:8} {tool:12} {', '.join(names) or '-'}", flush=True)
    for tool in tools:
        found, blamed = said[tool][False], said[tool][True]
        print(
            f"{tool:12} faulty: something said {found}/{asked[False]}; healthy: something said {blamed}/{asked[True]}"
        )


def answer(tool: str, script: Path) -> list[str]:
    """The names of what `tool` reports on one training, sorted; "no answer" where it ended without one."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(script, Path(folder) / "train.py")
        inner = [sys.executable, "train.py"]
        command = [sys.executable, "-m", "postmortem", "run", "--why", "--format", "json", "--", *inner]
        if tool == "torch-audit":
            command = [sys.executable, str(Path(__file__).resolve()), "--audited", "train.py"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
        try:
            if tool == "postmortem":
                return sorted({fault["name"] for fault in json.loads(done.stdout)["faults"]})
            return sorted(set(json.loads((Path(folder) / ANSWER).read_text())))
        except (OSError, ValueError, KeyError):
            return [f"no answer: {(done.stderr.strip().splitlines() or ['nothing printed'])[-1][:80]}"]


def audited(script: str) -> None:
    """Run `script` as `__main__` under torch-audit and write the rules that it reports into audit.json."""
    import runpy

    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch_audit import autopatch  # type: ignore[import-not-found,unused-ignore]

    optimizers: list[torch.optim.Optimizer] = []
    auditors: list[Any] = []
    made = torch.optim.Optimizer.__init__

    def remember(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        optimizers.append(self)

    def attach(module: torch.nn.Module, inputs: Any) -> None:
        if not auditors and optimizers and torch.is_grad_enabled() and any(True for _ in module.parameters()):
            auditors.append(None)  # autopatch calls the model itself
            auditors[0] = autopatch(
                module, optimizer=optimizers[0], every_n_steps=1, reporters=[], suppress_internal_errors=True
            )

    torch.optim.Optimizer.__init__ = remember  # type: ignore[method-assign]
    register_module_forward_pre_hook(attach)
    sys.argv = [script]
    sys.path.insert(0, os.getcwd())
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        found = auditors[0].finish(report=False).findings if auditors and auditors[0] else []
        loud = [f.rule_id for f in found if str(getattr(f.severity, "name", f.severity)).upper() in ("WARN", "ERROR")]
        Path(ANSWER).write_text(json.dumps([rule for rule in loud if not rule.startswith("TA2")]))


if __name__ == "__main__":
    main()
