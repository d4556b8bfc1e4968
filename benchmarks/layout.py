"""Gradients that DDP has to copy: does `postmortem layout` name the parameter and the line that produces them?

    python benchmarks/layout.py [--only NAME] [--iterations N]

Each of PRODUCERS is a training in which the line marked `# PRODUCER` gives a gradient other strides than its parameter
has; each of CLEAN looks like one and has none. `postmortem layout` runs each under DDP with gloo in two processes and
counts DDP's own warnings, without a change and with each fix. Two threads: with one, torch's convolutions of the CPU
give other strides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 300.0
"""Seconds for one training."""

HEAD = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
{before}
"""
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 8)
        self.made = {made}

    def forward(self, x):
        return {call}

    def inner(self, h):
        w = self.made
        {used}


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(40):
    loss = net(torch.randn(5, 6)).square().mean()
    (loss / {micro}).backward()
    if step % {micro} == {micro} - 1:
        opt.step()
        opt.zero_grad()
"""
GAN = """
class Taps(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 1, 4))

    def forward(self, h):
        w = self.w
        {used}


A, B, D = nn.Sequential(nn.Linear(6, 8), Taps()), nn.Sequential(nn.Linear(6, 8), Taps()), nn.Linear(4, 1)
opt_g = torch.optim.Adam([*A.parameters(), *B.parameters()], lr=1e-3)
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3)
for _ in range(40):
    z = torch.randn(5, 6)
    opt_d.zero_grad()
    (D(A(z).detach()).mean() + D(B(z).detach()).mean() - D(torch.randn(5, 4)).mean()).backward()
    opt_d.step()
    opt_g.zero_grad()
    (-D(A(z)).mean() - D(B(z)).mean()).backward()
    opt_g.step()
"""
FUNCTION = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, w):
        ctx.save_for_backward(h, w)
        return h * w[:, 0]

    @staticmethod
    def backward(ctx, g):
        h, w = ctx.saved_tensors
        {returned}
"""
OWN_DDP = 'import torch.distributed as dist\ndist.init_process_group("gloo")'


def net(made: str, *used: str, call: str = "self.inner(self.inp(x))", before: str = "", micro: int = 1) -> str:
    """A training of a Linear of width 8 and then `used`, which has its output `h` and the member `w`."""
    body = NET.format(made=made, call=call, used="\n        ".join(used), micro=micro)
    if before == OWN_DDP:
        body = body.replace("net = Net()", "net = nn.parallel.DistributedDataParallel(Net())")
    return HEAD.format(before=before) + body


def gan(*used: str) -> str:
    """A training of two generators and a discriminator."""
    return HEAD.format(before="") + GAN.format(used="\n        ".join(used))


def weight(*shape: int) -> str:
    """A parameter."""
    return f"nn.Parameter(torch.randn{shape})"


