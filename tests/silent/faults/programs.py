"""Run as a program: observes the programs of a folder, each in a forked child, so that torch is imported once.

`python programs.py FOLDER`: FOLDER/NAME/train.py is run there, and its look is left in FOLDER/NAME/silent. A file
FOLDER/NAME/trial holds the name of a fault whose trial is made; `used` is there once it has had an effect.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch

from postmortem.silent.faults import FAULTS
from postmortem.silent.observe import begin
from postmortem.silent.observe.watchers import WATCHERS


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    WATCHERS.load()
    warm_up()
    gc.freeze()
    for program in sorted(folder.glob("*/train.py")):
        pid = os.fork()
        if not pid:
            code = 1
            faulthandler.dump_traceback_later(60, exit=True)  # one that hangs fails, and says where
            try:
                observe(program)
                code = 0
            except BaseException:  # noqa: BLE001 - told to the parent by the exit code
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if status:
            sys.exit(f"{program} failed:\n{program.read_text()}")


def warm_up() -> None:
    """What torch imports at the first step of a training is imported once, not in each child."""
    model = torch.nn.Linear(1, 1)
    for optimizer in (torch.optim.SGD(model.parameters()), torch.optim.Adam(model.parameters())):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def observe(program: Path) -> None:
    notes: list[str] = []
    recorder = begin(program.parent, {}, notes.append)
    wanted = program.with_name("trial")
    if wanted.exists():
        trial = next(kind.trial for kind in FAULTS if kind.name == wanted.read_text())
        assert trial is not None
        trial.start(program.with_name("used").touch)
    os.chdir(program.parent)
    runpy.run_path(str(program), run_name="__main__")
    recorder.finish(ended=True)
    assert notes == [], notes


if __name__ == "__main__":
    main(Path(sys.argv[1]))
