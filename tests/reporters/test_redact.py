"""`report --redact` leaves out who ran a training, where, with which settings and secrets; steps and messages stay."""

from __future__ import annotations

import pytest

import postmortem
from postmortem.reporters import REPORTERS, RenderOptions
from postmortem.reporters.shared.redact import redacted

BEFORE = (
    "Namespace(data='/data/zsecretset/imgs', user='alice', entity='acme-corp', lr=0.0317, batch_size=48)",
    "config: {dataset: zsecretset, hidden: 777}",
    "TrainingArguments(output_dir='out_zsecretset', seed=777)",
    "gpu-node-17:2231:2290 [0] NCCL INFO Bootstrap : Using eth0:10.20.30.40<0>",
    "[2025-01-02 10:00:00,123] [INFO] [zhost42] [launch.py:221:main] dist_world_size=8",
    "wandb: Currently logged in as: alice (acme-corp). Use `wandb login --relogin` to force relogin",
)
AFTER = (
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "/home/alice/secret-project/train.py", line 88, in main',
    '[rank3]:     loss = model(batch, api_key="sk-zzz111222333")',
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "gpu-node-17:2231:2290 [3] NCCL WARN NET/Socket : peer gpu-node-18.cluster.acme.com<41234> closed",
    "wandb: View project at https://wandb.ai/acme-corp/moonshot",
    "read s3://acme-bucket/private/data and \\\\acmeserver\\share\\alice\\data.bin",
    "slurmstepd: error: *** STEP 48.0 ON zslurm0099 CANCELLED AT 2025-01-02T10:21:00 ***",
    "RuntimeError: could not reach alice@login.acme.com:/gpfs/projects/alice/x",
)
SECRETS = ("alice", "acme", "zsecretset", "777", "48)", "zzz111", "gpu-node", "zhost42", "10.20", "zslurm", "moonshot")
PLACES = ("/home", "/data/", "/gpfs", "secret-project", "s3://acme", "team_zq", "out_")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run whose log names all of it beside the error that ended it; read by a relative path."""
    folder = tmp_path_factory.mktemp("redacted")
    log = folder / "team_zq" / "alice_run" / "train.log"
    log.parent.mkdir(parents=True)
    rows = [f"step {i} loss {2 - i / 150:.4f} lr 0.001" for i in range(200)]
    log.write_text("\n".join((*rows, *BEFORE, *AFTER)) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        report = postmortem.scan("team_zq", draw=True)
    shown = REPORTERS["html"](report, RenderOptions()), REPORTERS["html"](redacted(report), RenderOptions())
    return tuple(text[text.index("<body") :] for text in shown)


@pytest.mark.parametrize("words", [*SECRETS, *PLACES])
def test_what_tells_who_and_where_is_left_out(page, words):
    """Most of it is in the page that is not redacted: the test would notice a log that is not shown."""
    assert words not in page[1]


def test_the_page_that_is_not_redacted_shows_most_of_it(page):
    assert sum(words in page[0] for words in (*SECRETS, *PLACES)) >= 14


def test_what_happened_stays(page):
    """The step, the message with its line and the name of the file."""
    for words in ("CUDA out of memory. Tried to allocate 2.00 GiB", "train.log:", "train.py", "step 199", "line 88"):
        assert words in page[1], words


@pytest.mark.parametrize(
    "text",
    [
        "train/loss is NaN at step 156; it was 1.059 at step 155",
        "loss scale 65536, 3.2 samples/s, key value pairs, tokens: 1234567",
        "File train.py, line 33, in forward",
        "torch.nn.modules.module raised TypeError: forward() got an unexpected keyword argument 'mask'",
        "learning-rate-too-high: the gradient norm grew from 1.2 to 4e3; config was not logged",
    ],
)
def test_ordinary_text_is_not_changed(page, text):
    report = postmortem.scan("sample_runs/healthy-gan")
    report.runs[0].notes = (text,)
    assert redacted(report).runs[0].notes == (text,)
