"""Whose code a file is, decided once for the tracer and for error messages."""

from __future__ import annotations

import functools
import json
import os
import sysconfig
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from postmortem.replay.trace import places as places  # noqa: E402
from postmortem.replay.trace.places import CHECKPOINT, LIBRARY, STOP, USER, kind_of  # noqa: E402
from postmortem.replay.trace.user_code import installed, is_users, owner_of  # noqa: E402

pytestmark = pytest.mark.torch
SITE = sysconfig.get_path("purelib")


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        (__file__, "user"),
        ("train.py", "user"),
        ("<ipython-input-3-abc>", "user"),
        ("<string>", "generated"),
        ("<eval_with_key>.3", "generated"),
        (torch.nn.Linear.forward.__code__.co_filename, "torch"),
        (np.lib.__file__, "package"),
        (os.path.join(SITE, "transformers", "trainer.py"), "driver"),
        (os.path.join(SITE, "transformers", "models", "bert", "modeling_bert.py"), "package"),
        (os.path.join(SITE, "lightning", "pytorch", "loops", "fit_loop.py"), "driver"),
        ("/home/me/.local/lib/python3.12/site-packages/timm/layers.py", "package"),
        (json.__file__, "standard"),
        (functools.__file__, "standard"),
        ("<frozen importlib._bootstrap>", "standard"),
        (kind_of.__code__.co_filename, "postmortem"),
    ],
)
def test_owner(file: str, owner: str) -> None:
    """By the path alone; torch and postmortem are told apart from other packages."""
    assert owner_of(file) == owner


def test_messages_point_at_the_users_lines_only() -> None:
    """Code of packages is not the user's in error messages; generated code may be."""
    assert is_users("train.py")
    assert is_users("<string>")
    assert not is_users(os.path.join(SITE, "timm", "layers.py"))


def test_the_tracer_names_lines_of_packages() -> None:
    """For the tracer a layer of another package is a place; torch, the standard library and generated code are not."""
    assert kind_of(compile("layer = 1", os.path.join(SITE, "timm", "layers.py"), "exec")) == USER
    assert kind_of(compile("made = 1", "<string>", "exec")) == LIBRARY
    assert kind_of(json.dumps.__code__) == LIBRARY
    trainer = os.path.join(SITE, "accelerate", "accelerator.py")
    assert kind_of(compile("driven = 1", trainer, "exec")) == LIBRARY  # the user's own line is further out
    watching = str(Path(places.__file__).parents[2] / "attach" / "boundaries.py")
    assert kind_of(compile("between = 1", watching, "exec")) == LIBRARY
    assert kind_of(torch.utils.checkpoint.checkpoint.__wrapped__.__code__) in (LIBRARY, CHECKPOINT)
    assert kind_of(owner_of.__code__) == STOP


def test_installed() -> None:
    """A module of the user's is not, whatever it is called."""
    assert installed("json", json)
    assert installed("torch", torch)
    made = type(json)("helpers")
    made.__file__ = str(Path("helpers.py").resolve())
    assert not installed("helpers", made)
