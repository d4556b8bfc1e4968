"""Where a run may lie: below mount points, in shared memory, in the system's folders, behind links."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from postmortem.attach import launch
from postmortem.attach.sandbox import mounts


def writes(folder: Path, session_home: Path, monkeypatch, *, protect=(), script=None) -> tuple[str, launch.Launched]:
    """Append to log.txt in ``folder``, by an overlay; what the program read there, and the rerun, stopped."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(session_home))
    session = launch.new_session()
    out = session / "out.txt"
    with out.open("w") as stdout:
        try:
            launched = launch.start(
                ["sh", "-c", script or "echo 2 >> log.txt; cat log.txt"],
                {}, session=session, cwd=folder, protect=protect, sandbox="overlay", stdout=stdout.fileno(),
            )  # fmt: skip
        except launch.CannotProtect as error:
            pytest.skip(str(error))
    assert launched.wait(timeout=20)
    launched.stop()
    return out.read_text(), launched


@pytest.mark.parametrize("parent", ["/dev/shm", "/var/tmp", "/usr/src", "/opt", str(Path.home())])
def test_a_run_on_any_part_of_the_system(parent, tmp_path, monkeypatch):
    if not os.access(parent, os.W_OK):
        pytest.skip(f"{parent} is not ours")
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        (folder / "log.txt").write_text("1\n")
        before = (folder / "log.txt").stat().st_mtime_ns, folder.stat().st_mtime_ns
        said, launched = writes(folder, tmp_path, monkeypatch)
        assert said == "1\n2\n"
        assert (folder / "log.txt").read_text() == "1\n"
        assert ((folder / "log.txt").stat().st_mtime_ns, folder.stat().st_mtime_ns) == before
        assert (launched.shadow_of(folder) / "log.txt").read_text() == "1\n2\n"
        launched.remove()
    finally:
        shutil.rmtree(folder)


def test_a_run_behind_a_link_with_characters_that_mean_something(tmp_path, monkeypatch):
    real = tmp_path / "a,b:c\\d e\tf"
    real.mkdir()
    (real / "log.txt").write_text("1\n")
    (tmp_path / "link").symlink_to(real)
    said, launched = writes(tmp_path / "link", tmp_path / "cache", monkeypatch)
    assert said == "1\n2\n"
    assert (real / "log.txt").read_text() == "1\n"
    assert (launched.shadow_of(tmp_path / "link") / "log.txt").read_text() == "1\n2\n"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount a file system")
def test_runs_below_mount_points(tmp_path):
    """A tmpfs in the working folder, the run in it, and one below the run: all covered, also a relative path out."""
    script = """
set -e
mkdir case && cd case && mkdir run data && mount -t tmpfs t run && mkdir run/deep run/beside
mount -t tmpfs t run/deep
for f in log.txt run/beside/log.txt run/deep/log.txt data/log.txt; do echo 1 > $f; done
touch run/log.txt
cat > t.py <<'EOF'
from pathlib import Path
from postmortem.attach import launch
session = launch.new_session()
commands = "for f in log.txt run/beside/log.txt run/deep/log.txt data/log.txt; do echo 2 >> $f; cat $f; done"
with (session / "out").open("w") as out:
    launched = launch.start(["sh", "-c", commands + "; echo 2 > run/log.txt"], {}, session=session, cwd=Path.cwd(),
                            protect=[Path("run")], stdout=out.fileno())
launched.wait(timeout=20)
launched.stop()
print((session / "out").read_text().split())
EOF
PYTHON t.py
cat log.txt run/beside/log.txt run/deep/log.txt data/log.txt run/log.txt
"""
    script = script.replace("PYTHON", shutil.which("python3") or "python3")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(launch.__file__).parents[3]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in done.stderr:
        pytest.skip("this root may not mount anything")
    assert done.stdout.splitlines()[1:] == ["1", "1", "1", "1"], done.stderr
    assert done.stdout.splitlines()[0] == str(["1", "2"] * 4)


def test_folders_to_cover(tmp_path):
    """Those with a mount point below are taken apart; the system's own are left out, except the run."""
    for name in ("home/a", "home/b", "plain/x"):
        (tmp_path / name).mkdir(parents=True)

    def mounted(path: Path, kind: str = "ext4", *flags: str) -> mounts.Mounted:
        return mounts.Mounted(path, kind, frozenset(flags))

    table = [
        mounted(tmp_path),
        mounted(tmp_path / "home/b", "nfs4"),
        mounted(Path("/proc"), "proc"),
        mounted(Path("/usr")),
    ]
    names = [tmp_path / "home/a", tmp_path / "home/b", tmp_path / "plain"]
    assert mounts.to_cover(table) == names
    read_only = [mounted(tmp_path), mounted(tmp_path / "home/b", "nfs4", "ro")]
    assert mounts.to_cover(read_only) == [tmp_path / "home/a", tmp_path / "plain"]
    assert mounts.to_cover(table, [Path("/usr/bin")]) == sorted([*names, Path("/usr/bin")])


def test_the_table_of_mounts_is_read(tmp_path):
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw\n"
        "27 1 254:0 / /a\\040b\\134c ro,nosuid,relatime - ext4 /dev/vda rw,discard\n"
    )
    found = mounts.read(str(table))
    assert [str(mount.path) for mount in found] == ["/proc", "/a b\\c"]
    assert [mount.holds_files for mount in found] == [False, True]
    assert "nosuid" in found[1].flags


def test_a_rerun_that_fills_the_disk_is_ended(tmp_path, monkeypatch):
    """On a disk where free space falls below what has to be left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from postmortem.attach.launch import supervisor

    free = iter([100 << 30, 50 << 30, 1 << 30])
    monkeypatch.setattr(supervisor, "_free", lambda folder: next(free))
    monkeypatch.setattr(supervisor, "_LOOK", 0.01)
    told = []
    alive, lifeline = os.pipe()
    silent, end = os.pipe()
    watcher = object.__new__(supervisor._Supervisor)
    watcher.order, watcher.layers, watcher._least, watcher.lifeline = {"session": str(tmp_path)}, [], {}, alive
    watcher.tell = lambda **message: told.append(message)
    with pytest.raises(supervisor._Cut):
        list(watcher._messages(silent))
    assert "nearly filled the disk" in told[0]["failed"]
    for fd in (alive, lifeline, silent, end):
        os.close(fd)
