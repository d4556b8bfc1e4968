"""Gradients clipped to almost nothing."""

from __future__ import annotations

from pathlib import Path

from postmortem.silent.facts import Place
from postmortem.silent.faults.gradient_clip_too_small import GradientClipTooSmall, set_at
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(240, 4)
    y = x.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.{optimizer}
    for step in range(40):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        {clip}
        optimizer.step()
"""


def loop(clip: str, optimizer: str = "SGD(model.parameters(), lr=0.05)") -> str:
    return LOOP.format(clip=clip, optimizer=optimizer)


@blamed(GradientClipTooSmall, at="clip_grad_norm_")
def a_tiny_norm() -> str:
    return loop("nn.utils.clip_grad_norm_(model.parameters(), 1e-4)")


@blamed(GradientClipTooSmall, at="clip_grad_value_")
def a_tiny_value() -> str:
    return loop("torch.nn.utils.clip_grad_value_(model.parameters(), clip_value=1e-6)")


@quiet(GradientClipTooSmall)
def a_usual_limit() -> str:
    return loop("nn.utils.clip_grad_norm_(model.parameters(), 1.0)")


@quiet(GradientClipTooSmall)
def a_tiny_norm_with_adam() -> str:
    return loop("nn.utils.clip_grad_norm_(model.parameters(), 1e-3)", "Adam(model.parameters(), lr=1e-3)")


@quiet(GradientClipTooSmall)
def a_small_norm_with_a_large_rate() -> str:
    """Normalised gradients: all are cut, and the rate makes up for it."""
    return loop("nn.utils.clip_grad_norm_(model.parameters(), 0.01)", "SGD(model.parameters(), lr=5.0)")


def test_the_line_of_a_limit_that_a_library_applies(tmp_path: Path) -> None:
    """Where it is given, if that is known: the line that was running is that of the whole training."""
    source = "trainer = Trainer(\n    steps=4,\n    gradient_clip_val={value},\n)\ntrainer.fit(model)\n"
    for name, value, line in (("one", "1e-05", 3), ("other", "0.5", 5), ("unknown", "limit", 5)):
        file = tmp_path / f"{name}.py"
        file.write_text(source.format(value=value))
        assert set_at(Place(str(file), 5), 9.999999747378752e-06) == Place(str(file), line)
    (tmp_path / "own.py").write_text("clip = 1e-05\nclip_grad_norm_(model.parameters(), clip)\n")
    at = Place(str(tmp_path / "own.py"), 2)
    assert set_at(at, 1e-5) == at