CUBE = weight(8, 1, 4)
PERMUTED = "k = w.permute(1, 0, 2)  # PRODUCER", "k = k.squeeze(0)", "return h @ k"
IMAGE = "h = h[:, :, None, None].expand(-1, -1, 3, 3).contiguous(memory_format=torch.channels_last)"
NORM = "nn.ParameterDict({'g': nn.Parameter(torch.rand(8, 1)), 'v': nn.Parameter(torch.randn(8, 8))})"
PRODUCERS = {
    "permute": net(CUBE, *PERMUTED),
    "permute, own DDP": net(CUBE, *PERMUTED, before=OWN_DDP),
    "permute, accumulated": net(CUBE, *PERMUTED, micro=2),
    "transpose": net(CUBE, "k = w.transpose(0, 1)  # PRODUCER", "k = k * 2", "return (h[:, None] @ k).sum(1)"),
    "transpose, copied": net(weight(4, 8), "k = w.t()  # PRODUCER", "return (h[:, :, None] * k).sum(1)"),
    "expand": net(CUBE, "k = w.transpose(0, 1).expand(5, 8, 4)  # PRODUCER", "return h[:, :, None] * k"),
    "size-1": net(weight(1, 8), "k = w.t()  # PRODUCER", "k = k.squeeze(1)", "return h * k"),
    "movedim": net(weight(4, 8, 1), "k = w.movedim(0, -1)  # PRODUCER", "return (h[:, :, None, None] * k).sum(1)"),
    "channels_last": net("nn.Conv2d(8, 4, 3)", IMAGE, "return w(h)  # PRODUCER"),
    "channels_last, 1x1": net("nn.Conv2d(8, 4, 1)", IMAGE, "return w(h)  # PRODUCER"),
    "weight_norm": net(NORM, "k = w['g'].t() / w['v'].norm(dim=1)  # PRODUCER", "return h @ (w['v'].t() * k)"),
    "custom Function": net(
        weight(8, 1),
        "return Scale.apply(h, w)",
        before=FUNCTION.format(returned="return g * w[:, 0], (g * h).sum(0)[None].t()  # PRODUCER"),
    ),
    "checkpointing": net(CUBE, *PERMUTED, call="checkpoint(self.inner, self.inp(x), use_reentrant=False)"),
    "reentrant checkpointing": net(CUBE, *PERMUTED, call="checkpoint(self.inner, self.inp(x), use_reentrant=True)"),
    "two generators": gan(*PERMUTED),
    "einsum": net(weight(4, 8, 1), "k = torch.einsum('bi,oij->bo', h, w)  # PRODUCER", "return k * 2"),
    "bmm": net(weight(1, 4, 8), "k = w.transpose(1, 2)  # PRODUCER", "return torch.bmm(h[None], k)"),
    "position embedding": net(weight(1, 8, 1), "k = w.permute(0, 2, 1)  # PRODUCER", "return h[:, None] + k"),
}
CLEAN = {
    "linear": net("nn.Linear(8, 1)", "return w(h)"),
    "product with a transpose": net(weight(4, 8), "k = w.t()", "return h @ k"),
    "permuted activations": net("nn.Linear(4, 3)", "h = h.view(-1, 2, 4).permute(1, 0, 2)", "return w(h)"),
    "channels_last throughout": net("nn.Conv2d(8, 4, 3).to(memory_format=torch.channels_last)", IMAGE, "return w(h)"),
    "contiguous image": net("nn.Conv2d(8, 4, 1)", IMAGE, "return w(h.contiguous())"),
    "weight_norm": net("nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))", "return w(h)"),
    "size-1 in place": net(weight(1, 8), "return h * w.expand(5, 8)"),
    "custom Function": net(
        weight(8, 1),
        "return Scale.apply(h, w)",
        before=FUNCTION.format(returned="return g * w[:, 0], (g * h).sum(0)[:, None]"),
    ),
    "checkpointing": net(
        "nn.Linear(8, 4)", "return w(h)", call="checkpoint(self.inner, self.inp(x), use_reentrant=False)"
    ),
    "two generators": gan("return h @ w.view(8, 4)"),
    "einsum": net(weight(8, 4), "return torch.einsum('bi,io->bo', h, w)"),
    "attention": net("nn.MultiheadAttention(8, 2)", "return w(h, h, h)[0]", before=OWN_DDP),
    "recurrent": net("nn.GRU(8, 4, batch_first=True)", "return w(h[:, None])[0]"),
    "tied": net("nn.Embedding(8, 8)", "return F.linear(w(torch.arange(5)) + h, w.weight)", micro=2),
}


def answered(text: str, iterations: int) -> dict[str, Any]:
    """The answer of `postmortem layout` on a training; only `error` where there is none."""
    inner = ["train.py"]
    if OWN_DDP in text:
        inner = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    options = ["--iterations", str(iterations), "--format", "json", "--", sys.executable, *inner]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "postmortem", "layout", *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": (done.stderr.strip().splitlines() or ["nothing printed"])[-1]}
    return answer


def wrong(text: str, answer: dict[str, Any]) -> list[str]:
    """What of an answer is not as planted."""
    planted = [n for n, line in enumerate(text.splitlines(), 1) if "# PRODUCER" in line]
    if "error" in answer:
        return [answer["error"]]
    named = sorted({g["line"] for g in answer["gradients"]})
    found = [] if named == planted else [f"lines {named}, planted {planted}"]
    cure = next((t for t in answer["tried"] if t["cures"]), None)
    if planted and (cure is None or cure["warnings"]["after"]):
        found.append("not cured")
    if not planted and answer["warnings"]:
        found.append("DDP warns of a clean one")
    return found


def main() -> int:
    """Prints a line a training; returns 1 if one is not as planted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--iterations", type=int, default=3)
    options = parser.parse_args()
    failures = 0
    for kind, cases in (("producer", PRODUCERS), ("clean", CLEAN)):
        chosen = {name: text for name, text in cases.items() if options.only in name}
        right = 0
        for name, text in chosen.items():
            answer = answered(text, options.iterations)
            missed = wrong(text, answer)
            right += not missed
            told = [f"{g['name']} line {g['line']} {g['op']} {g['difference']}" for g in answer.get("gradients", [])]
            cure = next((t for t in answer.get("tried", []) if t["cures"]), None)
            after = f"; {cure['fix']}: {cure['warnings']['after']}" if cure else ""
            warned = f"DDP's warnings {answer.get('warnings')}{after}"
            mark = "wrong: " + "; ".join(missed) if missed else "right"
            print(f"{kind:8} {name:26} {mark}; {', '.join(told) or 'none'}; {warned}", flush=True)
        print(f"{kind}: {right} of {len(chosen)} right")
        failures += len(chosen) - right
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
