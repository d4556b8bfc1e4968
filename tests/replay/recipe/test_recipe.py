"""Recipes: found, loaded with their folder importable, and gone afterwards."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from postmortem.core.errors import ReplayError  # noqa: E402
from postmortem.replay.model import Context  # noqa: E402
from postmortem.replay.recipe.load import Recipe  # noqa: E402

SOURCE = """
import torch
from postmortem import TrainStep
import helper_of_the_user
from package_of_the_user.inner import BATCH

def recipe(ctx):
    model = helper_of_the_user.make()
    return TrainStep(model, torch.optim.SGD(model.parameters()), print, batch=(BATCH, ctx.config))

def later(ctx):
    def step(model, batch):
        import imported_while_it_runs
        return imported_while_it_runs.VALUE
    model = torch.nn.Linear(1, 1)
    return TrainStep(model, torch.optim.SGD(model.parameters()), step)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipe.py").write_text(SOURCE)
    (tmp_path / "helper_of_the_user.py").write_text(
        "import torch\ncalls = []\ndef make():\n    calls.append(1)\n    return torch.nn.Linear(len(calls), 1)\n"
    )
    (tmp_path / "imported_while_it_runs.py").write_text("VALUE = 3\n")
    (tmp_path / "package_of_the_user").mkdir()
    (tmp_path / "package_of_the_user" / "__init__.py").touch()
    (tmp_path / "package_of_the_user" / "inner.py").write_text("BATCH = 5\n")
    return tmp_path


def test_folder_is_importable_only_while_it_is_used(folder: Path) -> None:
    """The user's modules can be imported, are made afresh by each build, and are gone afterwards."""
    before = list(sys.path)
    recipe = Recipe(str(folder / "recipe.py"))
    with recipe.importable():
        first = recipe.build(Context(device="cpu", config={"a": 1}))
        second = recipe.build(Context(device="cpu"))
    assert first.batch == (5, {"a": 1})
    assert first.model.in_features == second.model.in_features == 1
    assert sys.path == before
    assert not {"helper_of_the_user", "package_of_the_user", "package_of_the_user.inner", "recipe"} & set(sys.modules)


def test_function_by_name_and_imports_while_it_runs(folder: Path) -> None:
    """FILE.py:FUNCTION takes that function; what it imports later is found as well."""
    recipe = Recipe(f"{folder / 'recipe.py'}:later")
    with recipe.importable():
        made = recipe.build(Context(device="cpu"))
        assert made.step(None, None) == 3
    assert "imported_while_it_runs" not in sys.modules


def test_own_version_of_a_module_comes_back(folder: Path) -> None:
    """A module of the user's folder that the caller had loaded is the caller's again afterwards."""
    mine = types.ModuleType("helper_of_the_user")
    mine.__file__ = str(folder / "helper_of_the_user.py")
    sys.modules["helper_of_the_user"] = mine
    try:
        recipe = Recipe(str(folder / "recipe.py"))
        with recipe.importable():
            recipe.build(Context(device="cpu"))
            assert sys.modules["helper_of_the_user"] is not mine
        assert sys.modules["helper_of_the_user"] is mine
    finally:
        del sys.modules["helper_of_the_user"]


def test_beside(folder: Path) -> None:
    """recipe.py is found in a run's folder, beside it, and beside a checkpoint in it."""
    run = folder / "run"
    run.mkdir()
    (run / "step_5.pt").touch()
    inside = folder / "lightning_logs" / "version_0" / "checkpoints"
    inside.mkdir(parents=True)
    (run / "checkpoint-40").mkdir()
    (run / "checkpoint-40" / "model.safetensors").touch()
    (run / "checkpoint-40" / "optimizer.pt").touch()
    of_the_run = (run, run / "step_5.pt", run / "checkpoint-40", run / "checkpoint-40" / "model.safetensors")
    for target in (folder, *of_the_run, inside.parent, inside / "x.ckpt"):
        found = Recipe.beside(target)
        assert found is not None
        assert found.path == folder / "recipe.py"
    assert Recipe.beside(folder.parent / "elsewhere" / "run") is None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def recipe(ctx):\n    return {}['lr']", r"raised KeyError: 'lr' at recipe\.py:2: return \{\}\['lr'\]"),
        ("import module_that_is_nowhere", r"raised ModuleNotFoundError: .* at recipe\.py:1"),
        ("def recipe(ctx:", r"raised SyntaxError: '\(' was never closed at recipe\.py:1$"),
        ("\0", r"raised SyntaxError: source code string cannot contain null bytes$"),
        ("def recip(ctx): pass", r"has no function 'recipe'; did you mean 'recip'\?"),
        ("def recipe(ctx): pass", r"must return a postmortem\.TrainStep, not NoneType"),
        ("import sys\nsys.exit(3)", r"raised SystemExit: 3 at recipe\.py:2"),
        ("raise GeneratorExit", r"raised GeneratorExit at recipe\.py:1"),
        ("class E(Exception):\n    def __str__(self): return 1 / 0\nraise E", r"raised E at recipe\.py:3"),
        (
            "x = bytearray(10**15)",
            r"ran out of memory at recipe\.py:1: x = bytearray\(10\*\*15\): build a smaller model",
        ),
        (
            "import torch\ntorch.nn.Linear(10**7, 10**7)",
            r"ran out of memory at recipe\.py:2: .*: build a smaller model",
        ),
    ],
)
def test_what_goes_wrong_is_one_line(tmp_path: Path, source: str, said: str) -> None:
    """Whatever a recipe does wrong is said in one line with its file and line."""
    (tmp_path / "recipe.py").write_text(source)
    recipe = Recipe(str(tmp_path / "recipe.py"))
    with pytest.raises(ReplayError, match=said) as caught, recipe.importable():
        recipe.build(Context(device="cpu"))
    assert "\n" not in str(caught.value)


