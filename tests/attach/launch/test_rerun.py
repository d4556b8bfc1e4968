"""A rerun, with real commands: what it writes, what it leaves behind, how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from postmortem.attach import launch
from postmortem.attach.sandbox import landlock

ROOT = Path(launch.__file__).parents[3]


def snapshot(folder: Path) -> dict[str, tuple]:
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path)] = (status.st_mtime_ns, status.st_mode, status.st_uid, status.st_ino, content)
    return found


@pytest.fixture
def case(tmp_path, monkeypatch):
    """A folder with a run in it, another folder beside it, a home, and the sessions in that home."""
    for name in ("case/run", "elsewhere", "home"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "case/run/log.txt").write_text("step 1 loss 2\n")
    (tmp_path / "case/run/last.pt").write_bytes(b"weights")
    (tmp_path / "case/train.py").write_text("")
    (tmp_path / "elsewhere/results.csv").write_text("a,b\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "home/.cache/postmortem/launches").mkdir(parents=True)
    return tmp_path / "case"


def run(case, script, *, sandbox="auto", until=None, timeout=20.0, **options):
    """-> (the rerun, stopped; what the script printed)"""
    session = launch.new_session()
    out = session / "out.txt"
    with out.open("w") as stdout:
        launched = launch.start(
            ["sh", "-c", script], {}, session=session, protect=[case / "run"], cwd=case, sandbox=sandbox,
            stdout=stdout.fileno(), **options,
        )  # fmt: skip
    assert launched.wait(until, timeout)
    launched.stop()
    return launched, out.read_text()


def overlay_works(case: Path) -> bool:
    try:
        launched, _ = run(case, "true", sandbox="overlay")
    except launch.CannotProtect:
        return False
    launched.remove()
    return True


@pytest.fixture
def overlay(case):
    if not overlay_works(case):
        pytest.skip("this machine lets nobody mount an overlay")


HARM = """
set +e
echo more >> run/log.txt; echo x > run/new; rm run/last.pt; mkdir run/d; mv run/log.txt run/moved; touch run/moved
chmod 600 train.py; touch -d 2001-01-01 train.py; ln -s a run/s; echo y > {out}/results.csv; echo z > {out}/new
rm -rf {out}/results.csv; mkdir -p {home}/.triton; echo h > {home}/h; rmdir {out}; echo tmp > {tmp}/t
echo 1 > m.py; python3 -c "import os, m; os.utime('.', (1, 1))"
true
"""


@pytest.mark.parametrize("sandbox", ["overlay", "landlock"])
def test_not_a_byte_and_not_a_time_of_the_users_changes(case, sandbox, request):
    if sandbox == "overlay":
        request.getfixturevalue("overlay")
    elif not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    everything = case.parent
    before = {path: kept for path, kept in snapshot(everything).items() if "/.cache" not in path}
    script = HARM.format(out=everything / "elsewhere", home=everything / "home", tmp=everything)
    launched, _ = run(case, script, sandbox=sandbox)
    assert launched.returncode == 0
    assert launched.denies == (sandbox == "landlock")
    after = {path: kept for path, kept in snapshot(everything).items() if "/.cache" not in path}
    assert after == before
    launched.remove()
    assert not list((everything / "home/.cache/postmortem/launches").iterdir())


def test_what_the_rerun_wrote_is_in_its_shadow(case, overlay):
    """The program sees its own writes, and so do we, as copies with what was there before."""
    script = "echo 'step 2 loss nan' >> run/log.txt; rm run/last.pt; cat run/log.txt; ls run"
    launched, out = run(case, script, sandbox="overlay")
    assert out.splitlines() == ["step 1 loss 2", "step 2 loss nan", "log.txt"]
    shadow = launched.shadow_of(case / "run")
    assert (shadow / "log.txt").read_text() == "step 1 loss 2\nstep 2 loss nan\n"
    assert "writes go to an overlay" in launched.how
    launched.remove()
    assert not launched.shadow.exists()


def test_a_command_that_is_not_there_is_said(case):
    session = launch.new_session()
    with launch.start(["no-such-program"], {}, session=session, cwd=case) as launched:
        launched.wait(timeout=10)
        assert launched.failed == "no-such-program: no such program"


def test_the_exit_code_is_that_of_the_command(case):
    assert run(case, "exit 7")[0].returncode == 7
    assert run(case, "kill -9 $$")[0].returncode in (-9, 137)


def test_the_end_is_not_waited_for_where_a_stray_holds_the_output(case):
    started = time.monotonic()
    launched, _ = run(case, "setsid sleep 60 & setsid sh -c 'trap \"\" TERM INT HUP; sleep 60' & echo done")
    assert launched.returncode == 0
    assert time.monotonic() - started < 10


def test_an_answer_is_enough(case):
    started = time.monotonic()
    launched, _ = run(
        case, "echo '{}' > $POSTMORTEM_SESSION/answer.json; sleep 60", until=lambda: bool(list(SESSIONS(case)))
    )
    assert launched.returncode is None
    assert (launched.session / "answer.json").read_text() == "{}\n"
    assert time.monotonic() - started < 10


def SESSIONS(case):  # noqa: N802
    return (case.parent / "home/.cache/postmortem/launches").glob("*/answer.json")


def test_jobs_are_not_submitted(case, tmp_path, monkeypatch):
    fake = tmp_path / "slurm"
    fake.mkdir()
    for name in ("sbatch", "srun"):
        (fake / name).write_text(f"#!/bin/sh\necho submitted > {tmp_path}/submitted\n")
        (fake / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    launched, out = run(
        case, f"sbatch job.sh; echo $?; {fake}/srun true; kubectl apply; ray submit x", stderr=subprocess.STDOUT
    )
    assert "postmortem: sbatch was not run: a rerun submits no job" in out
    assert out.splitlines()[1] == "1"
    assert "kubectl was not run" in out
    assert "ray submit was not run" in out
    assert not (tmp_path / "submitted").exists()
    if launched.shadow:  # by its full path too
        assert not launched.shadow_of(tmp_path / "submitted").exists()


PING = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"pong"), daemon=True).start()
print(socket.create_connection(server.getsockname(), 5).recv(9).decode())
print(socket.gethostbyname(socket.gethostname()).startswith("127."))
import os
try:
    socket.create_connection(("127.0.0.1", int(os.environ["OUTSIDE"])), 2)
    print("outside reached")
except OSError:
    print("outside refused")
"""


