"""Trainings of two ranks with known faults: does a replay name the rank, the micro-batch, the sample and the line?

    python benchmarks/ranks.py [--way command|recipe|both] [--only NAME] [--keep DIR]

Five faults under DistributedDataParallel and five under FSDP2 (`fully_shard`), on gloo in two processes, each on one
rank, and four trainings without a fault. Each is trained once, with a checkpoint (a full state dict, or
torch.distributed.checkpoint) and one log per rank; then `postmortem replay` runs it from the checkpoint: by the command
itself, or by a recipe with `ranks=2`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 240.0
"""Seconds for a training or a replay."""

TRAIN = '''
import argparse, datetime, os, sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

RANKS, MICRO, ROWS = 2, {micro}, 8
SHARDED, DCP = {sharded}, {dcp}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8, 6)
        self.inner = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 1)

    def forward(self, word, x, share):
        h = self.inner(self.words(word) + x)
        {forward}
        return self.head(h).squeeze(1)


class Local(nn.Module):
    """What each rank keeps for itself."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()), requires_grad=False)


def build():
    torch.manual_seed(0)
    model, local = Net(), Local()
    if SHARDED:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model.inner)
        model = fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    models = {{"net": model, "local": local}}
    return models, torch.optim.AdamW(model.parameters(), 3e-3{adam})


def data(rank, first=0):
    """The samples of a rank, in the order of its steps: word, x, share, target each."""
    made = []
    for step, micro in ((s, m) for s in range(first, 16) for m in range(MICRO)):
        g = torch.Generator().manual_seed(1000 * step + 10 * rank + micro)
        word, x = torch.randint(0, 8, (ROWS,), generator=g), torch.randn(ROWS, 6, generator=g)
        share, target = torch.rand(ROWS, generator=g) + 0.5, torch.randn(ROWS, generator=g)
        if step == 0:
            word = torch.arange(8)
        {data}
        made += zip(word, x, share, target)
    return torch.utils.data.DataLoader(made, batch_size=ROWS)


def loss_of(models, batch):
    word, x, share, target = batch
    gain = models["local"].gain
    out = models["net"](word, x, share)
    {loss}
    return (out - target).square().mean()


def before(step, rank, models, optimizer):
    {before}


def state_of(models, optimizer):
    from torch.distributed.checkpoint import state_dict as sd

    options = sd.StateDictOptions(full_state_dict=not DCP, cpu_offload=not DCP)
    model, moments = sd.get_state_dict(models["net"], optimizer, options=options)
    return {{"net": model, "optimizer": moments, "local": models["local"].state_dict()}}


def save(models, optimizer, step, rank):
    path = Path("run") / f"ckpt_{{step}}"
    if SHARDED and DCP:
        import torch.distributed.checkpoint as dcp

        dcp.save({{**state_of(models, optimizer), "step": step}}, checkpoint_id=path)
        return
    if SHARDED:
        state = state_of(models, optimizer)
    else:
        state = {{name: model.state_dict() for name, model in models.items()}} | {{"optimizer": optimizer.state_dict()}}
    if rank == 0:
        torch.save({{**state, "step": step}}, f"{{path}}.pt")


