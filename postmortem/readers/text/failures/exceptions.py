"""What a traceback consists of: frames, exceptions, and the chain of exceptions that led to one another."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

_CLASS = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80})(?:\(\w{1,80}\))?(?:: ?(?P<message>.*)|\s*)$", re.DOTALL
)
_ENDINGS = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Failed\w*|Timeout|Failure|Unsupported|OutOfResources|StopIteration"
    r"|BackendCompilerFailed)$"
)
_LOWERCASE = re.compile(
    r"(?:cv2|struct|zlib|socket|select|lmdb|re|audioop|ossaudiodev|curses|termios|shutil|binascii"
    r"|xml\.\w+(?:\.\w+)?|concurrent\.futures\.\w+)"
    r"\.(?:error|timeout|gaierror|herror)$"
)
"""Exception classes in lower case, of Python and of OpenCV."""
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?%?|[-+]?(?:nan|inf)", re.IGNORECASE)
_TITLES = frozenset({"Error", "Timeout", "Failure", "Failed", "Exit", "CommandNotFoundError", "CondaError"})
"""Names that outside of a traceback are no Python class: titles, and errors that conda prints in a job script."""
_NOT_YOURS = re.compile(
    r"site-packages|dist-packages|/lib/python\d"
    r"|[\\/][Ll]ib[\\/](?:runpy|threading|multiprocessing|urllib|concurrent|asyncio|ctypes|importlib|contextlib|subprocess"
    r"|zipfile|tarfile)\b"
    r"|^<(?!stdin|ipython|string)|torchinductor|\.pyx$|/bin/\w+$"
    r"|^/opt/(?:NeMo|[Mm]egatron-(?:LM|lm|Bridge)|TransformerEngine)/"  # where NVIDIA's containers keep them
)
_WRAPPER = re.compile(
    r"(?:InstantiationException|ChildFailedError|CalledProcessError|ProcessRaisedException|RayTaskError|FailedJobError"
    r"|UncompletedJobError|TuneError|PapermillExecutionError)$"
)
"""Classes of launchers and configuration systems (Hydra, torchelastic, accelerate, Ray, submitit, papermill)."""
_REPR = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Z]\w{0,80}(?:Error|Exception))\((?P<message>.{0,2000}?),?\)$"
)
_SERVER = re.compile(
    r"[\\/](?:tornado|jupyter_server|notebook|flask|werkzeug|django|starlette|uvicorn|aiohttp|fastapi|sanic|gradio"
    r"|streamlit)[\\/]"
)
"""Files of web servers, which answer a request that raises with an error and go on."""
_INSTALLED = re.compile(
    r"[\\/](?:site|dist)-packages[\\/]|[\\/]lib(?:64)?[\\/]python[\d.]+[\\/]|[\\/]Lib[\\/]|^<frozen "
)
_MOST_FRAMES = 1000


@dataclass(slots=True)
class Frame:
    """One frame: `code` is the source line below it, empty if the log has none."""

    file: str
    line: int
    function: str
    code: str = ""

    @property
    def yours(self) -> bool:
        """Whether the file is the user's own, not of Python or an installed package."""
        return _NOT_YOURS.search(self.file) is None

    def as_field(self) -> dict[str, Any]:
        """The frame in the fields of an event."""
        return {"file": self.file, "line": self.line, "function": self.function, "code": self.code}