def test_no_network_but_the_loopback(case, overlay, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("OUTSIDE", str(server.getsockname()[1]))
        (case / "ping.py").write_text(PING)
        assert run(case, "python3 ping.py")[1].split("\n")[:3] == ["pong", "True", "outside refused"]
        assert "outside reached" in run(case, "python3 ping.py", offline=False)[1]


def test_the_environment_of_a_rerun(case, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/their/own")
    monkeypatch.setenv("WANDB_RUN_ID", "abc")
    launched, out = run(case, "env")
    said = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    assert said["PYTHONPATH"].split(":")[1:] == ["/their/own"]
    assert said["PYTHONPATH"].split(":")[0].endswith("attach/_inject")
    assert said["WANDB_MODE"] == "offline"
    assert "WANDB_RUN_ID" not in said
    assert said["MLFLOW_TRACKING_URI"].startswith(f"file://{launched.session}")
    assert said["POSTMORTEM_PLAN"] == str(launched.session / "plan.json")
    launched.remove()


def marked(mark: str) -> list[int]:
    """Processes with this mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


STUBBORN = "trap '' TERM INT HUP; setsid sleep 300 & (setsid sh -c 'sleep 301 & sleep 302' &) ; sleep 303"


@pytest.mark.parametrize("sandbox", ["auto", "landlock", "none"])
def test_nothing_is_left_running(case, sandbox, monkeypatch):
    if sandbox == "landlock" and not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    mark = f"MARK_{os.getpid()}_{time.monotonic_ns()}"
    monkeypatch.setenv("MARK", mark)
    session = launch.new_session()
    launched = launch.start(["sh", "-c", STUBBORN], {}, session=session, cwd=case, sandbox=sandbox)
    launched.wait(timeout=0.3)
    assert len(marked(mark)) >= 4
    started = time.monotonic()
    launched.stop()
    assert time.monotonic() - started < 3
    assert not marked(mark)


LAUNCHER = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from postmortem.attach import launch
    session = launch.new_session()
    print(session, flush=True)
    launched = launch.start(["sh", "-c", sys.argv[1]], {}, session=session, cwd=Path(sys.argv[2]), sandbox=sys.argv[3])
    launched.wait(timeout=60)
""")


@pytest.mark.parametrize("sandbox", ["auto", "landlock"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_the_launcher_at_any_moment(case, sandbox, number, monkeypatch):
    """No process, no mount, no file; at ten moments from the start of the launcher on."""
    if sandbox == "landlock" and not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    mounted = Path("/proc/self/mountinfo").read_text()
    moments = [0.02 * moment for moment in range(10)] if number == signal.SIGKILL else [0.0, 0.15]
    for moment in moments:
        mark = f"MARK_{os.getpid()}_{time.monotonic_ns()}"
        monkeypatch.setenv("MARK", mark)
        launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, STUBBORN, str(case), sandbox],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            session = Path(launcher.stdout.readline().strip())
            time.sleep(moment)
            launcher.send_signal(number)
            launcher.wait(10)
        finally:
            launcher.kill()
            launcher.stdout.close()
        deadline = time.monotonic() + 5
        while (marked(mark) or (session / "layers").exists()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not marked(mark), moment
        assert not (session / "layers").exists(), moment
    launch.new_session()  # sweeps up what a launcher left that was killed before anything had begun
    assert len(list(session.parent.iterdir())) == 1
    assert Path("/proc/self/mountinfo").read_text() == mounted


def test_it_does_not_end_with_the_thread_that_started_it(case):
    got = []
    session = launch.new_session()
    thread = threading.Thread(target=lambda: got.append(launch.start(["sleep", "60"], {}, session=session, cwd=case)))
    thread.start()
    thread.join(20)
    with got[0] as launched:
        assert not launched.wait(timeout=0.3)


def test_no_way_is_one_clear_line(case, monkeypatch):
    # a layer can lie nowhere: an overlay is refused without touching anything
    monkeypatch.setattr("postmortem.attach.launch.rerun._layers", lambda session: ["/proc/none"])
    session = launch.new_session()
    with pytest.raises(launch.CannotProtect, match="--sandbox none") as refused:
        launch.start(["true"], {}, session=session, cwd=case, sandbox="overlay")
    assert "\n" not in str(refused.value)
    assert not session.exists()


def test_an_error_of_ours_leaves_nothing(case):
    session = launch.new_session()
    with pytest.raises(KeyboardInterrupt), launch.start(["sleep", "60"], {}, session=session, cwd=case):
        raise KeyboardInterrupt
    assert not session.exists()
