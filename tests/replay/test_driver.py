"""The whole way: small runs that really fail, from their logs and checkpoints to the culprit."""

from __future__ import annotations

import importlib.util
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem import PostmortemError, api  # noqa: E402
from postmortem.replay.driver import ReplayResult  # noqa: E402

RUNS = Path(__file__).parent / "runs"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """trained(name) -> the folder of a run of that name, trained once per session."""
    made: dict[str, Path] = {}

    def once(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("runs") / name
            train(name, made[name])
        return made[name]

    return once


def train(name: str, out: Path, *options: float) -> None:
    """Trains the run `name` of the folder runs into `out`."""
    sys.path.insert(0, str(RUNS))
    try:
        spec = importlib.util.spec_from_file_location(f"run_{name}", RUNS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.train(str(out), *options)
    finally:
        sys.path.remove(str(RUNS))
        sys.modules.pop("common", None)


def rerun(trained: Any, name: str, function: str = "recipe", **options: Any) -> ReplayResult:
    return api.replay(trained(name), recipe=f"{RUNS / name}.py:{function}", **options)


def culprit_line(name: str) -> int:
    lines = (RUNS / f"{name}.py").read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith("# CULPRIT"))


LOCATED = [
    # name, step, phase, module, op, samples, checkpoint
    ("fp16_overflow", 37, "forward", "energy", "mul", (4,), "step_00029.pt"),
    ("one_step_early", 26, "backward", "", "sqrt", (2,), "step_00023.pt"),
    ("two_optimizers", 22, "forward", "gen", "div", (1,), "step_18.pt"),
    ("unlucky_noise", 5, "forward", "", "div", (2,), "step_00003.pt"),
]


@pytest.mark.parametrize(
    ("name", "step", "phase", "module", "op", "samples", "checkpoint"), LOCATED, ids=[case[0] for case in LOCATED]
)
def test_located(
    trained: Any, name: str, step: int, phase: str, module: str, op: str, samples: tuple[int, ...], checkpoint: str
) -> None:
    """From the log alone: the true step, every logged loss reproduced, phase, module, operator, line and samples."""
    result = rerun(trained, name)
    found = result.culprit
    assert Path(result.checkpoint).name == checkpoint
    assert (result.step, found.step, found.phase, found.module, found.op, found.samples) == (
        step,
        step,
        phase,
        module,
        op,
        samples,
    )
    assert found.line == culprit_line(name)
    assert Path(found.file or "").name == f"{name}.py"
    assert result.fidelity.ok
    assert result.fidelity.exact == result.fidelity.compared > 0
    assert "drop_sample" in {f.name for f in found.fixes if f.cured}


@pytest.mark.parametrize("function", ["recipe", "recipe_by_hand"])
def test_resumed_with_another_learning_rate(trained: Any, function: str) -> None:
    """The rate of the resumed run, in the recipe or set by hand, is the one that follows the log; the run diverged by
    it."""
    result = rerun(trained, "wrong_rate", function)
    assert (result.culprit.cause, result.culprit.phase, result.culprit.module) == ("divergence", "optimizer", None)
    assert result.step is not None
    assert 30 <= result.step <= 34
    assert result.fidelity.ok
    assert "lower_lr" in {f.name for f in result.culprit.fixes if f.cured}
    assert any("from the recipe, not from the checkpoint" in line for line in result.fitted) == (function == "recipe")


def test_lost_in_the_first_step_after_a_resume(trained: Any) -> None:
    """A loss that leaps right after the checkpoint, stays up and stays finite is a divergence where the log says that
    it was lost; the checkpoint that the run went on from is good, and the rate before the resume is what is advised."""
    result = rerun(trained, "lost_at_resume")
    assert Path(result.checkpoint).name == "step_00060.pt"
    assert (result.culprit.cause, result.step, result.fidelity.first_step) == ("divergence", 61, 60)
    assert {f.name for f in result.culprit.fixes if f.cured} == {"lower_lr"}
    assert result.next[0].startswith("lr: 90 → 0.05 (stable at 0.05, unstable at 90)")


def test_lightning_with_two_optimizers(trained: Any, tmp_path: Path) -> None:
    """Its checkpoints are named by the steps of both, its log lies in version_0 with the settings: the log's counting
    holds."""
    run = copied(trained, "two_optimizers", tmp_path)
    version = run / "version_0"
    (version / "checkpoints").mkdir(parents=True)
    (run / "progress.csv").rename(version / "metrics.csv")
    (run / "config.json").unlink()
    (version / "hparams.yaml").write_text("latent: 3\n")
    for path in run.glob("*.pt"):
        state = torch.load(path)
        step = state.pop("step")
        stepped = {"epoch_loop.state_dict": {"_batches_that_stepped": step}}
        state |= {"pytorch-lightning_version": "2.5.0", "global_step": 2 * step, "loops": {"fit_loop": stepped}}
        torch.save(state, version / "checkpoints" / f"epoch=0-step={2 * step}.ckpt")
        path.unlink()
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        f"import sys\nsys.path.insert(0, {str(RUNS)!r})\nimport two_optimizers\n"
        "def recipe(ctx):\n    assert ctx.config['latent'] == 3\n    return two_optimizers.recipe(ctx)\n"
    )
    (report,) = api.scan(run).runs
    assert report.diagnosis is not None
    assert Path(report.diagnosis.last_good_checkpoint or "").name == "epoch=0-step=36.ckpt"
    for given in (None, version / "checkpoints" / "epoch=0-step=36.ckpt"):
        result = api.replay(run, recipe=str(recipe), step=22, checkpoint=given)
        assert (result.step, result.culprit.op, result.fidelity.first_step) == (22, "div", 19)