@dataclass(slots=True)
class Block:
    """One exception: the lines (1-based) of its header and of ``Class: message``, its frames, its text."""

    header: int
    line: int = 0
    exception: str = ""
    message: str = ""
    more: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    level: str | None = None
    had_header: bool = True
    indent: int = 0
    """Blanks before its last line, where a program printed the traceback inside something else."""

    @property
    def text(self) -> str:
        """``Class: message`` with all lines of the message."""
        return "\n".join([self.title, *self.more])

    @property
    def title(self) -> str:
        """``Class: message``, the first line of the message only."""
        return f"{self.exception}: {self.message}" if self.message else self.exception

    @property
    def raised(self) -> str:
        """``Class: message [raised in multiprocessing/connection.py]``: some mean another thing when raised there."""
        place = "/".join(re.split(r"[\\/]", self.frames[-1].file)[-2:]) if self.frames else ""
        return f"{self.title[:400]} [raised in {place}]"

    @property
    def own_frame(self) -> Frame | None:
        """The innermost frame in the user's own code, if any."""
        return next((f for f in reversed(self.frames) if f.yours), None)

    @property
    def is_wrapper(self) -> bool:
        """Whether its class only reports that something failed below it."""
        return _WRAPPER.search(self.exception) is not None

    @property
    def uncaught(self) -> bool:
        """Whether the stack begins where Python begins: the stack of a caught exception begins at its `try`."""
        return bool(self.frames) and self.frames[0].function in ("<module>", "_run_module_as_main")

    @property
    def in_thread(self) -> bool:
        """Whether the stack begins where a thread begins: it ended that thread, and not the program."""
        return bool(self.frames) and self.frames[0].function == "_bootstrap_inner"

    @property
    def in_request(self) -> bool:
        """Whether the stack begins where a web server handles a request: it ended that request, and not the program.

        Not if it reaches the user's own code, which may train in a request.
        """
        begins = bool(self.frames) and _SERVER.search(self.frames[0].file) is not None
        return begins and all(_INSTALLED.search(frame.file) for frame in self.frames)

    def add_frame(self, frame: Frame) -> None:
        """Appends a frame; of an endless recursion the innermost are kept."""
        self.frames.append(frame)
        del self.frames[:-_MOST_FRAMES]

    def add_code(self, text: str) -> None:
        """The source line of the last frame, unless it has one."""
        if self.frames and not self.frames[-1].code:
            self.frames[-1].code = text.strip()[:300]


@dataclass(slots=True)
class Chain:
    """Exceptions that led to one another, in the order printed: the first is closest to the cause.

    `inner` is the exception that a data-loader worker or a rank sent to the main process; it is closer still. `cut`:
    the last line is missing.
    """

    blocks: list[Block]
    inner: Block | None = None
    cut: bool = False

    @property
    def last(self) -> Block:
        """The exception that was printed last."""
        return self.blocks[-1]

    @property
    def headline(self) -> Block:
        """The exception to name: the one printed last, unless it only wraps the one before it or its own message."""
        told = next((block for block in reversed(self.blocks) if not block.is_wrapper), None)
        if told is not None:
            return told
        inner = _REPR.match(self.last.more[0].strip()) if self.last.more else None
        if inner is None:
            return self.last
        return replace(self.last, exception=inner["name"], message=inner["message"].strip("'\""), more=[])

    @property
    def by_cause(self) -> list[Block]:
        """All exceptions, the one closest to the cause first."""
        return ([self.inner] if self.inner is not None else []) + self.blocks

    @property
    def own_frame(self) -> Frame | None:
        """The innermost frame in the user's own code, of the exception closest to the cause that has one."""
        return next((frame for block in self.by_cause if (frame := block.own_frame) is not None), None)


def exception_of(text: str, *, strict: bool) -> tuple[str, str] | None:
    """Class and message if a line is ``Class: message``, else None.

    `strict` is for lines outside a traceback: there a number after the colon is a metric (``L2Error: 0.3``), and a
    name that has nothing of an exception but its capital letter is a title.
    """
    match = _CLASS.match(text[:20_000])
    if match is None:
        return None
    name, message = match["name"], (match["message"] or "").rstrip()
    last = name.rpartition(".")[2].lstrip("_")
    if _LOWERCASE.match(name) is not None:
        return name, message
    known = _ENDINGS.search(last) is not None
    if not last[:1].isupper() or (_NUMBER.fullmatch(message.strip()) and (strict or not known)):
        return None
    if strict:
        known = known and last not in _TITLES and (message != "" or last.endswith(("Error", "Exception", "Interrupt")))
    elif not known:
        known = last.endswith("Warning") or (not last.isupper() and ("." in name or ":" in text))
    return (name, message) if known else None
