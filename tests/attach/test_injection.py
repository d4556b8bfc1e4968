"""The injected sitecustomize: cheap, hides nothing of the user's, ends what is started after the answer."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

INJECTED = Path(__file__).parents[2] / "postmortem" / "attach" / "_inject"


@pytest.fixture
def injected(tmp_path: Path):
    """Runs a Python with the folder first on PYTHONPATH -> subprocess.CompletedProcess; its cwd is tmp_path."""
    session = tmp_path / "session"
    session.mkdir()
    (session / "plan.json").write_text('{"mode": "run", "fix": true, "on_fault": "continue"}')

    def call(*args: str, path: str = "") -> subprocess.CompletedProcess[str]:
        found = os.pathsep.join([str(INJECTED), *([path] if path else [])])
        env = {**os.environ, "PYTHONPATH": found, "POSTMORTEM_SESSION": str(session)}
        return subprocess.run(
            [sys.executable, *args], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=100
        )

    call.session = session  # type: ignore[attr-defined]
    return call


def fake_torch(folder: Path) -> None:
    """A package that is called torch, as slow to import as an empty file."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("from torch import inner\nloaded = __spec__.loader\n")
    (folder / "torch" / "inner.py").write_text("")


def test_the_path_is_that_of_the_user(injected, tmp_path: Path) -> None:
    """The folder is on the path of the children, and not in `sys.path` of the program."""
    done = injected("-c", "import sys, os; print([p for p in sys.path if '_inject' in p], os.environ['PYTHONPATH'])")
    assert done.stdout == f"[] {INJECTED}\n"
    assert done.stderr == ""


def test_a_hidden_sitecustomize_is_loaded(injected, tmp_path: Path) -> None:
    """The one that the folder hides runs under its own name."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import builtins; builtins.first = __file__")
    code = "import sitecustomize; print(first, sitecustomize.__file__)"
    done = injected("-c", code, path=str(theirs))
    first = theirs / "sitecustomize.py"
    assert done.stdout == f"{first} {first}\n"


def test_an_error_in_the_hidden_one_is_as_without_us(injected, tmp_path: Path) -> None:
    """It is reported, and the program runs."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import a_module_that_is_not_there")
    done = injected("-c", "print(1)", path=str(tmp_path / "theirs"))
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "a_module_that_is_not_there" in done.stderr


def test_without_torch_nothing_is_imported(injected) -> None:
    """A process that never imports torch has no module of ours, and no other that Python has not loaded anyway."""
    show = "import sys; print(*sys.modules)"
    bare = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert set(injected("-c", show).stdout.split()) - set(bare.stdout.split()) <= {"sitecustomize"}
    assert not (injected.session / "notes").exists()


def test_torch_keeps_its_loader(injected, tmp_path: Path) -> None:
    """After its import torch has the loader of the path; a search for it (find_spec) imports and consumes nothing."""
    fake_torch(tmp_path / "theirs")
    code = """
        import importlib.util, sys
        found = importlib.util.find_spec("torch").origin
        assert "torch" not in sys.modules
        import torch
        print(type(torch.__spec__.loader).__name__, type(torch.__loader__).__name__, found == torch.__file__)
        print([type(f).__name__ for f in sys.meta_path if "Torch" in type(f).__name__])
    """
    done = injected("-c", textwrap.dedent(code), path=str(tmp_path / "theirs"))
    assert done.stdout.splitlines() == ["SourceFileLoader SourceFileLoader True", "[]"], done.stderr


def test_what_hinders_us_is_a_note_and_no_error(injected, tmp_path: Path) -> None:
    """A torch that cannot be watched ends no program."""
    fake_torch(tmp_path / "theirs")
    done = injected("-c", "import torch; print(1)", path=str(tmp_path / "theirs"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    (note,) = (injected.session / "notes").iterdir()
    assert note.read_text().startswith("could not attach to a process: ")


def test_a_package_of_the_user_with_our_name_stays(injected, tmp_path: Path) -> None:
    """The name on PyPI belongs to another project: its users keep their module."""
    fake_torch(tmp_path / "theirs")
    (tmp_path / "theirs" / "postmortem.py").write_text("mine = 1")
    done = injected("-c", "import torch, postmortem; print(postmortem.mine)", path=str(tmp_path / "theirs"))
    assert done.stdout == "1\n", done.stderr


def test_after_the_answer_new_processes_end(injected) -> None:
    """A launcher that restarts its workers ends, too."""
    (injected.session / "done").touch()
    done = injected("-c", "print('it ran')")
    assert (done.returncode, done.stdout) == (0, "")


def test_children_are_reached_through_a_shell(injected, tmp_path: Path) -> None:
    """bash -c and `python -m` in it."""
    fake_torch(tmp_path / "theirs")
    (tmp_path / "m.py").write_text("import torch")
    code = f"import subprocess; subprocess.run(['sh', '-c', '{sys.executable} -m m'], check=True)"
    injected("-c", code, path=str(tmp_path / "theirs"))
    assert len(list((injected.session / "notes").iterdir())) == 1
