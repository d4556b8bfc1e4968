"""`postmortem recipe` writes a recipe that replays, or that names the one place to fill in."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import postmortem as pm

pytest.importorskip("torch")
SAMPLES = Path(__file__).parents[2] / "sample_runs"
TRAINER = """
import torch, transformers

def dataset():
    x = torch.randint(5, 60, (96, 12), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in x]

def main():
    sizes = {"vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))
    args = transformers.TrainingArguments(
        output_dir=".", per_device_train_batch_size=8, max_steps=10, save_steps=5, logging_steps=1, report_to="none",
        use_cpu=True, learning_rate=3e-3,
    )
    transformers.Trainer(model, args, train_dataset=dataset()).train()

if __name__ == "__main__":
    main()
"""
LIGHTNING = """
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

class Lit(lightning.LightningModule):
    def __init__(self, width=8):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = (self.net(x) - y).pow(2).mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def train_dataloader(self):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        x[43] = float("nan")
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)

def main():
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger
    keep = ModelCheckpoint(dirpath="checkpoints", every_n_train_steps=5, save_top_k=-1)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    lightning.Trainer(max_steps=14, logger=CSVLogger("."), log_every_n_steps=1, callbacks=[keep], **quiet).fit(Lit(6))

if __name__ == "__main__":
    main()
"""


def fill_in(recipe: Path, line: str) -> None:
    """Replaces the one place that is to be filled in."""
    before, _, after = recipe.read_text().partition("    raise NotImplementedError(")
    recipe.write_text(f"{before}    {line}\n{after.partition(chr(10))[2]}")


def trained(python, folder: Path, text: str) -> None:
    (folder / "train.py").write_text(text)
    done = python("train.py", cwd=folder)
    assert done.returncode == 0, done.stderr


def test_plain_loop(postmortem, tmp_path):
    """Of a script that can be imported only the batches are left; filled in, the recipe names the planted line."""
    run = tmp_path / "run"
    shutil.copytree(SAMPLES / "nan-log-of-zero", run, ignore=shutil.ignore_patterns("recipe.py", "__pycache__"))
    called = postmortem("recipe", run)
    assert called.out == f"wrote {run}/recipe.py: fill in batch_of()\n"
    told = postmortem("replay", run)
    assert told.code == 2
    assert "fill in batch_of(): return the batch of that step" in told.err
    assert told.err.count("\n") == 1
    fill_in(run / "recipe.py", "return train.Clips().batch(step)")
    result = pm.replay(run, fix=False)
    assert (result.culprit.op, result.fidelity.ok) == ("log", True)


def test_what_is_there_is_kept(postmortem, tmp_path):
    """A recipe is never overwritten; -o writes elsewhere."""
    run = tmp_path / "run"
    shutil.copytree(SAMPLES / "nan-empty-mask", run)
    (run / "recipe.py").write_text("mine")
    told = postmortem("recipe", run)
    assert told.code == 2
    assert "not overwritten" in told.err
    assert (run / "recipe.py").read_text() == "mine"
    called = postmortem("recipe", run, "-o", tmp_path / "draft.py")
    assert "fill in build_model(), compute_loss(), batch_of()" in called.out
    assert "torch.optim.AdamW(model.parameters(), lr=0.003" in (tmp_path / "draft.py").read_text()


def test_without_a_checkpoint(postmortem, tmp_path):
    """The draft makes the initial state; filled in with the seed of the training, the replay follows the log."""
    run = tmp_path / "run"
    gone = shutil.ignore_patterns("recipe.py", "__pycache__", "*.pt", "ckpt*")
    shutil.copytree(SAMPLES / "nan-log-of-zero", run, ignore=gone)
    told = postmortem("replay", run)
    assert "or write a recipe of the initial state, of which `postmortem recipe" in told.err
    called = postmortem("recipe", run)
    assert "fill in set_seed(), batch_of() (no checkpoint was found" in called.out
    draft = run / "recipe.py"
    text = draft.read_text()
    fill = {"set_seed": "torch.manual_seed(train.CONFIG['seed'])", "batch_of": "return train.Clips().batch(step)"}
    for name, body in fill.items():
        text = re.sub(rf'raise NotImplementedError\("fill in {name}.*', body, text)
    draft.write_text(text)
    result = pm.replay(run, fix=False)
    assert (result.culprit.op, result.fidelity.ok, result.checkpoint) == ("log", True, "")


def test_trainer(postmortem, python, tmp_path):
    """Of transformers' Trainer only the data set is left; filled in, the replay follows the log."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    trained(python, tmp_path, TRAINER)
    called = postmortem("recipe", tmp_path, "--checkpoint", tmp_path / "checkpoint-5")
    assert "fill in train_dataset()" in called.out, called.err
    fill_in(tmp_path / "recipe.py", "import train; return train.dataset()")
    result = pm.replay(tmp_path, step=10, checkpoint=tmp_path / "checkpoint-5", fix=False)
    assert result.fidelity.ok, result.fidelity.note


def test_lightning(postmortem, python, tmp_path):
    """Of a Lightning module with its own loader nothing is left: the draft names the sample at fault as it is."""
    pytest.importorskip("lightning")
    trained(python, tmp_path, LIGHTNING)
    called = postmortem("recipe", tmp_path)
    assert "nothing is left to fill in" in called.out, called.err
    culprit = pm.replay(tmp_path, fix=False).culprit
    assert (culprit.cause, culprit.samples) == ("bad-input", (3,))
