"""Where an overlay cannot be had: a program that dies of our protection is not the one at fault."""

from __future__ import annotations

import sys

import pytest

from postmortem.attach import driver
from postmortem.attach.sandbox import landlock
from postmortem.core.errors import ReplayError

PROGRAM = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
open("log.txt", "a")
"""


@pytest.mark.torch
def test_a_write_that_was_denied_is_said_as_such(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ReplayError, match=r"could not write to your files \(.*train.py:8\).*--sandbox none"):
        driver.rerun(tmp_path, [sys.executable, "train.py"], sandbox="landlock")
    assert not list((tmp_path / "cache/postmortem/launches").iterdir())


def test_a_command_that_is_not_there_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ReplayError, match=r"^no-such-program: no such program$"):
        driver.rerun(tmp_path, ["no-such-program"])