def load(models, optimizer, path):
    from torch.distributed.checkpoint import state_dict as sd

    if Path(path).is_dir():
        import torch.distributed.checkpoint as dcp

        state = {{**state_of(models, optimizer), "step": 0}}
        dcp.load(state, checkpoint_id=path)
    else:
        state = torch.load(path, weights_only=True)
    if SHARDED:
        options = sd.StateDictOptions(full_state_dict=not DCP)
        parts = {{"model_state_dict": state["net"], "optim_state_dict": state["optimizer"]}}
        sd.set_state_dict(models["net"], optimizer, **parts, options=options)
    else:
        models["net"].load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
    models["local"].load_state_dict(state["local"])
    return state["step"] + 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    args = parser.parse_args()
    dist.init_process_group({backend!r}, timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    models, optimizer = build()
    first = load(models, optimizer, args.resume) if args.resume else 0
    batches = iter(data(rank, first))
    log = open(f"run/train_rank{{rank}}.out", "a")
    for step in range(first, 16):
        before(step, rank, models, optimizer)
        optimizer.zero_grad()
        total = 0.0
        for i in range(MICRO):
            batch, last = next(batches), i == MICRO - 1
            if SHARDED:
                models["net"].set_requires_gradient_sync(last)
            with nullcontext() if SHARDED or last else models["net"].no_sync():
                loss = loss_of(models, batch) / MICRO
                loss.backward()
            total += loss.item()
        optimizer.step()
        print(f"step {{step}} loss {{total:.7f}}", file=log, flush=True)
        if step == 7:
            save(models, optimizer, step, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''

RECIPE = """
import postmortem
import train


def recipe(ctx):
    models, optimizer = train.build()
    drawn = list(train.data(ctx.rank))

    def batches(step):
        made = drawn[step * train.MICRO : (step + 1) * train.MICRO]
        return made if train.MICRO > 1 else made[0]

    return postmortem.TrainStep(
        models,
        optimizer,
        train.loss_of,
        batches=batches,
        accumulate=train.MICRO,
        before_step=lambda step: train.before(step, ctx.rank, models, optimizer),
        ranks=2,
    )
"""


@dataclass(frozen=True)
class Case:
    """A training. The snippets are put into the program; the line marked `# CULPRIT` is at fault. rank, step, phase,
    op, samples: what a replay has to name; `rank` None: a training without a fault."""

    name: str
    sharded: bool
    rank: int | None = None
    step: int = 11
    phase: str = "none"
    op: str | tuple[str, ...] = ""
    samples: tuple[int, ...] | None = None
    micro: int = 1
    micro_batch: int | None = None
    dcp: bool = False
    forward: str = "h = h * share[:, None]"
    data: str = "pass"
    loss: str = "out = out + gain.log()"
    before: str = "pass"
    adam: str = ""

    def at(self, where: str) -> str:
        """A statement for the step and rank of the fault only."""
        micro = f" and micro == {self.micro_batch}" if self.micro_batch is not None else ""
        return where.replace("HERE", f"step == {self.step} and rank == {self.rank}{micro}")

    def write(self, folder: Path) -> None:
        """Writes train.py and recipe.py."""
        snippets = {n: self.at(getattr(self, n)) for n in ("forward", "data", "loss", "before", "adam")}
        text = TRAIN.format(micro=self.micro, sharded=self.sharded, dcp=self.dcp, backend="gloo", **snippets)
        (folder / "train.py").write_text(text.lstrip())
        (folder / "recipe.py").write_text(RECIPE.lstrip())
        (folder / "run").mkdir()

    @property
    def checkpoint(self) -> str:
        """What the training resumes from."""
        return "run/ckpt_7" if self.sharded and self.dcp else "run/ckpt_7.pt"


_DIVIDE = {"forward": "h = h * share[:, None] / share[:, None]  # CULPRIT", "phase": "forward", "op": "div"}
_ROOT = {
    "forward": "h = h * (h * share[:, None]).square().sum(1, keepdim=True).sqrt()  # CULPRIT",
    "phase": "backward",
    "op": "sqrt",
}
_ZERO = "if HERE: share[{}] = 0.0"
_BATCH = {"phase": "data", "data": "if HERE: x[{}] = float('nan')"}


def _sample(snippet: dict[str, Any], sample: int, micro: int = 0) -> dict[str, Any]:
    filled = {k: v.format(sample) if k == "data" else v for k, v in snippet.items()}
    return {"data": _ZERO.format(sample), **filled, "samples": (8 * micro + sample,)}


_LOST = {  # the moments are cleared, and the row of a word that no rank has had a gradient of is 0/0 on its owner
    "phase": "optimizer",
    "op": ("addcdiv", "div", "_fused_adamw", "adamw"),
    "adam": ", eps=0.0",
}
_GAIN = {
    "phase": "forward",
    "op": "log",
    "loss": "out = out + gain.log()  # CULPRIT",
    "before": "if HERE: models['local'].gain.data.fill_(-0.5)",
}

CASES = [
    Case("ddp-forward", False, 1, **_sample(_DIVIDE, 2)),
    Case("ddp-backward", False, 0, micro=2, micro_batch=1, **_sample(_ROOT, 5, 1)),
    Case("ddp-data", False, 1, micro=2, micro_batch=0, **_sample(_BATCH, 3)),
    Case(
        "ddp-optimizer",
        False,
        1,
        phase="optimizer",
        op=("addcdiv", "add", "mul", "lerp"),
        before="if HERE: optimizer.param_groups[0]['lr'] = float('inf')",
    ),
    Case("ddp-local-parameter", False, 0, **_GAIN),
    Case("fsdp-forward", True, 0, dcp=True, micro=2, micro_batch=1, **_sample(_DIVIDE, 6, 1)),
    Case("fsdp-backward", True, 1, **_sample(_ROOT, 2)),
    Case("fsdp-data", True, 0, dcp=True, **_sample(_BATCH, 7)),
    Case(
        "fsdp-optimizer",
        True,
        1,
        **_LOST,
        data="word = word % 6 if step == 11 else word",
        before="if step == 11: optimizer.state.clear()",
    ),
    Case("fsdp-local-parameter", True, 1, dcp=True, **_GAIN),
    Case("ddp-healthy", False),
    Case("ddp-healthy-masked", False, loss="out = out - torch.where(share > 0.6, out, -torch.inf).softmax(0)", micro=2),
    Case("fsdp-healthy", True, dcp=True),
    Case("fsdp-healthy-unused", True, loss="unused = (out * 0.0 / 0.0).detach()", micro=2),
]


def called(command: list[str], folder: Path) -> tuple[int, str, str, float]:
    """Runs a command in a session of its own with a time limit; all of it is ended. -> (code, stdout, stderr, s)."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        out, errors = "", f"not ended after {LIMIT:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, out, errors, time.monotonic() - began


def torchrun(*arguments: str) -> list[str]:
    """The command of a training."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*run, "train.py", *arguments]


def wrong(case: Case, answer: dict[str, Any], folder: Path) -> list[str]:
    """What of an answer is not as planted."""
    culprit = answer["culprit"]
    if case.rank is None:
        quiet = culprit["phase"] == "none" and answer["fidelity"]["ok"]
        return [] if quiet else ["healthy, and blamed or not followed"]
    lines = (folder / "train.py").read_text().splitlines()
    line = next((n for n, text in enumerate(lines, 1) if "# CULPRIT" in text), None)
    ops = case.op if isinstance(case.op, tuple) else (case.op,)
    found = {
        "rank": answer.get("rank") == case.rank,
        "step": culprit["step"] == case.step,
        "phase": culprit["phase"] == case.phase,
        "op": not case.op or culprit["op"] in ops,
        "line": line is None or culprit["line"] == line,
        "samples": case.samples is None or culprit["samples"] == list(case.samples),
        "micro-batch": case.micro_batch is None or answer.get("micro_batch") == case.micro_batch,
        "fidelity": answer["fidelity"]["ok"] and answer["fidelity"]["exact"] > 0,
    }
    return [name for name, right in found.items() if not right]


def main() -> int:
    """Prints a table; returns the number of wrong answers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends as well
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--way", choices=("command", "recipe", "both"), default="both")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--keep", type=Path, help="keep the trainings and answers here, and use those that are there")
    arguments = parser.parse_args()
    base = arguments.keep or Path(tempfile.mkdtemp(prefix="ranks-"))
    failures = 0
    for case in [c for c in CASES if arguments.only in c.name]:
        folder = base / case.name
        if not (folder / "trained").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            case.write(folder)
            code, _, errors, _ = called(torchrun(), folder)
            if code:
                print(f"{case.name}: the training itself failed: {errors[-1500:]}")
                failures += 1
                continue
            (folder / "trained").touch()
        for way in ("command", "recipe") if arguments.way == "both" else (arguments.way,):
            replay = [sys.executable, "-m", "postmortem", "replay", "run", "--format", "json"]
            by = ["--", *torchrun("--resume", case.checkpoint)] if way == "command" else ["--recipe", "recipe.py"]
            code, out, errors, seconds = called([*replay, *by], folder)
            (folder / f"{way}.json").write_text(out + errors)
            try:
                answer = json.loads(out)
                missed = wrong(case, answer, folder)
                c = answer["culprit"]
                said = f"rank {answer.get('rank')} step {c['step']} {c['phase']} {c['op']} line {c['line']}"
                said += f" {c['samples']} micro-batch {answer.get('micro_batch')}"
                said += f" fidelity {answer['fidelity']['exact']}/{answer['fidelity']['compared']}"
            except ValueError:
                missed, said = ["no answer"], (errors.strip().splitlines() or [""])[-1]
            failures += bool(missed)
            mark = "wrong: " + ", ".join(missed) if missed else "right"
            print(f"{case.name:22} {way:8} {seconds:5.1f} s  exit {code}  {mark}; {said}", flush=True)
    if arguments.keep is None:
        shutil.rmtree(base, ignore_errors=True)
    print(f"{failures} wrong")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
