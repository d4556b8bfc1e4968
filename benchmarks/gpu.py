"""What replay does on a CUDA device, in one table: marked tests, the chain, the cases, the cost, the synchronisations.

    python benchmarks/gpu.py [--cases DIR] [--parts tests,chain,cost,syncs,zoo,cases] [--limit SECONDS] [--device cuda]

Parts, each in a process of its own that is ended at its time limit; rows printed up to then are kept:

tests  the tests marked `gpu`, without the chain
chain  small runs trained and replayed on the device, from the log to the culprit (tests/replay/test_chain.py)
cost   benchmarks/replay_cost.py on the device
syncs  what a traced step adds to a plain one, as torch.profiler counts it: calls that block the host (`BLOCKING`), and
       copies from the device to the host. The profiler's own calls are in both counts and cancel out.
zoo    tests/replay/cases on the device, scored as benchmarks/zoo.py does
cases  a further folder of cases, with `--cases`

Exit code: 0 if everything that ran is right or there is no CUDA device, which one line then says; 1 if a test failed,
a case was answered wrong or a part did not finish. `--device cpu` runs the same parts on a CPU, to check this script.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parent.parent
ZOO = ROOT / "tests" / "replay" / "cases"
TOTAL = 440
"""Seconds for all parts together: the table is there in under eight minutes."""
LIMITS = {"tests": 90, "chain": 90, "cost": 90, "syncs": 60, "zoo": 150, "cases": TOTAL}
"""Part -> seconds, in the order in which they run; the last takes what is left of TOTAL."""
BLOCKING = (
    "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy",
    "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize",
)  # fmt: skip
"""Runtime and driver calls that return only when the device is done. One of them follows a copy to the host."""
TO_HOST = "Memcpy DtoH"
_OUTCOME = re.compile(r"^(\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """A line of the table; `ok` is False where something is wrong."""

    part: str
    what: str
    result: str
    ok: bool = True


@dataclass(frozen=True)
class Ran:
    """A part's process: its output as far as it came, whether it ended by itself, its exit code and its seconds."""

    output: str
    finished: bool
    code: int
    seconds: float


# ---- the parts, each in a process of its own


