"""`postmortem run` stands aside: terminal, signals, exit code and files are those of the program."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from postmortem.attach import launch

ROOT = Path(launch.__file__).parents[3]
LAUNCHER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from postmortem.attach import launch
    session = launch.new_session()
    code = launch.watch(["sh", "-c", sys.argv[1]], {"level": "basic"}, session=session).wait()
    print("returned", code, flush=True)
""")


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started = []

    def start(script):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, script],
                cwd=tmp_path,
                text=True,
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the program too, which outlives its launcher and holds the pipes
        process.communicate(timeout=10)


def test_input_output_and_exit_code(launcher, tmp_path):
    process = launcher("read a; echo $a; echo b >&2; echo c > file; cat $POSTMORTEM_PLAN; exit 7")
    out, err = process.communicate("typed\n", timeout=10)
    assert out.splitlines() == ["typed", '{"level": "basic"}returned 7']
    assert err == "b\n"
    assert (tmp_path / "file").read_text() == "c\n"


def test_the_exit_code_is_told_where_the_end_of_children_is_ignored(launcher):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = launcher("exit 7")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert process.communicate(timeout=10)[0] == "returned 7\n"


def test_it_is_in_the_group_of_the_launcher(launcher):
    """So that the terminal lets it read, and Ctrl-Z stops both."""
    process = launcher("ps -o pgid= -p $$")
    assert int(process.communicate(timeout=10)[0].split()[0]) == process.pid


def test_ctrl_c_is_the_matter_of_the_program(launcher):
    process = launcher("trap 'sleep 0.2; echo saved; exit 5' INT; echo ready; while :; do sleep 0.05; done")
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=10)[0].splitlines()[-2:] == ["saved", "returned 5"]
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signals_to_the_launcher_reach_the_program(launcher, number):
    name = number.name.removeprefix("SIG")
    process = launcher(f"trap 'echo got; exit 0' {name}; echo ready; while :; do sleep 0.05; done")
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, number)
    assert process.communicate(timeout=10)[0].splitlines() == ["got", "returned 0"]


def test_the_end_by_a_signal_is_told_as_such(launcher):
    assert launcher("kill -9 $$").communicate(timeout=10)[0] == "returned -9\n"


def test_the_program_goes_on_without_the_launcher(launcher, tmp_path):
    """A training is worth more than its watcher."""
    process = launcher(f"echo ready; sleep 0.5; echo done > {tmp_path}/file")
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    process.stdout.read()
    assert (tmp_path / "file").read_text() == "done\n"
