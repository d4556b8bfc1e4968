"""A forked child that is locked: what it can still write, and what a copy of a program shares with it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from postmortem.attach.sandbox import landlock, metadata
from tests.attach.children import said_by

pytestmark = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")


answer = -1  # in the child: the pipe to the parent


def in_child(body):
    """What ``body`` returns, as JSON, in a forked child."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        global answer
        answer = write
        try:
            os.write(write, json.dumps(body()).encode())
        finally:
            os._exit(0)
    os.close(write)
    return json.loads(said_by(pid, read))


def works(action) -> bool:
    try:
        action()
    except PermissionError:
        return False
    return True


@pytest.fixture
def files(tmp_path):
    (tmp_path / "user").mkdir()
    (tmp_path / "allowed").mkdir()
    (tmp_path / "user" / "log").write_text("1\n")
    return tmp_path


WRITES = {
    "append": lambda p: (p / "log").open("a"),
    "overwrite": lambda p: (p / "log").open("w"),
    "new": lambda p: (p / "new").open("w"),
    "delete": lambda p: (p / "log").unlink(),
    "rename": lambda p: (p / "log").rename(p / "b"),
    "truncate": lambda p: os.truncate(p / "log", 0),
    "folder": lambda p: (p / "d").mkdir(),
    "symlink": lambda p: (p / "s").symlink_to("log"),
    "hard link": lambda p: os.link(p / "log", p / "l"),
    "fifo": lambda p: os.mkfifo(p / "f"),
}


@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written_outside_of_the_allowed_folders(files, name):
    if name == "truncate" and landlock.abi() < 3:
        pytest.skip("Landlock of this kernel does not know truncate")

    def body():
        held = landlock.lock_writes([files / "allowed"])
        (files / "allowed" / "log").write_text("1\n")
        return [held, works(lambda: WRITES[name](files / "user")), works(lambda: WRITES[name](files / "allowed"))]

    assert in_child(body) == [True, False, True]
    assert (files / "user" / "log").read_text() == "1\n"
    assert os.listdir(files / "user") == ["log"]


def test_reading_and_dev_null_are_left(files):
    def body():
        landlock.lock_writes()
        Path("/dev/null").write_text("x")
        return (files / "user" / "log").read_text()

    assert in_child(body) == "1\n"


def test_the_programs_of_the_child_are_locked_too(files):
    def body():
        landlock.lock_writes()
        return os.system(f"echo 2 2>/dev/null >> {files}/user/log 2>/dev/null") != 0

    assert in_child(body)
    assert (files / "user" / "log").read_text() == "1\n"


def test_a_folder_that_is_not_there_is_no_lock_at_all(files):
    assert in_child(lambda: landlock.lock_writes([files / "absent"])) is False


def test_the_parent_is_not_locked(files):
    in_child(lambda: landlock.lock_writes())
    (files / "user" / "log").write_text("2\n")


def test_it_takes_no_time(files):
    def body():
        started = time.process_time()  # not of a busy machine
        landlock.lock_writes([files])
        return time.process_time() - started

    assert min(in_child(body) for _ in range(5)) < 0.02


def test_metadata_is_locked(files):
    log = files / "user" / "log"
    before = log.stat()

    def body():
        held = metadata.lock()
        return [held, works(lambda: os.utime(log, (1, 1))), works(lambda: log.chmod(0o600)), works(log.read_text)]

    if not in_child(metadata.lock):
        pytest.skip("no filter of system calls on this machine")
    assert in_child(body) == [True, False, False, True]
    assert (log.stat().st_mtime_ns, log.stat().st_mode) == (before.st_mtime_ns, before.st_mode)
