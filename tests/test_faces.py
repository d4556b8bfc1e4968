"""The public faces of the package and its rooms: what they export, and that importing them costs next to nothing."""

from __future__ import annotations

import importlib
import inspect
import pydoc
from types import ModuleType

import pytest

import postmortem
from postmortem import api
from postmortem.core.display import HOOKS

FACES = {
    "postmortem": [
        "Comparison", "Config", "Culprit", "Diagnosis", "Event", "Finding", "Fix", "Health", "MissingExtra",
        "NotFoundError", "PostmortemError", "Problem", "ReplayError", "ReplayResult", "Report", "Run", "RunReport",
        "TrainStep", "UnreadableCheckpoint", "UsageError", "__version__", "assert_healthy", "checkpoints",
        "compare", "inspect", "judge", "load", "localize", "replay", "scan", "watch",
    ],
    "postmortem.checkpoints": ["FORMATS", "find", "health", "of_run", "read"],
    "postmortem.plugins": [
        "Advice", "BaseDetector", "BaseFix", "Case", "Change", "Checkpoint", "CheckpointFormat", "Content", "Culprit",
        "Diagnosis", "Dialect", "Event", "Finding", "Fix", "NotChecked", "Overrides", "Piece", "Pieces", "Points",
        "PointsBuilder", "Problem", "Reading", "Record", "RenderOptions", "Report", "Row", "RowTable", "Run", "RunReport",  # noqa: E501
        "Scope", "Series", "Skip", "StepMode", "Story", "Trust", "UnreadableCheckpoint", "Value", "View",
        "checkpoint_format", "detector", "diagnosis", "dialect", "finish_table", "fix", "reader", "reporter",
    ],
    "postmortem.readers.text": ["DIALECTS", "read_text"],
    "postmortem.runs": ["discover", "read_runs"],
    "postmortem.replay": ["FIXES", "Context", "Culprit", "Fidelity", "Fix", "TrainStep", "localize", "replay"],
    "postmortem.replay.trace": ["Tracer", "origins"],
}  # fmt: skip
LIGHT = [
    "postmortem",
    "postmortem.checkpoints",
    "postmortem.runs",
    "postmortem.replay",
    "postmortem.replay.trace",
    "postmortem.plugins",
]
HEAVY = ["pandas", "torch", "matplotlib", "numpy", "rich"]


@pytest.mark.parametrize("name", FACES)
def test_exports(name: str) -> None:
    """Each face exports its list, no more and no less, and every name is there."""
    pytest.importorskip("torch")
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(FACES[name])
    assert [n for n in module.__all__ if getattr(module, n, None) is None] == []
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_faces_import_nothing_heavy(python) -> None:
    """Importing the faces loads none of pandas, torch, matplotlib, numpy, rich, nor anything that renders or reads."""
    code = f"import sys, {', '.join(LIGHT)}\nprint([m for m in {[*HEAVY, 'postmortem.api']!r} if m in sys.modules])"
    result = python("-c", code)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


@pytest.mark.parametrize(
    "first", ["", "import postmortem.replay.model", "from postmortem import api", "import postmortem.checkpoints.find"]
)
def test_packages_that_are_verbs(python, first: str) -> None:
    """``postmortem.replay(...)`` and ``postmortem.checkpoints(...)`` work whatever was imported before."""
    code = (
        f"import postmortem\n{first}\n"
        "for verb in (postmortem.replay, postmortem.checkpoints):\n"
        "    try:\n        verb('nowhere')\n    except postmortem.NotFoundError as error:\n        print(error)\n"
        "from postmortem.replay.model import TrainStep\n"
        "print(postmortem.replay.model.TrainStep is postmortem.TrainStep)\n"
    )
    pytest.importorskip("torch")
    result = python("-c", code)
    assert result.stdout.splitlines() == [
        "no such run or checkpoint: nowhere",
        "no such file or folder: nowhere",
        "True",
    ], result.stderr


def test_verbs_are_packages() -> None:
    """What can be called stays a package: its modules can be imported and patched."""
    for verb in (postmortem.replay, postmortem.checkpoints):
        assert isinstance(verb, ModuleType)
        assert callable(verb)
        assert importlib.import_module(verb.__name__) is verb


@pytest.mark.parametrize("name", ["replay", "checkpoints"])
def test_help_of_a_package_that_is_a_verb(python, name: str) -> None:
    """Signature, docstring and help are those of the function, which is imported only when they are asked for."""
    function = getattr(api, name)
    verb = getattr(postmortem, name)
    assert inspect.signature(verb) == inspect.signature(function)
    assert verb.__call__ is function
    summary = inspect.getdoc(function)
    assert summary is not None
    shown = pydoc.plain(pydoc.render_doc(verb))
    for line in (f"{name}(", summary.splitlines()[0], f"postmortem.api.{name}"):
        assert line in shown
    code = "import sys, postmortem, postmortem.replay; print('postmortem.api' in sys.modules)"
    assert python("-c", code).stdout == "False\n"


def test_options_are_named() -> None:
    """No verb hides its options in ``**options``."""
    verbs = (api.scan, api.load, api.judge, api.compare, api.checkpoints, api.replay, api.localize)
    kinds = {p.kind for verb in verbs for p in inspect.signature(verb).parameters.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    assert {"step", "device", "fixes"} <= set(inspect.signature(api.localize).parameters)


@pytest.mark.parametrize("name", ["postmortem", "postmortem.replay", "postmortem.checkpoints", "postmortem.plugins"])
def test_completion_lists_public_names_and_modules(name: str) -> None:
    """`dir` of a face lists what it exports and its modules, and nothing that it imported for itself."""
    face = importlib.import_module(name)
    others = set(dir(face)) - set(FACES[name])
    assert {n for n in others if not isinstance(getattr(face, n), ModuleType) or n.startswith("_")} == set()
    assert {n for n in others if getattr(face, n).__name__ != f"{name}.{n}"} == set()


def test_plugins_is_an_attribute(python) -> None:
    """``postmortem.plugins`` needs no import of its own, and is imported on first use."""
    code = "import sys, postmortem; print('plugins' in dir(postmortem), 'postmortem.plugins' in sys.modules)"
    result = python("-c", f"{code}; print(postmortem.plugins.BaseDetector.__name__)")
    assert result.stdout.split() == ["True", "False", "BaseDetector"]


def test_without_renderings_types_show_their_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is installed that renders, a report prints as its repr, and a notebook shows that, escaped."""
    report = postmortem.Report(runs=(), version="0")
    assert str(report) != repr(report)
    monkeypatch.delitem(HOOKS, "text")
    monkeypatch.delitem(HOOKS, "html")
    assert str(report) == repr(report)
    assert report._repr_html_() == "<pre>&lt;Report of 0 runs&gt;</pre>"
