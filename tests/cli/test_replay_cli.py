"""`postmortem replay` and `postmortem checkpoints` as they are typed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.cli.main import main  # noqa: E402
from tests import warm  # noqa: E402

TRAIN = """
import csv, os, sys
import torch
torch.set_num_threads(1)

def batch(step):
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(step)) + 0.5
    if step == 12:
        x[1] = 0.0
    return x

def loss_of(model, x):
    return (model(torch.log(x).clamp(min=-1e30)) ** 2).mean() if x.dim() == 3 else (model(torch.log(x)) ** 2).mean()

def make():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

if __name__ == "__main__":
    model, optimizer = make()
    os.makedirs(sys.argv[1])
    with open(os.path.join(sys.argv[1], "progress.csv"), "w", newline="") as f:
        log = csv.writer(f)
        log.writerow(["step", "loss"])
        for step in range(16):
            loss = loss_of(model, batch(step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.writerow([step, loss.item()])
            if step % 5 == 4:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, os.path.join(sys.argv[1], f"step_{step}.pt"))
"""
RECIPE = """
from postmortem import TrainStep
import os, train
def corrupt(i): raise ValueError("a corrupt sample")
class Samples:
    def __len__(self): return 9
    def __getitem__(self, i): return corrupt(i)
class Dies(Samples):
    def __getitem__(self, i): os._exit(3)
def recipe(ctx):
    model, optimizer = train.make()
    print("a word of the user's own")
    {change}
    return TrainStep(model, optimizer, train.loss_of, batches=train.batch)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose loss is NaN from step 12 on, with checkpoints of steps 4, 9 and 14 and a recipe beside it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "train.py").write_text(TRAIN)
    (folder / "recipe.py").write_text(RECIPE.format(change="pass"))
    assert warm.run(str(folder / "train.py"), str(folder / "run")).returncode == 0
    return folder / "run"


def call(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in args])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--format json is the documented object and nothing else: what the recipe prints goes to stderr."""
    code, out, err = call(capsys, "replay", run, "--format", "json")
    answer = json.loads(out)
    assert code == 1
    assert list(answer) == ["schema_version", "target", "step", "fidelity", "culprit", "next"]
    assert (answer["schema_version"], answer["step"], answer["target"]) == (1, 12, str(run))
    assert answer["fidelity"] | {"note": ""} == {
        "ok": True,
        "checkpoint": str(run / "step_9.pt"),
        "first_step": 10,
        "compared": 3,
        "exact": 3,
        "max_rel_error": 0.0,
        "first_mismatch": None,
        "note": "",
        "reasons": [],
    }
    culprit = answer["culprit"]
    assert (culprit["phase"], culprit["op"], culprit["samples"], Path(culprit["file"]).name) == (
        "forward",
        "log",
        [1],
        "train.py",
    )
    assert "a word of the user's own" in err


def test_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People see the source line in its context, the samples, the fixes, and how faithful the replay was."""
    code, out, _ = call(capsys, "replay", run)
    assert code == 1
    for part in (
        "step 12",
        ">    13 |",
        "torch.log(x)",
        "samples at fault (batch indices): 1",
        "cures    drop_sample",
        "Fidelity: good",
        "zeros 3",
    ):
        assert part in out, part


def test_prose_fits_a_narrow_terminal(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences are broken at the width of the terminal and set in; the user's code never is."""
    long = (
        "return TrainStep(model, optimizer, lambda m, x: train.loss_of(m, x) + 0 * len('a string that makes this "
        "line a good deal longer'), "
    )
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "recipe.py").write_text(RECIPE.format(change=long + "batches=train.batch)"))
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = call(capsys, "replay", run, "--recipe", tmp_path / "recipe.py", "--no-fix")
    prose = out.splitlines()
    established = prose[prose.index("How this was established:") : prose.index("Loaded from the checkpoint:")]
    assert max(map(len, established)) <= 60
    assert any(line.startswith("    ") for line in established)
    assert "loss_of" in out


