"""The system calls of Linux that Python does not wrap: ctypes only, so that they can be made right after a fork."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

LINUX = sys.platform.startswith("linux")
_libc = ctypes.CDLL(None, use_errno=True) if LINUX else None

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 1024, 2048, 4096, 16384, 1 << 18, 1 << 21
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 38, 36


def _check(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def syscall(number: int, *arguments: ctypes.c_void_p | ctypes.c_ulong | int) -> int:
    """The call with this number: its result, -1 where it failed (``ctypes.get_errno()`` says why)."""
    if _libc is None:
        ctypes.set_errno(38)  # ENOSYS
        return -1
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *words))


def _prctl(option: int, value: int) -> int:
    if _libc is None:
        return -1
    zero = ctypes.c_ulong(0)
    return int(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero))


def die_with_parent() -> None:
    """This process is killed when the thread that forked it ends."""
    _check(_prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl PR_SET_PDEATHSIG")


def become_subreaper() -> None:
    """Descendants whose parent ends become children of this process, instead of being lost to init."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl PR_SET_CHILD_SUBREAPER")


def no_new_privileges() -> None:
    """Programs run from here on gain nothing by setuid: what the kernel asks of a process that locks itself."""
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl PR_SET_NO_NEW_PRIVS")


def unshare(flags: int) -> None:
    """New namespaces for this process (its children, for the one of the pids)."""
    if _libc is None:
        raise OSError(38, "unshare: not Linux")
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    if _libc is None:
        raise OSError(38, "mount: not Linux")
    words = [os.fsencode(text) if text else None for text in (source, target, kind)]
    data = os.fsencode(options) if options else None
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data), f"mount {kind or 'on'} {target}")


def mmap(start: int, size: int, rights: int, flags: int, fd: int, offset: int) -> int:
    """mmap(2), at a place of ours: -> the address."""
    if _libc is None:
        raise OSError(38, "mmap: not Linux")
    place, whole, shift = ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_long(offset)
    call = _libc.mmap
    call.restype = ctypes.c_void_p
    return _address(call(place, whole, ctypes.c_int(rights), ctypes.c_int(flags), ctypes.c_int(fd), shift), "mmap")


def mremap(start: int, size: int, new_size: int, flags: int, target: int) -> int:
    """mremap(2): -> the address."""
    if _libc is None:
        raise OSError(38, "mremap: not Linux")
    call = _libc.mremap
    call.restype = ctypes.c_void_p
    sizes = ctypes.c_size_t(size), ctypes.c_size_t(new_size)
    return _address(call(ctypes.c_void_p(start), *sizes, ctypes.c_int(flags), ctypes.c_void_p(target)), "mremap")


def _address(value: int | None, what: str) -> int:
    if value is None or value == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return value
