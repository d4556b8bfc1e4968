"""Runs a folder of replay cases through `postmortem.localize` and scores the answers, next to those of torch's
detect_anomaly.

    python benchmarks/zoo.py --cases DIR [--device cuda] [--only NAME] [--verbose] [--no-peer]

A case is a file ``case_*.py`` with ``build(device)`` (the fields of a TrainStep as a dict) and ``TRUTH``; the lines
at fault carry the comment ``# CULPRIT``. The localiser is given what `build` returns and nothing else. `localizer` is
the adapter for other scorers: f(case_module) -> dict.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from postmortem.replay.culprit.localize import localize
from postmortem.replay.model import TrainStep

FIELDS = ("phase", "module", "op", "line", "samples", "precision", "fixes", "step", "located", "all")
SAME_OP = {
    **dict.fromkeys(("true_divide", "divide", "addcdiv", "reciprocal", "truediv", "rtruediv"), "div"),
    **dict.fromkeys(("addmm", "mm", "bmm", "baddbmm", "linear", "einsum", "addmv", "mv"), "matmul"),
    **dict.fromkeys(("cross_entropy", "nll_loss_forward", "nll_loss2d_forward"), "nll_loss"),
    **dict.fromkeys(("log2", "log10", "log1p"), "log"),
    "linalg_vector_norm": "norm", "rsqrt": "sqrt", "conv2d": "convolution", "float_power": "pow",
    "std_mean": "std", "var": "std",
    "native_layer_norm": "layer_norm", "linalg_eigh": "eigh", "safe_softmax": "softmax",
}  # fmt: skip
"""Names of one operator: which of them an answer uses does not matter."""


def train_step(case: Any, device: str = "cpu") -> TrainStep:
    """The TrainStep of a case module."""
    built = dict(case.build(device))
    wanted = {k: v for k, v in built.items() if k in TrainStep.__dataclass_fields__}
    return TrainStep(**wanted)


def localizer(case: Any, device: str = "cpu") -> dict[str, Any]:
    """The answer for a case module in the words of a scorer."""
    c = localize(train_step(case, device))
    return {
        "phase": c.phase, "module": c.module, "op": c.op, "file": c.file, "line": c.line, "param": c.param,
        "step": c.step,
        "samples": None if c.samples is None else list(c.samples), "precision_only": c.precision_only,
        "fixes": [f.name for f in c.fixes if f.cured],
        "suggestion": c.suggestion, "how": list(c.how), "established": c.established, "cause": c.cause,
    }  # fmt: skip


def anomaly(case: Any, device: str = "cpu") -> dict[str, Any]:
    """What torch.autograd.detect_anomaly reports for the same step."""
    built = {"autocast": None, "scaler": False, **case.build(device)}
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(built["autocast"])
    scaler = torch.amp.GradScaler(device, init_scale=built.get("init_scale", 2.0**16), enabled=bool(built["scaler"]))
    for k, batch in enumerate(built.get("batches") or [built["batch"]]):
        built["optimizer"].zero_grad()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            phase = "backward"
            try:
                with torch.autograd.detect_anomaly(check_nan=True):
                    with torch.autocast(device, dtype=kind, enabled=kind is not None):
                        loss = built["step"](built["model"], batch)
                    phase = "backward" if torch.isfinite(loss) else "forward"
                    scaler.scale(loss).backward()
            except RuntimeError as error:
                name = re.search(r"Function '(\w+?)Backward\w*' returned nan", str(error))
                text = "\n".join(str(w.message) for w in caught)
                lines = [int(n) for f, n in re.findall(r'File "([^"]+)", line (\d+)', text) if f == case.__file__]
                return {
                    "phase": phase,
                    "op": name and name[1],
                    "file": case.__file__,
                    "line": lines[-1] if lines else None,
                    "step": k,
                }
        if phase == "forward":
            return {"phase": phase, "step": k}
        built["optimizer"].step()
    return {"phase": None}


def judge(answer: dict[str, Any], case: Any) -> dict[str, bool]:
    """Field -> right, for the fields that this case asks for."""
    truth = case.TRUTH

    def among(value: Any, accepted: str, same: Any = lambda x: x) -> bool:
        return same(value) in [same(a) for a in accepted.split("|")]

    out = {"phase": among(answer.get("phase"), truth["phase"])}
    if truth["module"] is not None:
        out["module"] = answer.get("module") is not None and among(answer["module"], truth["module"])
    if truth["op"] is not None:
        out["op"] = among(answer.get("op"), truth["op"], lambda op: SAME_OP.get(s := str(op).strip("_").lower(), s))
    path = Path(case.__file__)
    if truth["line"]:
        marked = [i for i, text in enumerate(path.read_text().splitlines(), 1) if "# CULPRIT" in text]
        out["line"] = answer.get("line") in marked and Path(answer.get("file") or "").name == path.name
    if truth["phase"].partition("|")[0] in ("forward", "backward", "data"):
        out["samples"] = answer.get("samples", "absent") == truth["samples"]
    if truth["phase"] != "layout":
        got, real = answer.get("fixes"), set(truth["fixes"])
        out["precision"] = answer.get("precision_only", "absent") == truth["precision_only"]
        out["fixes"] = got is not None and set(got) <= real and (bool(got) or not real - {"eps"})
    if "step" in truth:
        out["step"] = answer.get("step") == truth["step"]
    out["located"] = all(out.get(k, True) for k in ("phase", "module", "op", "line"))
    out["all"] = all(out.values())
    return out


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def score(cases: list[Any], ask: Any, verbose: bool) -> tuple[dict[str, list[int]], list[str], int]:
    """Field -> [right, asked], the healthy cases that were blamed, and the number of healthy cases."""
    table = {name: [0, 0] for name in FIELDS}
    blamed, healthy = [], 0
    for case in cases:
        try:
            answer = ask(case)
        except Exception as error:  # noqa: BLE001  (a case that breaks the localiser counts as wrong)
            print(f"  {case.__name__}: {type(error).__name__}: {str(error)[:200]}")
            answer = {}
        if case.TRUTH["phase"] == "none":
            healthy += 1
            if answer.get("phase") not in (None, "none"):
                blamed.append(case.__name__)
                if verbose:
                    print(f"  {case.__name__}: blamed: {answer}")
            continue
        result = judge(answer, case)
        for name, right in result.items():
            table[name][0] += right
            table[name][1] += 1
        wrong = [name for name, right in result.items() if not right and name not in ("located", "all")]
        if verbose and wrong:
            shown = {
                k: answer.get(k)
                for k in (
                    "phase",
                    "module",
                    "op",
                    "line",
                    "samples",
                    "precision_only",
                    "fixes",
                    "step",
                    "established",
                    "how",
                )
            }
            print(f"  {case.__name__}: wrong {wrong}: {shown}")
    return table, blamed, healthy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", required=True, type=Path, action="append")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = [load(p) for folder in options.cases for p in sorted(folder.glob("case_*.py")) if options.only in p.stem]
    peers = [("localize", localizer)] + ([] if options.no_peer else [("detect_anomaly", anomaly)])
    for name, ask in peers:
        started = time.perf_counter()
        table, blamed, healthy = score(
            cases, lambda case, ask=ask: ask(case, options.device), options.verbose and ask is localizer
        )
        print(f"{name}: {len(cases)} cases on {options.device}, {time.perf_counter() - started:.1f} s")
        for key, (right, asked) in table.items():
            if asked:
                print(f"  {key:10s} {right:3d}/{asked:<3d} {100 * right / asked:5.1f} %")
        print(f"  healthy cases blamed {len(blamed)}/{healthy} {' '.join(blamed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