def test_a_checkpoint_in_several_files(trained: Any, tmp_path: Path) -> None:
    """Generator, critic and optimizers, each saved in a file of its own, are the state of a step together."""
    run = copied(trained, "two_optimizers", tmp_path)
    for path in run.glob("*.pt"):
        state = torch.load(path)
        step = state.pop("step")
        torch.save(
            {"model": state["gen"], "optimizer": state["optimizer_gen"], "iteration": step}, run / f"gen_{step}.pt"
        )
        torch.save(state["critic"], run / f"critic_{step}.pt")
        torch.save(state["optimizer_critic"], run / f"optimizer_critic_{step}.pt")
        path.unlink()
    result = api.replay(run, recipe=str(RUNS / "two_optimizers.py"))
    assert Path(result.checkpoint).name in ("gen_18.pt", "critic_18.pt")
    assert (result.step, result.culprit.op, result.fidelity.exact) == (22, "div", result.fidelity.compared)
    assert "optimizer 'critic': from optimizer_critic_18" in result.fitted


def test_named_losses_of_a_resumed_run(trained: Any) -> None:
    """Named losses with a tag each, two optimizers for one step, a layer that thaws, numpy noise, a log that goes back
    at a resume."""
    result = rerun(trained, "resumed_dict")
    found = result.culprit
    assert (result.step, found.phase, found.module, found.op, found.samples) == (47, "forward", "encoder", "div", None)
    assert found.line == culprit_line("resumed_dict")
    assert result.fidelity.exact == result.fidelity.compared > 0
    assert result.fidelity.ok


def test_divergence_over_many_finite_steps(trained: Any) -> None:
    """A loss that grows for a hundred steps and never turns non-finite is a divergence from where it leaves its
    level."""
    result = rerun(trained, "slow_divergence")
    assert result.culprit.cause == "divergence"
    assert result.step is not None
    assert 40 <= result.step <= 80
    assert Path(result.checkpoint).name in ("step_00019.pt", "step_00039.pt")
    assert {f.name for f in result.culprit.fixes if f.cured} >= {"lower_lr"}


def test_run_that_went_on_from_a_damaged_shard(trained: Any) -> None:
    """The replay from the last good checkpoint stays finite; the damaged one on the way explains the log and is
    named."""
    result = rerun(trained, "bad_shard")
    found = result.culprit
    assert (found.cause, found.phase, found.param, result.step) == ("bad-parameter", "parameters", "2.weight", 21)
    assert Path(result.checkpoint).name == "checkpoint-15"
    assert any("resume from checkpoint-15" in line for line in found.how)
    assert result.fidelity.ok


