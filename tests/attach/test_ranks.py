"""A recipe of several ranks: `postmortem replay` starts them, and names the one at fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

from postmortem.replay.recipe.load import Recipe
from postmortem.replay.recipe.ranks import own_file, ranks_saved, ranks_written

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="forks a process that computes")]

TRAIN = """
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return model, torch.optim.Adam(model.parameters(), 0.01)

def micro_batches(step, rank):
    g = torch.Generator().manual_seed(10 * step + rank)
    made = [(torch.rand(4, 3, generator=g), torch.ones(4, 1)) for _ in range(2)]
    if (step, rank) == (6, 1):
        made[1][1][2] = 0.0
    return made

def loss_of(model, batch):
    x, share = batch
    return ((model(x) - 1) * share / share).square().mean()  # at fault
"""
RECIPE = """
import postmortem, torch, train
from torch.distributed.fsdp import fully_shard

def recipe(ctx):
    assert (ctx.world_size, torch.distributed.get_rank()) == (2, ctx.rank)
    torch.distributed.init_process_group("nccl")  # the set-up of the training: the ranks have met by gloo
    model, _ = train.build()
    model = fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    batches = {step: train.micro_batches(step, ctx.rank) for step in range(10)}
    return postmortem.TrainStep(model, optimizer, train.loss_of, batches=batches.get, accumulate=2, ranks=2)
"""


def train(folder: Path) -> None:
    """The training of two ranks in one process: the gradient is the mean of theirs. Each logs its own loss."""
    (folder / "run").mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "recipe.py").write_text(RECIPE)
    program: dict = {}
    exec(TRAIN, program)
    model, optimizer = program["build"]()
    logs: list[list[str]] = [[], []]
    for step in range(8):
        optimizer.zero_grad()
        for rank, log in enumerate(logs):
            losses = [program["loss_of"](model, b) / 2 for b in program["micro_batches"](step, rank)]
            (sum(losses) / 2).backward()
            log.append(f"step {step} loss {sum(losses).item():.6f}\n")
        optimizer.step()
        if step == 2:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / "run" / "ckpt_2.pt")
    for rank, log in enumerate(logs):
        (folder / "run" / f"train_rank{rank}.out").write_text("".join(log))


def test_the_rank_at_fault_of_a_sharded_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postmortem) -> None:
    """Rank, micro-batch, sample and line; a checkpoint of whole tensors is loaded into the shards, moments as well."""
    pytest.importorskip("torch.distributed.fsdp", reason="no FSDP2")
    train(tmp_path)
    monkeypatch.chdir(tmp_path)
    called = postmortem("replay", "run", "--recipe", "recipe.py", "--no-fix", "--format", "json")
    assert called.code == 1, called.err
    answer = json.loads(called.out)
    culprit = answer["culprit"]
    line = next(n for n, text in enumerate(TRAIN.splitlines(), 1) if "# at fault" in text)
    assert (answer["rank"], answer["micro_batch"], culprit["step"]) == (1, 1, 6)
    assert (culprit["phase"], culprit["op"], culprit["line"], culprit["samples"]) == ("forward", "div", line, [6])
    assert [(of["rank"], of["ok"]) for of in answer["ranks"]] == [(0, True), (1, True)]
    assert answer["fidelity"]["exact"] == 4  # steps 3 to 6


def test_what_cannot_be_done_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postmortem) -> None:
    """Another number of ranks than the log's, another device, no number: nothing is started."""
    train(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "train_rank2.out").write_text("step 0 loss 1.0\nstep 1 loss 1.5\n")
    called = postmortem("replay", "run")
    assert (called.code, called.err) == (
        2,
        "postmortem: ranks=2, but the log is of 3 ranks: set ranks=3 in the recipe\n",
    )
    called = postmortem("replay", "run", "--device", "cuda:0")
    assert (called.code, "ranks are run on the CPU (gloo), not on cuda:0" in called.err) == (2, True)
    called = postmortem("replay", "run", "--repro", "made")
    assert (called.code, "--repro writes the step of one process only" in called.err) == (2, True)


def test_the_number_of_ranks_is_read_from_the_file(tmp_path: Path) -> None:
    """Of the recipe's own function, else of the file; 1 without a number."""
    file = tmp_path / "recipes.py"
    file.write_text("def a(ctx):\n    return T(ranks=2)\ndef b(ctx):\n    return T(ranks=4)\ndef c(ctx):\n    pass\n")
    assert [ranks_written(Recipe(f"{file}:{name}")) for name in "abc"] == [2, 4, 4]
    file.write_text("def a(ctx):\n    return T(ranks=ctx.ranks)\n")
    assert ranks_written(Recipe(f"{file}:a")) == 1


def test_each_rank_has_its_own_checkpoint(tmp_path: Path) -> None:
    """Where the name has the rank; a missing one leaves the one that is given."""
    for rank in range(3):
        (tmp_path / f"step10_rank{rank}.pt").touch()
    first = tmp_path / "step10_rank0.pt"
    assert own_file(first, 2).name == "step10_rank2.pt"
    assert own_file(first, 7) == first
    assert (ranks_saved(first), ranks_saved(tmp_path / "ckpt_10.pt")) == (3, 0)
