"""Mode, owner, times and attributes of files, which Landlock does not protect: denied by a seccomp filter.

Everywhere, also in folders that may be written to: the filter sees numbers, no paths. ``utime`` and ``chmod`` then fail
with ``PermissionError``, in a temporary folder too.
"""

from __future__ import annotations

import ctypes
import platform
import struct

from postmortem.attach.sandbox import _calls

_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM
_SECCOMP, _FILTER = {"x86_64": 317, "aarch64": 277}, 1
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# chmod fchmod chown fchown lchown utime setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr utimes
# fchownat futimesat fchmodat utimensat fchmodat2 setxattrat removexattrat
_DENIED = {
    "x86_64": (90, 91, 92, 93, 94, 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280, 452, 463, 466),
    "aarch64": (5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88, 452, 463, 466),
}


def _program(machine: str) -> bytes:
    """The filter as BPF: another architecture is let through, a number of the list is denied."""
    numbers = _DENIED[machine]
    load, equal, give = 0x20, 0x15, 0x06
    lines = [(load, 0, 0, 4), (equal, 0, len(numbers) + 1, _AUDIT_ARCH[machine]), (load, 0, 0, 0)]
    lines += [(equal, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    lines += [(give, 0, 0, _ALLOW), (give, 0, 0, _DENY)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def lock() -> bool:
    """From here on this process and its children change no file's metadata; whether that holds."""
    machine = platform.machine()
    if not _calls.LINUX or machine not in _DENIED:
        return False
    program = _program(machine)
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    try:
        _calls.no_new_privileges()
    except OSError:
        return False
    return _calls.syscall(_SECCOMP[machine], _FILTER, 0, ctypes.cast(header, ctypes.c_void_p)) == 0