@pytest.mark.parametrize(
    ("part", "named"),
    [("model", "model.embed.weight, model.embed.bias"), ("optimizer", "optimizer.state.0.momentum_buffer")],
)
def test_run_without_a_finite_checkpoint(trained: Any, tmp_path: Path, part: str, named: str) -> None:
    """Where each saved state is non-finite, that is the reason for the difference to the log, and it is reported."""
    folder = tmp_path / "run"
    shutil.copytree(trained("one_step_early"), folder)
    for path in folder.glob("*.pt"):
        saved = torch.load(path)
        states = saved["optimizer"]["state"].values() if part == "optimizer" else [saved["model"]]
        for tensor in (t for state in states for t in state.values()):
            tensor.fill_(float("nan"))
        torch.save(saved, path)
    result = api.replay(folder, recipe=str(RUNS / "one_step_early.py"))
    assert (Path(result.checkpoint).name, result.judged) == ("step_00023.pt", False)
    note = f"the checkpoint step_00023.pt already holds non-finite values ({named}"
    found = result.as_json()
    assert note in found["culprit"]["how"][-1]
    assert found["culprit"]["how"][-1].endswith("the fault came before it")
    assert note in found["fidelity"]["reasons"][0]
    assert found["culprit"]["fidelity"] == found["fidelity"]
    assert "another batch" not in str(result)


def test_healthy_run_is_not_blamed(trained: Any) -> None:
    """Masks, accumulation, clipping, a scheduler and a handled overflow: nothing found, every loss reproduced."""
    result = rerun(trained, "healthy")
    assert (result.culprit.cause, result.culprit.phase, result.judged) == ("none", "none", True)
    assert result.fidelity.exact == result.fidelity.compared == 9


def test_step_asked_for(trained: Any) -> None:
    """--step before the fault: the roll ends there and finds nothing wrong."""
    result = rerun(trained, "one_step_early", step=20)
    assert (result.step, result.culprit.cause, Path(result.checkpoint).name) == (20, "none", "step_00015.pt")


def test_a_checkpoint_alone(trained: Any, tmp_path: Path) -> None:
    """A checkpoint without a log is rolled forward to the first fault; nothing vouches for that replay, which is
    said."""
    alone = tmp_path / "step_00023.pt"
    alone.write_bytes((trained("one_step_early") / "step_00023.pt").read_bytes())
    result = api.replay(alone, recipe=str(RUNS / "one_step_early.py"))
    assert (result.step, result.culprit.op) == (26, "sqrt")
    assert not result.fidelity.ok
    assert result.fidelity.compared == 0


def test_unfaithful_replay_is_the_answer(trained: Any, tmp_path: Path) -> None:
    """Where the recipe's data are not the run's, the replay says that it parts from the log, and judges nothing."""
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        f"import sys\nsys.path.insert(0, {str(RUNS)!r})\nimport healthy\n"
        "def recipe(ctx):\n    step = healthy.recipe(ctx)\n    step.batches = lambda s: healthy.batches(s + 1000)\n   "
        " return step\n"
    )
    result = api.replay(trained("healthy"), recipe=str(recipe))
    assert not result.judged
    assert not result.fidelity.ok
    assert result.fidelity.first_mismatch == result.fidelity.first_step
    assert result.culprit.phase == "none"


def test_process_is_left_as_it_was(trained: Any) -> None:
    """Random generators, modes, flags, threads, sys.path and modules are the same after a replay as before."""
    trained("unlucky_noise")  # not under no_grad
    torch.manual_seed(5)
    random.seed(5)

    def state() -> tuple[Any, ...]:
        flags = (
            torch.is_grad_enabled(),
            torch.is_anomaly_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_default_dtype(),
        )
        loaded = sorted(
            m
            for m in sys.modules
            if getattr(sys.modules[m], "__file__", None) and str(RUNS) in str(sys.modules[m].__file__)
        )
        return (
            torch.get_rng_state().sum().item(),
            random.getstate(),
            flags,
            torch.get_num_threads(),
            list(sys.path),
            loaded,
        )

    before = state()
    with torch.no_grad():
        rerun(trained, "unlucky_noise")
        assert not torch.is_grad_enabled()
    assert state() == before


