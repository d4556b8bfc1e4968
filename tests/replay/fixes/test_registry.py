"""The registry of fixes: each has its page and its test, and one from outside is tried, reported and advised."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.core.registry import Registry  # noqa: E402
from postmortem.replay.advice import advice  # noqa: E402
from postmortem.replay.fixes import FIXES, Advice, BaseFix, Scope, fix  # noqa: E402
from postmortem.replay.step.overrides import Overrides  # noqa: E402

pytestmark = pytest.mark.torch
PLUGIN = '''
from postmortem.replay.fixes import Advice, BaseFix, Scope, fix
from postmortem.replay.step.overrides import Overrides


@fix
class HalveBatch(BaseFix):
    """Halves the batch."""

    name = "halve_batch"
    order = 55
    what = "all values halved"
    overrides = Overrides(batch=lambda batch: batch / 2)

    def applies(self, case):
        return case.found.phase == "forward"

    def advice(self, culprit, cure, view):
        return Advice(Scope.DATA, f"halve the batch ({cure.how})")
'''


@pytest.fixture
def own_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(FIXES, "_items", {kind.name: kind for kind in FIXES})


def _overflows(m: Any, b: Any) -> Any:
    return (m(b) * 0 + b).exp().sum()


def test_a_fix_of_a_plugin_is_tried_reported_and_advised(
    ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package with an entry point of group ``postmortem.fixes`` adds a fix, in its place of the order."""
    (tmp_path / "halving_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("halving", "halving_plugin", "postmortem.fixes")
    found = {"postmortem.fixes": [entry]}
    monkeypatch.setattr("postmortem.core.registry.entry_points", lambda group: found.get(group, []))
    monkeypatch.setattr(FIXES, "_items", dict(FIXES._items))
    monkeypatch.setattr(FIXES, "_loaded", False)
    try:
        culprit = ask(_overflows, torch.full((2, 4), 100.0))
        said = advice(culprit, None, "x.pt")
    finally:
        sys.modules.pop("halving_plugin", None)
    names = [f.name for f in culprit.fixes]
    assert names[names.index("fp64") + 1] == "halve_batch"
    assert [f.cured for f in culprit.fixes if f.name == "halve_batch"] == [True]
    assert "halve the batch (all values halved)" in said


@pytest.mark.usefixtures("own_fixes")
def test_a_fix_that_does_not_apply_is_not_tried(ask: Any) -> None:
    """`phases` and `applies` decide."""

    class Never(BaseFix):
        name, order, overrides = "never", 1, Overrides(lr=0.0)

        def applies(self, case: Any) -> bool:
            return False

    class Elsewhere(BaseFix):
        name, order, phases = "elsewhere", 2, ("layout",)

    fix(Never)
    fix(Elsewhere)
    assert not {"never", "elsewhere"} & {f.name for f in ask(_overflows, torch.full((2, 4), 100.0)).fixes}


@pytest.mark.usefixtures("own_fixes")
def test_advice_of_the_line_takes_the_place_of_a_fresh_state() -> None:
    """The narrowest change comes first; the optimizer's state is not to blame where a changed line cures."""
    from postmortem.core.culprit import Culprit, Fix

    @fix
    class Rewrite(BaseFix):
        name, order = "rewrite", 999

        def advice(self, culprit: Any, cure: Any, view: Any) -> Advice:
            return Advice(Scope.LINE, "rewrite it")

    tried = (Fix(name="clip_grad", cured=True, how="clipped"), Fix(name="rewrite", cured=True))
    fields: dict[str, Any] = {"cause": "forward-op", "phase": "forward", "fresh_state": True}
    said = advice(Culprit(**fields, fixes=tried), None, "x.pt")
    assert [line.partition(". Try this first")[0] for line in said] == [
        "rewrite it",
        "clip the gradient norm (clipped: cures it)",
        "then resume from x.pt",
    ]
    said = advice(Culprit(**fields, fixes=tried[:1]), None, "x.pt")
    assert said[0].startswith("reset the optimizer state (makes the step finite). Try this first: ")


def test_fixes_are_tried_in_this_order() -> None:
    """Reports list fixes in the order in which they are tried; others may come between them."""
    names = [kind.name for kind in FIXES]
    first = ["clip_grad", "lower_lr", "fp32", "bf16", "fp64", "drop_sample"]
    known = [*first, "sanitize_input", "loss_scale", "fresh_state", "eps", "contiguous"]
    assert [name for name in names if name in known] == known


@pytest.mark.parametrize("kind", list(FIXES), ids=lambda kind: kind.name)
def test_every_fix_has_a_page(kind: type[BaseFix], postmortem: Any) -> None:
    """The docstring says what is changed, when, and what a cure means."""
    page = postmortem("explain", kind.name)
    assert page.code == 0
    assert page.out.startswith(f"{kind.name} (fix)")
    assert all(f"\n{part}:" in page.out for part in ("What it changes", "When it is tried", "What a cure means"))


def test_a_registry_takes_plugins_of_its_own_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry-point group may differ from the package that is searched for modules."""
    package = tmp_path / "fixes_for_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr("postmortem.core.registry.entry_points", lambda group: asked.append(group) or [])
    assert list(Registry[type]("fixes_for_test", key=lambda t: t.__name__, group="fixes.for.test")) == []
    assert asked == ["fixes.for.test"]