def test_module_of_the_same_name_from_elsewhere_stays_out(folder: Path) -> None:
    """What a live process has loaded under the name of one of the recipe's files is not used for it, and is there again
    afterwards."""
    elsewhere = types.ModuleType("helper_of_the_user")
    sys.modules["helper_of_the_user"] = elsewhere
    try:
        recipe = Recipe(str(folder / "recipe.py"))
        with recipe.importable():
            assert recipe.build(Context(device="cpu")).model.in_features == 1
        assert sys.modules["helper_of_the_user"] is elsewhere
    finally:
        del sys.modules["helper_of_the_user"]


def test_a_recipe_may_change_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data is often opened by paths that are relative to the script's folder; afterwards the directory is the one
    before."""
    monkeypatch.chdir(folder.parent)
    (folder / "recipe.py").write_text("import os\nos.chdir(os.path.dirname(__file__))\n" + SOURCE)
    recipe = Recipe(str(folder / "recipe.py"))
    with recipe.importable():
        recipe.build(Context(device="cpu"))
        assert Path.cwd() == folder
    assert Path.cwd() == folder.parent


def test_a_recipe_that_removes_the_working_directory(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else is put back is put back all the same."""
    here, before = tmp_path_factory.mktemp("here"), list(sys.path)
    monkeypatch.chdir(here)
    recipe = Recipe(str(folder / "recipe.py"))
    (folder / "recipe.py").write_text(f"import os\nos.chdir({str(folder)!r})\nos.rmdir({str(here)!r})\n" + SOURCE)
    with pytest.raises(FileNotFoundError), recipe.importable():
        recipe.build(Context(device="cpu"))
    assert sys.path == before


def test_folder_stays_as_it_was(folder: Path) -> None:
    """Nothing is written beside the user's files, compiled modules neither."""
    recipe = Recipe(str(folder / "recipe.py"))
    before = sorted(folder.rglob("*"))
    with recipe.importable():
        recipe.build(Context(device="cpu"))
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("torch.nn.Linear, opt, print", "model must be a torch.nn.Module, not the class Linear"),
        ("net, None, print", "optimizer must be an optimizer, not None"),
        ("{'a': net}, opt, {'a': 3}", r"step\['a'\] must be a function step\(model, batch\), not an int"),
        ("net, opt, print, autocast='float16'", "autocast must be None, 'fp16' or 'bf16', not 'float16'"),
        ("net, opt, print, accumulate=0", "accumulate must be the number of micro-batches of a step, not 0"),
        ("net, opt, print, clip='1'", "clip must be a number, not '1'"),
        ("net, opt, print, first_step='a'", "first_step must be a number, not 'a'"),
        ("net, opt, print, scheduler='cosine'", "scheduler must be a learning rate scheduler, not a str"),
        ("net, opt, print, scaler='yes'", "scaler must be True, False or a GradScaler, not a str"),
        ("net, opt, print, batches=3", "batches must be a function of the step or an iterable, not an int"),
        (
            "net, opt, print, batches=lambda step: (yield step)",
            "batches is a generator function: call it and give its result",
        ),
        ("net.to('meta'), opt, print", "the model is on the meta device"),
        (
            "net, opt, {'g': print}",
            r"step is a dict \('g'\), keyed by the names of the optimizers, .*: give optimizer=\{'g': …\} or a single step",  # noqa: E501
        ),
        ("net, {'a': opt}, {'c': print}", "step has a sub-step 'c', but the optimizers are 'a'"),
        ("net, opt, lambda batch: 0", r"step is called as step\(model, batch\), but <lambda>\(batch\) cannot be"),
        (
            "net, {'a': opt}, {'a': lambda: 0}",
            r"step\['a'\] is called as step\['a'\]\(model, batch\), but <lambda>\(\) cannot be",
        ),
        ("net, opt, print, batches=lambda: 0", r"batches is called as batches\(step\), but <lambda>\(\) cannot be"),
        (
            "net, opt, print, before_step=lambda: 0",
            r"before_step is called as before_step\(step\), but <lambda>\(\) cannot be",
        ),
    ],
)
def test_fields_that_cannot_be(tmp_path: Path, made: str, said: str) -> None:
    """A field of a wrong kind is told by name before anything runs."""
    (tmp_path / "recipe.py").write_text(
        "import torch\nfrom postmortem import TrainStep\ndef recipe(ctx):\n    net = torch.nn.Linear(1, 1)\n"
        f"    opt = torch.optim.SGD(net.parameters())\n    return TrainStep({made})\n"
    )
    recipe = Recipe(str(tmp_path / "recipe.py"))
    with recipe.importable(), pytest.raises(ReplayError, match=said):
        recipe.build(Context(device="cpu"))
