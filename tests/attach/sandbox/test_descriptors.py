"""What a forked copy shares with the program, and no longer does: open files, sockets, mapped memory."""

from __future__ import annotations

import json
import mmap
import os
import socket

import pytest

from postmortem.attach.sandbox import descriptors, mappings
from tests.attach.children import said_by

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


@pytest.fixture
def files(tmp_path):
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "log").write_text("1\n")
    return tmp_path


def test_an_open_log_gets_no_line_of_the_copy(files):
    log = (files / "user" / "log").open("a")
    both = (files / "user" / "both").open("w+")
    both.write("abc")
    both.flush()
    both.seek(1)

    def body():
        descriptors.silence([answer])
        log.write("of the copy\n")
        log.flush()
        os.write(1, b"of the copy")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(both.fileno(), b"x")
        return both.read()

    assert in_child(body) == "bc"
    log.write("2\n")
    log.close()
    both.close()
    assert (files / "user" / "log").read_text() == "1\n2\n"
    assert (files / "user" / "both").read_text() == "abc"


def test_reading_in_the_copy_moves_no_place_of_the_program(files):
    with open(files / "user" / "log", "rb", buffering=0) as data:

        def body():
            descriptors.silence([answer])
            return data.read().decode()

        assert in_child(body) == "1\n"
        assert data.read() == b"1\n"


def test_a_service_hears_nothing_of_the_copy():
    ours, service = socket.socketpair()

    def body():
        descriptors.silence([answer])
        os.write(ours.fileno(), b"of the copy")
        return True

    assert in_child(body)
    service.setblocking(False)
    with ours, service, pytest.raises(BlockingIOError):
        service.recv(10)


def test_a_mapped_file_is_not_written_by_the_copy(files):
    path = files / "user" / "data.bin"
    path.write_bytes(b"a" * 10_000)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[1] = ord("b")

        def body():
            descriptors.silence([answer])
            mapped[0] = ord("x")
            return mapped[:3].decode()

        assert in_child(body) == "xba"
        assert mapped[:3] == b"aba"
    assert path.read_bytes() == b"ab" + b"a" * 9_998


def test_a_batch_of_a_worker_is_not_changed_in_the_program():
    """Memory without a file: what the copy does in place, it does to a copy of its own."""
    batch = mmap.mmap(-1, 1 << 20)
    batch[:4] = b"1234"

    def body():
        copied = mappings.detach()
        batch[:4] = b"xxxx"
        return [copied >= 1 << 20, batch[:5].decode(), mappings.detach()]

    assert in_child(body) == [True, "xxxx\0", 0]
    assert batch[:4] == b"1234"
    batch.close()


@pytest.mark.torch
def test_a_tensor_in_shared_memory_is_not_changed_in_the_program():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(1000).share_memory_()

    def body():
        descriptors.silence([answer])
        tensor.mul_(2)
        return tensor.sum().item()

    assert [in_child(body), in_child(body)] == [2000.0, 2000.0]
    assert tensor.sum().item() == 1000.0