def test_what_the_step_prints_is_seen_once(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints of the user's step go to stderr while the run is rolled forward, and not again in reruns of the step at
    fault, nor for a script."""
    (tmp_path / "train.py").write_text(
        TRAIN.replace("def loss_of(model, x):", "def loss_of(model, x):\n    print('one step')")
    )
    (tmp_path / "recipe.py").write_text(RECIPE.format(change="pass"))
    code, out, err = call(
        capsys, "replay", run, "--recipe", tmp_path / "recipe.py", "--repro", tmp_path / "alone", "--format", "json"
    )
    assert (code, json.loads(out)["step"]) == (1, 12)
    assert err.count("one step") == 3  # steps 10 to 12


def test_a_recipe_that_changes_the_directory(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths on the command line are those of where it was typed, in a second attempt as well."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "recipe.py").write_text(
        RECIPE.format(change="import os; os.chdir(os.path.join(os.path.dirname(__file__), 'elsewhere'))")
    )
    monkeypatch.chdir(run.parent)
    code, out, _ = call(
        capsys, "replay", "run", "--recipe", tmp_path / "recipe.py", "--checkpoint", "run/step_4.pt", "--format", "json"
    )
    assert (code, json.loads(out)["culprit"]["step"], Path.cwd()) == (1, 12, run.parent)


def test_the_log_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file of a log stands for its run: checkpoints and recipe are found as for the folder."""
    code, out, _ = call(capsys, "replay", run / "progress.csv", "--no-fix", "--format", "json")
    answer = json.loads(out)
    assert (code, answer["culprit"]["step"], answer["fidelity"]["ok"]) == (1, 12, True)
    assert answer["fidelity"]["checkpoint"] == str(run / "step_9.pt")


def test_no_fix_tries_none(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--no-fix leaves the repairs untried."""
    _, out, _ = call(capsys, "replay", run, "--no-fix", "--format", "json")
    assert json.loads(out)["culprit"]["fixes"] == []


def test_repro(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--repro writes a script that reproduces the fault with torch alone."""
    _, out, _ = call(capsys, "replay", run, "--repro", tmp_path / "shown")
    assert str(tmp_path / "shown" / "repro.py") in out
    script = tmp_path / "shown" / "repro.py"
    assert "postmortem" not in script.read_text()
    said = warm.run(str(script)).stdout
    assert said.startswith("reproduced: non-finite values")


ASKED = [
    (11, 0, 11, "is finite up to step 11"),
    (15, 1, 12, "step 15 was requested; step 12, before it, is the first that fails"),
    (4000, 1, 12, "step 4000 was requested, but the log ends at step 15; step 12, before it, is the first that fails"),
]


@pytest.mark.parametrize(("asked", "code", "step", "said"), ASKED)
def test_step_other_than_the_one_at_fault(
    run: Path, capsys: pytest.CaptureFixture[str], asked: int, code: int, step: int, said: str
) -> None:
    """A --step before the fault ends there; with one after it, or beyond the log, the answer is the fault, and one line
    says so."""
    got, out, _ = call(capsys, "replay", run, "--checkpoint", run / "step_9.pt", "--step", asked, "--format", "json")
    answer = json.loads(out)
    assert (got, answer["step"]) == (code, step)
    assert [line for line in answer["culprit"]["how"] if said in line]


BEYOND = [
    ("train.batch", "replayed only up to step 1008"),
    (
        "[train.batch(s) for s in range(5, 11)]",
        "replayed only up to step 10, the end of the batches",
    ),
]


@pytest.mark.parametrize(("batches", "said"), BEYOND)
def test_step_far_beyond_a_finite_log(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], batches: str, said: str
) -> None:
    """A --step that no log vouches for is not rolled to for ever: the line says where the replay ended instead."""
    (tmp_path / "train.py").write_text(TRAIN.replace("if step == 12", "if step == 10**6"))
    (tmp_path / "recipe.py").write_text(
        RECIPE.format(change="pass").replace("batches=train.batch", f"batches={batches}")
    )
    short = tmp_path / "short"
    short.mkdir()
    (short / "progress.csv").write_text("".join((run / "progress.csv").read_text().splitlines(keepends=True)[:10]))
    (short / "step_4.pt").write_bytes((run / "step_4.pt").read_bytes())
    code, out, _ = call(capsys, "replay", short, "--recipe", tmp_path / "recipe.py", "--step", 5000, "--format", "json")
    answer = json.loads(out)
    assert (code, answer["fidelity"]["compared"], answer["fidelity"]["ok"]) == (0, 4, True)
    assert f"step 5000 was requested, but the log ends at step 8; {said}" in answer["culprit"]["how"]


BAD = {
    "recipe raises": ("raise KeyError('lr')", [], "KeyError: 'lr' at recipe.py:13"),
    "wrong shapes": (
        "model = train.torch.nn.Linear(4, 1)",
        [],
        "weight is (1, 3) in the checkpoint and (1, 4) in the model",
    ),
    "missing weights": (
        "model.add_module('more', train.torch.nn.Linear(2, 2))",
        [],
        "trainable weights of the recipe's model are missing in model: more.weight",
    ),
    "batches end": (
        "return TrainStep(model, optimizer, train.loss_of, batches=iter([train.batch(10)]))",
        [],
        "batches end before step 11",
    ),
    "no scalar": (
        "return TrainStep(model, optimizer, lambda m, x: m(x), batches=train.batch)",
        [],
        "must return a scalar loss",
    ),
    "step raises": (
        "return TrainStep(model, optimizer, lambda m, x: 1 / 0, batches=train.batch)",
        [],
        "step 10 raised ZeroDivisionError",
    ),
    "out of memory": (
        "return TrainStep(model, optimizer, lambda m, x: train.torch.empty(10**15), batches=train.batch)",
        [],
        "step 10 of the replay ran out of memory",
    ),
    "no batch": (
        "return TrainStep(model, optimizer, lambda m, x: m(x['a']))",
        [],
        "the step has no batch: set batches=… in the TrainStep",
    ),
    "batches of None": (
        "return TrainStep(model, optimizer, lambda m, x: m(x['a']), batches=lambda s: None)",
        [],
        "batches returned None",
    ),
    "batches fail in torch": (
        "return TrainStep(model, optimizer, train.loss_of, batches=train.torch.zeros(3).__getitem__)",
        [],
        "loading the batch of step 10 raised IndexError: index 10 is out of bounds",
    ),
    "a worker fails": (
        "return TrainStep(model, optimizer, train.loss_of, batches=train.torch.utils.data.DataLoader(Samples(), "
        "batch_size=None, num_workers=1))",
        [],
        "loading the batch of step 10 raised ValueError: a corrupt sample in a DataLoader worker at recipe.py:4",
    ),
    "a worker dies": (
        "return TrainStep(model, optimizer, train.loss_of, batches=train.torch.utils.data.DataLoader(Dies(), "
        "batch_size=None, num_workers=1))",
        [],
        "loading the batch of step 10 raised RuntimeError: DataLoader worker (pid(s)",
    ),
    "batches exit": (
        "import sys; return TrainStep(model, optimizer, train.loss_of, batches=sys.exit)",
        [],
        "loading the batch of step 10 was ended by sys.exit(10)",
    ),
    "what comes before a step exits": (
        "import sys; return TrainStep(model, optimizer, train.loss_of, batches=train.batch, before_step=lambda step: "
        "sys.exit(0))",
        [],
        "loading the batch of step 10 was ended by sys.exit(0) at recipe.py:13",
    ),
    "memory of the recipe": ("train.torch.empty(10**15)", [], "the recipe recipe.py ran out of memory at recipe.py:13"),
    "no train step": ("return None", [], "must return a postmortem.TrainStep, not NoneType"),
    "checkpoint after the onset": ("pass", ["--checkpoint", "step_14.pt"], "is of step 14, not before step 12"),
    "step before the checkpoint": (
        "pass",
        ["--checkpoint", "step_9.pt", "--step", "7"],
        "is of step 9, not before step 7",
    ),
    "no such device": ("pass", ["--device", "cuda:99"], "no such device: 'cuda:99'"),
    "no device at all": ("pass", ["--device", "abacus"], "no such device: 'abacus'"),
    "no file at all": ("pass", ["--checkpoint", "/dev/null"], "/dev/null: not a regular file, but a device or a pipe"),
    "no such checkpoint": ("pass", ["--checkpoint", "nothing.pt"], "no such checkpoint"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    """What cannot be replayed is one line on stderr that says why, exit code 2, and nothing on stdout."""
    change, args, said = BAD[case]
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "recipe.py").write_text(RECIPE.format(change=change))
    args = [str(run / a) if a.endswith(".pt") else a for a in args]
    code, out, err = call(capsys, "replay", run, "--recipe", tmp_path / "recipe.py", *args)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if "a word of the user's own" not in line]
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize("args", [["nowhere"], ["--recipe", "nothing.py"], ["--recipe", "recipe.py:other"]])
def test_bad_arguments(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    """A target, a recipe file or a function that does not exist is one line, exit code 2."""
    monkeypatch.chdir(run.parent)
    code, _, err = call(capsys, "replay", *(args if args[0] == "nowhere" else [run, *args]))
    assert code == 2
    assert err.count("\n") == 1


def test_no_checkpoint(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run without weights is replayed from the initial state that its recipe makes, and the answer says so."""
    (tmp_path / "progress.csv").write_bytes((run / "progress.csv").read_bytes())
    code, out, err = call(capsys, "replay", tmp_path, "--recipe", run.parent / "recipe.py")
    print(out, err)
    assert code == 1


def test_interrupt(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C during the replay ends with one word and leaves the import path as it was."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "recipe.py").write_text(RECIPE.format(change="raise KeyboardInterrupt"))
    before: list[Any] = list(sys.path)
    code, out, err = call(capsys, "replay", run, "--recipe", tmp_path / "recipe.py")
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "postmortem: interrupted"
    assert sys.path == before
    assert "train" not in sys.modules


def test_checkpoints(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`checkpoints` says of each whether it is finite, what changed, and which is the last good one."""
    code, out, _ = call(capsys, "checkpoints", run)
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("step_4.pt  step 4  good")
    assert any(line.startswith("step_14.pt  step 14  NON-FINITE") for line in lines)
    assert any("model.weight" in line and "NaN" in line for line in lines)
    assert any("largest relative changes since the previous checkpoint" in line for line in lines)
    assert lines[-1] == f"last good: {run / 'step_9.pt'}"


def test_checkpoints_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as JSON, tensor by tensor."""
    _, out, _ = call(capsys, "checkpoints", run, "--format", "json")
    answer = json.loads(out)
    assert answer["last_good"] == str(run / "step_9.pt")
    assert [c["finite"] for c in answer["checkpoints"]] == [True, True, False]
    weight = next(t for t in answer["checkpoints"][2]["tensors"] if t["name"] == "model.weight")
    assert (weight["nonfinite"], weight["bad"], weight["shape"]) == (3, True, [1, 3])


def test_what_changed_is_told_of_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Moments of an optimizer change by their own size every time: they are named where they leap; a record is no
    weight."""
    for step, moment in ((1, 1.0), (2, 3.0), (3, 1e6)):
        state = {0: {"step": torch.tensor(float(step)), "exp_avg_sq": torch.full((4,), moment)}}
        saved = {
            "model": {"w": torch.full((4,), 1.0 + step)},
            "optimizer": {"state": state},
            "best_loss": torch.tensor(1e9 / step),
            "step": step,
        }
        torch.save(saved, tmp_path / f"step_{step}.pt")
    _, out, _ = call(capsys, "checkpoints", tmp_path)
    assert [line.split("norm ")[1] for line in out.splitlines() if "norm " in line] == ["4", "6", "8"]
    changed = [line.split(": ")[1] for line in out.splitlines() if "largest relative changes" in line]
    assert changed == ["model.w 0.5", "model.w 0.33, optimizer.state.0.exp_avg_sq 3.3e+05"]


def test_the_last_good_one_by_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of names that tell no step, what the checkpoints say themselves decides which is the last; one that says none is
    not."""
    for name, step in (("best.pt", 50), ("ckpt.pt", 200), ("last.pt", 100)):
        torch.save({"model": {"w": torch.ones(2)}, "step": step}, tmp_path / name)
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    _, out, _ = call(capsys, "checkpoints", tmp_path)
    assert out.splitlines()[-1] == f"last good: {tmp_path / 'ckpt.pt'}"


def test_names_that_would_spoil_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tensor is one line, whatever its name; a file without weights says that it has none."""
    bad = torch.tensor([float("nan")])
    torch.save({"a\nb": bad, "c\x1b[2J": bad, "x" * 5000: bad}, tmp_path / "step_1.pt")
    torch.save({"tokens": torch.tensor([1, 2])}, tmp_path / "step_2.pt")
    code, out, _ = call(capsys, "checkpoints", tmp_path)
    lines = out.splitlines()
    assert (code, len(lines), max(map(len, lines)) < 200, "\x1b" in out) == (1, 7, True, False)
    assert lines[4:] == ["step_2.pt  step 2  NO WEIGHTS", "    no floating-point tensors", "last good: none"]


def test_checkpoints_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without checkpoints is one line, exit code 2."""
    code, _, err = call(capsys, "checkpoints", tmp_path)
    assert code == 2
    assert "no checkpoint found" in err


def test_sample_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The command that a scan of the sample run prints, pasted, names the planted line and the cure."""
    sample = Path(__file__).parents[2] / "sample_runs" / "nan-log-of-zero"
    _, out, _ = call(capsys, "scan", sample, "--format", "json")
    command = next(
        line for line in json.loads(out)["runs"][0]["diagnosis"]["next"] if line.startswith("postmortem replay")
    )
    code, out, _ = call(capsys, *shlex.split(command)[1:], "--format", "json")
    found = json.loads(out)["culprit"]
    assert code == 1
    assert (found["op"], found["code"], found["step"]) == ("log", "return torch.log(energy)", 156)
    assert {f["name"] for f in found["fixes"] if f["cured"]} == {"drop_sample", "eps"}


def test_interrupt_that_hit_an_import(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C over which the tidying up stumbled is told as one, not as a fault of ours."""

    def stumbles(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise ImportError("partially initialized module")

    monkeypatch.setattr("postmortem.api.replay", stumbles)
    code, out, err = call(capsys, "replay", run)
    assert (code, out, err.strip()) == (130, "", "postmortem: interrupted")


def test_an_error_that_was_raised_from_itself(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of causes without an end is one line as well."""

    def itself(*_: object, **__: object) -> None:
        error = ValueError("its own cause")
        raise error from error

    monkeypatch.setattr("postmortem.api.replay", itself)
    code, out, err = call(capsys, "replay", run)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "its own cause" in err


def test_only_the_answer_is_on_stdout(run: Path, tmp_path: Path) -> None:
    """What the user's code writes past Python's sys.stdout, itself or by a child process, does not stand in the
    JSON."""
    (tmp_path / "train.py").write_text(TRAIN)
    writes = (
        "import sys, ctypes; os.write(1, b'raw'); os.system('echo child'); ctypes.CDLL(None).puts(b'from C'); "
        "sys.__stdout__.write('buffered')"
    )
    (tmp_path / "recipe.py").write_text(RECIPE.format(change=writes))
    command = [
        sys.executable,
        "-m",
        "postmortem",
        "replay",
        str(run),
        "--recipe",
        str(tmp_path / "recipe.py"),
        "--no-fix",
        "--format",
        "json",
    ]
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=buffered)
    assert (done.returncode, json.loads(done.stdout)["step"]) == (1, 12)
    assert all(word in done.stderr for word in ("raw", "child", "from C", "buffered", "a word of the user's own"))


@pytest.mark.parametrize("command", ["replay", "checkpoints"])
def test_a_working_directory_that_is_gone(run: Path, tmp_path: Path, command: str) -> None:
    """torch ends the process then, with words of its own: it is not asked."""
    here = tmp_path / "here"
    here.mkdir()
    root = Path(__file__).parents[2]
    code = f"import os, sys; os.chdir({str(here)!r}); os.rmdir({str(here)!r}); sys.path.insert(0, {str(root)!r})\n"
    code += f"from postmortem.cli.main import main; main([{command!r}, {str(run)!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"postmortem: {command}: the working directory is gone, and torch needs one: cd to a folder that exists\n"
    )


@pytest.mark.parametrize(("then", "code"), [("pass", 1), ("raise ValueError", 2)])
def test_a_thread_that_never_ends(run: Path, tmp_path: Path, then: str, code: int) -> None:
    """What a recipe leaves running, as loaders do that read ahead, does not keep the command from ending with its exit
    code."""
    (tmp_path / "train.py").write_text(TRAIN)
    start = "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start(); "
    (tmp_path / "recipe.py").write_text(RECIPE.format(change=start + then))
    done = warm.run("-m", "postmortem", "replay", str(run), "--recipe", str(tmp_path / "recipe.py"), "--no-fix")
    assert done.returncode == code
    assert ("Culprit: " in done.stdout) == (code == 1)


def test_a_recipe_that_closes_stdout(run: Path, tmp_path: Path) -> None:
    """If no stream can be written, only the exit code shows the error, without a traceback."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "recipe.py").write_text(RECIPE.format(change="import sys; sys.stdout.close(); raise ValueError"))
    done = warm.run("-m", "postmortem", "replay", str(run), "--recipe", str(tmp_path / "recipe.py"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_a_script_that_cannot_be_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder for the script that cannot be made costs the script, not the answer."""
    code, out, _ = call(capsys, "replay", run, "--no-fix", "--repro", "/dev/null/x")
    assert code == 1
    assert "Culprit: " in out
    assert "Repro: no stand-alone script was written to /dev/null/x: Not a directory" in out