def zoo_records(folder: Path, device: str) -> Iterator[dict[str, Any]]:
    """The number of cases, then for each its name, its seconds and field -> right; {"blamed": …} for healthy ones."""
    import zoo

    paths = sorted(folder.glob("case_*.py"))
    yield {"total": len(paths)}
    for path in paths:
        started = time.perf_counter()
        record: dict[str, Any] = {"case": path.stem.removeprefix("case_")}
        try:
            case = zoo.load(path)
            answer = zoo.localizer(case, device)
            if case.TRUTH["phase"] == "none":
                record["blamed"] = answer["phase"] not in (None, "none")
            else:
                record["right"] = zoo.judge(answer, case)
        except Exception as error:  # noqa: BLE001  (a case that breaks the localiser counts as wrong)
            record["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        yield record | {"seconds": round(time.perf_counter() - started, 2)}


def cost_records(sizes: Iterable[str], device: str) -> Iterator[dict[str, Any]]:
    """The lines that replay_cost prints for each size."""
    import replay_cost

    for size in sizes:
        for line in replay_cost.lines(size, device, 5):
            yield {"size": size, "line": line.strip()}


def sync_records(sizes: Iterable[str], device: str) -> Iterator[dict[str, Any]]:
    """For each size and each way to run a step, what the profiler counted in one step."""
    import replay_cost
    import torch

    from postmortem.replay.trace.tracer import Tracer

    ways = replay_cost.ways(device) | {"closer look": lambda: Tracer(detail=set(), within="others")}
    del ways["detect_anomaly"]
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for size in sizes:
        built = replay_cost.build(size, device)
        for way, around in ways.items():
            replay_cost.seconds(built, around, 2, device)
            with torch.profiler.profile(activities=activities) as profile, around():
                replay_cost.one_step(built)
            yield {"size": size, "way": way, **counted(event.name for event in profile.events())}


def counted(names: Iterable[str]) -> dict[str, int]:
    """blocking: calls in BLOCKING; to_host: copies from the device to the host; reads: calls of item()."""
    seen = Counter(TO_HOST if name.startswith(TO_HOST) else name for name in names)
    return {
        "blocking": sum(seen[n] for n in BLOCKING),
        "to_host": seen[TO_HOST],
        "reads": seen["aten::_local_scalar_dense"],
    }


def work(part: str, options: argparse.Namespace) -> None:
    """Prints the records of a part, a line of JSON each."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sizes = options.sizes.split(",")
    if part == "cost":
        records = cost_records(sizes, options.device)
    elif part == "syncs":
        records = sync_records(sizes, options.device)
    else:
        records = zoo_records(options.cases if part == "cases" else ZOO, options.device)
    for record in records:
        print(json.dumps(record), flush=True)


def command(part: str, options: argparse.Namespace) -> list[str]:
    """The command line of a part's process."""
    if part in ("tests", "chain"):
        chosen = "test_chain" if part == "chain" else "not test_chain"
        quiet = [
            "-W",
            "default",
            "-p",
            "no:cacheprovider",
        ]  # warnings of other versions than the tested ones fail nothing
        folders = [str(ROOT / "tests" / name) for name in ("checkpoints", "replay")]
        return [sys.executable, "-m", "pytest", "-v", "--tb=short", "-m", "gpu", "-k", chosen, *quiet, *folders]
    further = ["--cases", str(options.cases)] if options.cases else []
    return [sys.executable, __file__, "--work", part, "--device", options.device, "--sizes", options.sizes, *further]


def run(part: str, options: argparse.Namespace, limit: float) -> Ran:
    """Runs a part for at most `limit` seconds; then its whole process group is ended."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command(part, options), cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(max(1.0, limit))
            finished = True
        except subprocess.TimeoutExpired:
            finished = False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return Ran(output.read(), finished, process.returncode, time.monotonic() - started)


# ---- the rows


def rows_of_tests(part: str, ran: Ran) -> list[Row]:
    """How many tests passed, and the names of those that did not."""
    outcomes: dict[str, str] = {}
    for name, outcome in _OUTCOME.findall(ran.output):
        outcomes[name] = outcome if outcome == "ERROR" else outcomes.get(name, outcome)
    bad = [name.rpartition("::")[2] for name, outcome in outcomes.items() if outcome in ("FAILED", "ERROR")]
    count = Counter(outcomes.values())
    result = f"{count['PASSED']} passed, {len(bad)} failed, {count['SKIPPED']} skipped"
    rows = [Row(part, "tests", result, not bad)]
    if bad:
        rows.append(Row(part, "failed", ", ".join(bad), False))
    if ran.finished and ran.code not in (0, 1):
        rows.append(Row(part, "pytest", f"exit code {ran.code}", False))
    return rows


def records_of(ran: Ran) -> list[dict[str, Any]]:
    """The lines of JSON in the output of a part."""
    return [json.loads(line) for line in ran.output.splitlines() if line.startswith("{") and line.endswith("}")]


def rows_of_zoo(part: str, ran: Ran) -> list[Row]:
    """Right answers of those asked for, the healthy cases that were blamed, the slowest case, and each wrong case."""
    records = records_of(ran)
    total = next((r["total"] for r in records if "total" in r), 0)
    cases = [r for r in records if "case" in r]
    faults = [r for r in cases if "blamed" not in r]
    healthy = [r for r in cases if "blamed" in r]

    def right(field: str) -> str:
        return f"{sum(r.get('right', {}).get(field, False) for r in faults)}/{len(faults)}"

    blamed = [r["case"] for r in healthy if r["blamed"]]
    wrong = [r for r in faults if not r.get("right", {}).get("all", False)]
    result = f"located {right('located')}, every field {right('all')}, healthy blamed {len(blamed)}/{len(healthy)}"
    rows = [Row(part, f"{len(cases)} of {total} cases", result, total == len(cases) and not wrong and not blamed)]
    if cases:
        slowest = max(cases, key=lambda r: r["seconds"])
        rows.append(Row(part, "slowest case", f"{slowest['case']}: {slowest['seconds']:.1f} s"))
    for r in wrong:
        fields = [name for name, ok in r.get("right", {}).items() if not ok and name not in ("located", "all")]
        rows.append(Row(part, r["case"], r.get("error") or f"wrong: {', '.join(fields)}", False))
    return rows + [Row(part, name, "healthy, but blamed", False) for name in blamed]


def rows_of_cost(part: str, ran: Ran) -> list[Row]:
    """The lines of replay_cost, as they are."""
    return [Row(part, record["size"], record["line"].removeprefix(f"{record['size']}: ")) for record in records_of(ran)]


def rows_of_syncs(part: str, ran: Ran) -> list[Row]:
    """What a traced step does more than a plain one."""
    records = records_of(ran)
    plain = {r["size"]: r for r in records if r["way"] == "plain"}
    rows = []
    for r in records:
        what = {"blocking": "blocking calls", "to_host": "copies to the host", "reads": "item() calls"}
        base = None if r["way"] == "plain" else plain[r["size"]]
        counts = [
            f"{r[key]} {name}" if base is None else f"{r[key] - base[key]:+d} {name}" for key, name in what.items()
        ]
        rows.append(Row(part, f"{r['size']}, {r['way']}", ", ".join(counts)))
    return rows


ROWS = {
    "tests": rows_of_tests, "chain": rows_of_tests, "cost": rows_of_cost, "syncs": rows_of_syncs,
    "zoo": rows_of_zoo, "cases": rows_of_zoo,
}  # fmt: skip


def measured(part: str, options: argparse.Namespace, limit: float) -> Iterator[Row]:
    """The rows of a part; where it did not end well, a row says so and the end of its output goes to stderr."""
    ran = run(part, options, limit)
    rows = ROWS[part](part, ran)
    if not ran.finished:
        rows.append(
            Row(part, "time limit", f"ended after {ran.seconds:.0f} s; the rows above are what was done", False)
        )
    elif ran.code and part not in ("tests", "chain"):
        rows.append(Row(part, "exit code", str(ran.code), False))
    if not all(row.ok for row in rows):
        print(f"--- the end of what `{part}` printed", *ran.output.splitlines()[-40:], sep="\n", file=sys.stderr)
    yield from rows
    yield Row(part, "seconds", f"{ran.seconds:.0f}")


def table(rows: list[Row]) -> str:
    """The rows, aligned; `!` marks what is wrong."""
    widths = [max((len(getattr(row, name)) for row in rows), default=0) for name in ("part", "what")]
    return "\n".join(
        f"{' ' if row.ok else '!'} {row.part:{widths[0]}}  {row.what:{widths[1]}}  {row.result}" for row in rows
    )


def device_line(device: str) -> tuple[bool, str]:
    """Whether the device is there, and a line about it or why not."""
    try:
        import torch
    except ImportError:
        return False, f"no CUDA device: {sys.executable} has no torch; nothing was run"
    python = ".".join(map(str, sys.version_info[:3]))
    if not device.startswith("cuda"):
        return True, f"{device}, torch {torch.__version__}, Python {python}"
    if not torch.cuda.is_available():
        return False, f"no CUDA device: torch {torch.__version__} sees none; nothing was run"
    return True, f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, Python {python}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, help="a further folder of cases")
    parser.add_argument("--parts", default=",".join(LIMITS))
    parser.add_argument("--limit", type=float, default=TOTAL, help="seconds that a part may take at most")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", default="tiny,30m", help="models of replay_cost")
    parser.add_argument("--work", choices=LIMITS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options)
        return 0
    asked = options.parts.split(",")
    if unknown := sorted(set(asked) - set(LIMITS)):
        parser.error(f"unknown parts: {', '.join(unknown)}")
    if options.cases is not None:
        options.cases = options.cases.resolve()
        if not options.cases.is_dir():
            parser.error(f"{options.cases} is no folder")
    there, line = device_line(options.device)
    if not there:
        print(line)
        return 0
    started = time.monotonic()
    rows = []
    for part in LIMITS:
        if part in asked and (part != "cases" or options.cases):
            left = TOTAL - (time.monotonic() - started)
            rows += measured(part, options, min(LIMITS[part], options.limit, left))
    print(f"{line}: {time.monotonic() - started:.0f} s", table(rows), sep="\n")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