def copied(trained: Any, name: str, folder: Path) -> Path:
    shutil.copytree(trained(name), folder / name)
    return folder / name


def test_run_that_crashed_before_it_could_log(trained: Any, tmp_path: Path) -> None:
    """A script that refused the NaN never logged it: the replay goes on past the last logged step and finds it."""
    run = copied(trained, "unlucky_noise", tmp_path)
    log = run / "progress.csv"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:6]))  # the header and steps 0 to 4
    error = (
        'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n'
        '    raise ValueError("loss is nan")\nValueError: loss is nan\n'
    )
    (run / "train.err").write_text(error)
    for late in run.glob("step_000[1-9]*.pt"):
        late.unlink()
    (run / "step_00007.pt").unlink()
    result = api.replay(run, recipe=str(RUNS / "unlucky_noise.py"))
    assert (result.step, result.culprit.op) == (5, "div")


def test_sparse_log_vouches_by_its_first_nan(trained: Any, tmp_path: Path) -> None:
    """Where no step before the fault was logged, running on to the step that was shows the same NaN."""
    run = copied(trained, "one_step_early", tmp_path)
    lines = (run / "progress.csv").read_text().splitlines(keepends=True)
    (run / "progress.csv").write_text("".join([lines[0], *lines[1::10]]))  # steps 0, 10, 20, 30
    result = api.replay(run, recipe=str(RUNS / "one_step_early.py"), checkpoint=run / "step_00023.pt")
    assert (result.step, result.culprit.phase) == (26, "backward")
    assert (result.fidelity.ok, result.fidelity.compared) == (True, 1)


def test_checkpoint_between_two_lines_of_a_sparse_log(trained: Any, tmp_path: Path) -> None:
    """A finite checkpoint from after the last logged step and before the first NaN is the last good one, and the replay
    starts there."""
    run = copied(trained, "one_step_early", tmp_path)
    lines = (run / "progress.csv").read_text().splitlines(keepends=True)
    (run / "progress.csv").write_text(
        "".join([lines[0], *lines[1:22:5], lines[-2]])
    )  # steps 0, 5, …, 20, 30; weights of 7, 15, 23, 31
    result = api.replay(run, recipe=str(RUNS / "one_step_early.py"))
    assert Path(result.checkpoint).name == "step_00023.pt"
    assert (result.step, result.culprit.phase, result.fidelity.ok) == (26, "backward", True)


def test_checkpoint_of_the_last_step(trained: Any, tmp_path: Path) -> None:
    """The weights of the last step there is cannot be replayed: a state one step off is not taken for rounding."""
    run = copied(trained, "healthy", tmp_path)
    for other in ("step_00000.pt", "step_00010.pt"):
        (run / other).unlink()
    lines = (run / "progress.csv").read_text().splitlines(keepends=True)
    (run / "progress.csv").write_text("".join(lines[:22]))  # up to step 20
    with pytest.raises(PostmortemError, match="is a checkpoint of the last step"):
        api.replay(run, recipe=str(RUNS / "healthy.py"))


def test_log_that_contradicts_the_replay(trained: Any, tmp_path: Path) -> None:
    """A replay that fails where the log goes on finite is not faithful, which is said."""
    run = copied(trained, "one_step_early", tmp_path)
    lines = (run / "progress.csv").read_text().splitlines(keepends=True)
    finite = [line if "nan" not in line else f"{line.split(',')[0]},0.5\n" for line in lines]
    (run / "progress.csv").write_text("".join(finite))
    result = api.replay(run, recipe=str(RUNS / "one_step_early.py"), checkpoint=run / "step_00023.pt")
    assert (result.fidelity.ok, result.fidelity.first_mismatch, result.judged) == (False, 27, False)
    assert (result.culprit.cause, result.culprit.phase) == ("none", "none")


def test_noise_without_its_random_state(trained: Any, tmp_path: Path) -> None:
    """Where other noise gives other losses but the fault lies where the log has it, the culprit is named and the doubt
    is said."""
    run = copied(trained, "one_step_early", tmp_path)
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        f"import sys\nsys.path.insert(0, {str(RUNS)!r})\nimport torch, one_step_early\n"
        "def recipe(ctx):\n    step = one_step_early.recipe(ctx)\n"
        "    step.step = lambda m, b: (m(*b) * (1 + 0.3 * torch.rand(()))).mean()\n"
        "    return step\n"
    )
    result = api.replay(run, recipe=str(recipe))
    assert (result.fidelity.ok, result.judged) == (False, False)
    assert (result.step, result.culprit.phase) == (26, "backward")
    assert any(line.startswith("random state: not in the checkpoint") for line in result.unfitted)


def test_last_bits_are_rounding(trained: Any, tmp_path: Path) -> None:
    """Weights that differ in their last bit, as those of another machine would, follow the log; how far rounding moves
    the losses is measured and said."""
    run = copied(trained, "healthy", tmp_path)
    saved = torch.load(run / "step_00010.pt")
    for tensor in saved["model"].values():
        tensor.mul_(1 + torch.finfo(tensor.dtype).eps)
    torch.save(saved, run / "step_00010.pt")
    fidelity = api.replay(run, recipe=str(RUNS / "healthy.py"), checkpoint=run / "step_00010.pt").fidelity
    assert fidelity.ok
    assert fidelity.exact < fidelity.compared
    assert "rounding, as measured by reruns, moves them by" in fidelity.note
    assert fidelity.reasons == ()


def test_small_differences_that_rounding_does_not_make(trained: Any, tmp_path: Path) -> None:
    """Another clipping changes the losses by less than 1e-3, the first one not at all: the replay does not follow the
    log, as reruns differ far less, and the reasons are given, the likeliest first."""
    run = copied(trained, "healthy", tmp_path)
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        f"import sys\nsys.path.insert(0, {str(RUNS)!r})\nimport healthy\n"
        "def recipe(ctx):\n    step = healthy.recipe(ctx)\n    step.clip = 0.5\n    return step\n"
    )
    result = api.replay(run, recipe=str(recipe), checkpoint=run / "step_00010.pt")
    assert 1e-5 < (result.fidelity.max_rel_error or 0) < 1e-3
    assert (result.fidelity.ok, result.judged) == (False, False)
    assert "does not follow the log" in result.fidelity.note
    assert "learning rate" in result.fidelity.reasons[0]
    assert "Likely reasons, in this order:" in str(result)


@pytest.mark.parametrize("evaluations", [0, 30])
def test_batches_drawn_ahead(tmp_path: Path, evaluations: int) -> None:
    """A loop that draws the next batch during a step saves a random state from which that batch cannot be drawn, an
    evaluation drew more in between: the state is set back, and the losses are those of the log, dropout included."""
    train("prefetched", tmp_path / "run", evaluations)
    result = api.replay(tmp_path / "run", recipe=str(RUNS / "prefetched.py"))
    assert result.fidelity.ok
    assert result.fidelity.exact == result.fidelity.compared >= 3
    between = f"{evaluations} others" if evaluations else "drawn before the random state was saved;"
    assert any(line.startswith("order of the batches:") and between in line for line in result.fitted)
    assert result.culprit.line in (culprit_line("prefetched"), None)


def test_a_loader_that_looks_ahead(tmp_path: Path) -> None:
    """An iterator that holds a batch drawn before the random state was saved: the state is set back by one batch."""
    train("prefetched", tmp_path / "run", 0, 0.0, True)
    result = api.replay(tmp_path / "run", recipe=f"{RUNS / 'prefetched.py'}:ahead")
    assert result.fidelity.ok
    assert any("the loader looks ahead" in line for line in result.fitted)


def test_nothing_is_concluded_where_the_replay_does_not_follow(tmp_path: Path) -> None:
    """Dropout between the draw and the save cannot be undone: the losses differ, and that a later checkpoint is
    non-finite while the replay is finite says nothing about the run. A batch drawn ahead is a reason that is given."""
    train("prefetched", tmp_path / "run", 0, 0.2, True, 80)
    result = api.replay(tmp_path / "run", recipe=f"{RUNS / 'prefetched.py'}:ahead")
    assert (result.fidelity.ok, result.judged, result.culprit.cause) == (False, False, "none")
    assert any("drawn ahead" in reason for reason in result.fidelity.reasons)


def test_batches_counted_from_another_number(trained: Any, tmp_path: Path) -> None:
    """A recipe whose batches are one off: the order that follows the log is found and said."""
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        f"import sys\nsys.path.insert(0, {str(RUNS)!r})\nimport healthy\n"
        "def recipe(ctx):\n    step = healthy.recipe(ctx)\n"
        "    step.batches = lambda step: healthy.batches(step - 1)\n    return step\n"
    )
    result = api.replay(trained("healthy"), recipe=str(recipe))
    assert (result.fidelity.ok, result.fidelity.exact) == (True, 9)
    assert any("batches(N +1)" in line for line in result.fitted)


def test_fault_that_does_not_come_back(trained: Any, tmp_path: Path) -> None:
    """Up to a single NaN in the log every loss is reproduced and that step is finite: transient, and not judged."""
    run = copied(trained, "healthy", tmp_path)
    lines = (run / "progress.csv").read_text().splitlines(keepends=True)
    lines[26:] = [f"{line.split(',')[0]},nan\n" for line in lines[26:]]
    (run / "progress.csv").write_text("".join(lines))
    result = api.replay(run, recipe=str(RUNS / "healthy.py"))
    assert (result.culprit.cause, result.culprit.phase, result.step, result.judged) == ("transient", "none", 25, False)


def test_means_in_the_log(trained: Any, tmp_path: Path) -> None:
    """A log that shows the mean over the last five steps, to four digits, is recognised as that."""
    run = copied(trained, "healthy", tmp_path)
    rows = [line.split(",") for line in (run / "progress.csv").read_text().splitlines()[1:]]
    losses = {int(step): float(loss) for step, loss in rows}
    means = [f"{k},{sum(losses[k - i] for i in range(5)) / 5:.4f}\n" for k in range(4, 30, 5)]
    (run / "progress.csv").write_text("step,loss\n" + "".join(means))
    result = api.replay(run, recipe=str(RUNS / "healthy.py"), checkpoint=run / "step_00010.pt")
    assert result.fidelity.ok
    assert result.fidelity.exact == result.fidelity.compared == 3
    assert "means over the steps" in result.fidelity.note


def test_scale_that_collapses(trained: Any) -> None:
    """A gradient that overflows from some step on whatever the scale: the first skipped step is the one at fault."""
    result = rerun(trained, "scale_collapse")
    assert (result.step, result.culprit.phase, result.culprit.op, result.culprit.line) == (
        21,
        "backward",
        "sqrt",
        culprit_line("scale_collapse"),
    )
    assert result.fidelity.ok


def test_checkpoint_that_tells_no_step(trained: Any, tmp_path: Path) -> None:
    """A checkpoint named after nothing, with no step in it, is placed by the optimizer's own count and by the logged
    losses."""
    run = copied(trained, "two_optimizers", tmp_path)
    state = torch.load(run / "step_18.pt")
    del state["step"]
    for path in run.glob("*.pt"):
        path.unlink()
    torch.save(state, run / "last.pt")
    result = api.replay(run, recipe=str(RUNS / "two_optimizers.py"))
    assert (result.step, result.culprit.op, result.fidelity.first_step) == (22, "div", 19)


@pytest.mark.parametrize("name", ["fp16_overflow", "one_step_early", "bad_shard", "wrong_rate"])
def test_the_command_of_the_scan_works_as_it_is(trained: Any, name: str, tmp_path: Path) -> None:
    """The step and checkpoint that the scan's advice names give the same answer as the replay finds by itself."""
    run = copied(trained, name, tmp_path)
    shutil.copy(RUNS / f"{name}.py", run / "recipe.py")  # without one the advice is the training's own command
    report = api.scan(run).runs[0]
    assert report.diagnosis is not None
    command = next(line for line in report.diagnosis.next if line.startswith("postmortem replay")).split()
    step, checkpoint = int(command[command.index("--step") + 1]), command[command.index("--checkpoint") + 1]
    told, alone = rerun(trained, name, step=step, checkpoint=checkpoint), rerun(trained, name)
    assert (told.culprit.cause, told.culprit.phase, told.culprit.line, told.culprit.param) == (
        alone.culprit.cause,
        alone.culprit.phase,
        alone.culprit.line,
        alone.culprit.param,
    )
