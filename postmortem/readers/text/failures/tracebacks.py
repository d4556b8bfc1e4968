"""Python tracebacks out of a stream of lines: frames, chained causes, messages of several lines.

One `TracebackReader` reads the lines of one rank, already peeled of their prefixes. It copes with what logs do
to tracebacks: a header in the middle of a line, no header at all, foreign lines between the frames, several
processes writing over one another, a file that ends in the middle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

HEADER = "Traceback (most recent call last)"
_LINKS = frozenset(
    {
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    }
)
_FRAME = re.compile(r'\s*(?:\| +)?File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,200}))?')
_CLASS = re.compile(r"(?P<name>(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80})(?:\(\w{1,80}\))?(?:: ?(?P<message>.*)|\s*)$", re.DOTALL)
_ENDINGS = re.compile(r"(?:Error|Exception|Interrupt|Exit|Failed\w*|Timeout|Failure|Unsupported|OutOfResources|StopIteration|BackendCompilerFailed)$")
_IN_SMALL = re.compile(
    r"(?:cv2|struct|zlib|socket|select|lmdb|re|audioop|ossaudiodev|curses|termios|shutil|binascii|xml\.\w+(?:\.\w+)?|concurrent\.futures\.\w+)"
    r"\.(?:error|timeout|gaierror|herror)$"
)
"""Classes that begin with a small letter, of Python and of OpenCV."""
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?%?|[-+]?(?:nan|inf)", re.IGNORECASE)
_TITLES = frozenset({"Error", "Timeout", "Failure", "Failed", "Exit", "CommandNotFoundError", "CondaError"})
"""What outside of a traceback is no class of Python: titles, and what conda says in a job script."""
_NOT_YOURS = re.compile(
    r"site-packages|dist-packages|/lib/python\d|[\\/][Ll]ib[\\/](?:runpy|threading|multiprocessing|urllib|concurrent|asyncio|ctypes|importlib|contextlib|subprocess|zipfile|tarfile)\b|^<(?!stdin|ipython|string)|torchinductor|\.pyx$|/bin/\w+$"
    r"|^/opt/(?:NeMo|[Mm]egatron-(?:LM|lm|Bridge)|TransformerEngine)/"  # where NVIDIA's containers keep them
)

_USER_CODE = "from user code:"
_BOX = "│┃╭╰"
_BOXED = re.compile(r"(?P<file>[^\s❱].{0,499}?):(?P<line>\d{1,9}) in(?: (?P<function>\S.{0,200}))?$")
"""A frame in rich's box; the name of the function, or a long path, may go on in the next row."""
_BOXED_CODE = re.compile(r"❱ ?\d{1,9} (?P<code>.*)")
_NODE = "defined at (most recent call last):"
_LONG = ("torch._dynamo", "torch._inductor", "_pickle.", "tensorflow.")
_INNER = re.compile(r"\s*(?:Original Traceback|Traceback \(most recent call last\): \(RANK \d{1,6}\)\s*$)")
"""Headers of an exception inside a message: of a data-loader worker, of the ranks of a distributed checkpoint."""
_FOREIGN = 60
"""Foreign lines between two lines of a traceback before it counts as lost."""
_NEXT_FRAME = 4
"""Lines from a frame to the next or to the last line: its code, and marks under it on two lines."""
_MESSAGE_LINES = 40
_TABLE_LINES = 2000
"""Lines of a message that are kept; torchelastic's table has nine for every failed rank."""


@dataclass(slots=True)
class Frame:
    """One frame: `code` is the source line below it, empty where the log has none."""

    file: str
    line: int
    function: str
    code: str = ""

    @property
    def yours(self) -> bool:
        """Whether the file is the user's own, not of Python or an installed package."""
        return _NOT_YOURS.search(self.file) is None


@dataclass(slots=True)
class Block:
    """One exception: where its header and its ``Class: message`` line stand (1-based), its frames, its text."""

    header: int
    line: int = 0
    exception: str = ""
    message: str = ""
    more: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    level: str | None = None
    had_header: bool = True
    indent: int = 0
    """Blanks before its last line, where a program printed a traceback inside of something else."""

    @property
    def text(self) -> str:
        """``Class: message`` with all lines of the message."""
        return "\n".join([self.title, *self.more])

    @property
    def title(self) -> str:
        return f"{self.exception}: {self.message}" if self.message else self.exception

    @property
    def raised(self) -> str:
        """``Class: message [raised in multiprocessing/connection.py]``: some exceptions mean another thing from there."""
        place = "/".join(re.split(r"[\\/]", self.frames[-1].file)[-2:]) if self.frames else ""
        return f"{self.title[:400]} [raised in {place}]"

    @property
    def own_frame(self) -> Frame | None:
        """The innermost frame in the user's own code."""
        return next((f for f in reversed(self.frames) if f.yours), None)

    @property
    def uncaught(self) -> bool:
        """Whether the stack begins where Python begins: what a program catches and prints begins at its `try`."""
        return bool(self.frames) and self.frames[0].function in ("<module>", "_run_module_as_main")


@dataclass(slots=True)
class Chain:
    """Exceptions that led to one another, in the order printed: the first is nearest to the cause.

    `inner` is the exception that a data-loader worker, or a rank, sent to the main process, which is nearer still.
    """

    blocks: list[Block]
    inner: Block | None = None
    cut: bool = False

    @property
    def last(self) -> Block:
        return self.blocks[-1]

    @property
    def by_cause(self) -> list[Block]:
        return ([self.inner] if self.inner is not None else []) + self.blocks

    @property
    def own_frame(self) -> Frame | None:
        return next((frame for block in self.by_cause if (frame := block.own_frame) is not None), None)


def exception_of(text: str, *, strict: bool) -> tuple[str, str] | None:
    """Class and message where a line is ``Class: message``, else None.

    `strict` is for lines outside a traceback: there a number after the colon is a metric (``L2Error: 0.3``) and a
    class that only begins with a capital is a title.
    """
    match = _CLASS.match(text[:20_000])
    if match is None:
        return None
    name, message = match["name"], (match["message"] or "").rstrip()
    last = name.rpartition(".")[2].lstrip("_")
    if _IN_SMALL.match(name) is not None:
        return name, message
    if not last[:1].isupper() or (_NUMBER.fullmatch(message.strip()) and (strict or _ENDINGS.search(last) is None)):
        return None
    known = _ENDINGS.search(last) is not None
    if strict:
        known = known and last not in _TITLES and (message != "" or last.endswith(("Error", "Exception", "Interrupt")))
    elif not known:
        known = last.endswith("Warning") or (not last.isupper() and ("." in name or ":" in text))
    return (name, message) if known else None


def _is_long(block: Block) -> bool:
    """Whether the message may have paragraphs with empty lines between: those of compilers, of graphs and of torch.load do."""
    return block.exception.startswith(_LONG) or block.message.startswith("Graph execution error:")


def _quotes_code(block: Block) -> bool:
    """Whether the message itself shows frames."""
    return any(line.strip() == _USER_CODE or line.rstrip().endswith(_NODE) for line in block.more)


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found["file"], int(found["line"]), (found["function"] or "").strip())


class TracebackReader:
    """Reads one rank's lines; `feed` returns the chains that are complete, `close` what is left at the end."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._open: Block | None = None
        self._state = "idle"
        self._foreign = 0
        self._blank = 0
        self._inner: Block | None = None
        self._outer: Block | None = None
        self._headless: list[Frame] = []
        """Frames that stand behind one another without a header, and the line of the last."""
        self._headless_at = 0
        self._path = ""
        """The first rows of a path that a box breaks."""
        self.ended_at = 0
        """Line of the last ``Class: message`` that was read."""
        self.took = False
        """Whether the last line fed belongs to a traceback."""

    @property
    def active(self) -> bool:
        """Whether the next line may belong to a traceback."""
        return self._state != "idle"

    @property
    def in_message(self) -> bool:
        return self._state == "message"

    @property
    def in_table(self) -> bool:
        """Whether the lines are torchelastic's table of failures."""
        return self._state == "message" and self._open is not None and self._open.exception.endswith("ChildFailedError")

    def feed(self, number: int, text: str, level: str | None = None, prefixed: bool = False) -> list[Chain]:
        """One line, without its prefixes. `prefixed`: a rank stands before it, so that no other process can have written it."""
        self.took = True
        if self._state == "idle":
            return self._idle(number, text, level)
        if self._state == "frames":
            return self._frames(number, text)
        if self._state == "linked":
            if HEADER in text:
                self._start(number, level)
                return []
            if text.strip():
                return self._emit() + self.feed(number, text, level, prefixed)
            return []
        return self._message(number, text, level, prefixed)

    def close(self) -> list[Chain]:
        """What is left at the end of the file; a traceback without its last line is marked cut."""
        if self._state == "frames" and self._open is not None and self._open.frames:
            if self._outer is not None:
                self._blocks.append(self._outer)
                self._outer = None
            else:
                self._open.line = self._open.header
                self._blocks.append(self._open)
            self._open = None
            return self._emit(cut=True)
        if self._open is not None and self._state != "frames":
            self._blocks.append(self._open)
            self._open = None
        return self._emit()

    def _idle(self, number: int, text: str, level: str | None) -> list[Chain]:
        if HEADER in text:
            self._start(number, level)
        elif not text[:1].isspace() and (found := exception_of(text, strict=True)) is not None and level not in ("INFO", "DEBUG"):
            block = Block(number, level=level, had_header=False)
            if self._headless and number - self._headless_at <= _NEXT_FRAME:
                block.frames = self._headless
            self._headless = []
            self._complete(block, number, found)
        elif text[:1] == " " and (frame := _FRAME.match(text)) is not None:  # the header was lost
            self._headless = [*(self._headless[-50:] if number - self._headless_at <= _NEXT_FRAME else []), _frame(frame)]
            self._headless_at = number
            self.took = False
        else:
            self.took = False
        return []

    def _start(self, number: int, level: str | None) -> None:
        self._open = Block(number, level=level)
        self._state, self._foreign = "frames", 0

    def _complete(self, block: Block, number: int, found: tuple[str, str]) -> None:
        block.line, (block.exception, block.message) = number, found
        self._open, self._state, self._blank = block, "message", 0
        self.ended_at = number

    def _frames(self, number: int, text: str) -> list[Chain]:
        block = self._open
        assert block is not None
        if text[:1] in _BOX and text[:1]:
            self._foreign = 0
            self._row(block, text.strip(_BOX + " "))
            return []
        bare = text.lstrip(" |+") if text[:1] == " " and text.lstrip()[:1] in ("|", "+") else text
        depth = len(text) - len(text.lstrip(" "))
        if block.indent and depth == block.indent and block.frames:
            bare = text[depth:]
        frame = _FRAME.match(text)
        if frame is not None:
            self._foreign = 0
            if not block.frames:
                block.indent = max(depth - 2, 0)
            block.frames.append(_frame(frame))
            del block.frames[:-1000]
        elif text[:1].isspace() and bare is text:
            if block.frames and not block.frames[-1].code and set(text.strip()) - set("^~ "):
                block.frames[-1].code = text.strip()[:300]
        elif HEADER in text:  # another process began its own traceback
            self._foreign = 0
        elif (found := exception_of(bare, strict=not block.frames and self._foreign > 0)) is not None:
            if self._outer is not None:  # the exception inside a data-loader worker
                block.line, (block.exception, block.message) = number, found
                self._inner, self._open, self._outer = block, self._outer, None
                self._state, self._blank = "message", 0
                self._open.more.append(text)
            else:
                self._complete(block, number, found)
        elif bare is not text:  # a source line of an exception group
            if block.frames and not block.frames[-1].code:
                block.frames[-1].code = bare.strip()[:300]
        else:
            self.took = False
            self._foreign += 1
            if self._foreign > _FOREIGN:
                return self.close()
        return []

    def _row(self, block: Block, row: str) -> None:
        """One row of a traceback that rich draws into a box."""
        frame = _BOXED.match((self._path + row)[:1000])
        code = _BOXED_CODE.match(row)
        if frame is not None:
            block.frames.append(_frame(frame))
            del block.frames[:-1000]
            self._path = ""
        elif block.frames and code is not None and not block.frames[-1].code:
            block.frames[-1].code = code["code"].replace("│", " ").strip()[:300]
        elif block.frames and not block.frames[-1].function and row.replace("_", "a").isalnum():
            block.frames[-1].function = row
        else:
            self._path = self._path + row if self._path or row[:1] in ("/", "~") or row[1:3] == ":\\" else ""
            self._path = self._path if len(self._path) < 500 else ""

    def _message(self, number: int, text: str, level: str | None, prefixed: bool) -> list[Chain]:
        block = self._open
        assert block is not None
        stripped = text.strip()
        if stripped in _LINKS:
            self._blocks.append(block)
            self._open, self._state = None, "linked"
            return []
        if HEADER in text and _INNER.match(text):
            block.more.append(text)
            self._outer = block
            self._start(number, level)
            return []
        if HEADER in text and not (self.in_table and stripped.startswith("traceback :")):
            done = self._finish()
            self._start(number, level)
            return done
        if stripped == _USER_CODE:  # dynamo: frames that belong to the message
            block.more.append(text)
            self._blank = 0
            return []
        quoted = self.in_table and text.startswith("    ")
        if _FRAME.match(text) and not prefixed and not quoted and not _quotes_code(block):
            done = self._finish()  # frames of another process that writes into the same file
            self._start(number, level)
            assert self._open is not None
            self._open.had_header = False
            return done + self._frames(number, text)
        if self._ends_message(text, stripped, level, prefixed):
            return self._finish() + self._idle(number, text, level)
        if self._blank == 0 or prefixed or self.in_table or _is_long(block):
            block.more.append(text[:2000])
        # without a rank in front, a line that is not indented may as well be the next output of the program
        self.took = prefixed or self.in_table or text[:1].isspace() or not stripped
        return []

    def _ends_message(self, text: str, stripped: str, level: str | None, prefixed: bool) -> bool:
        block = self._open
        assert block is not None
        if self.in_table:
            rule = len(stripped) > 8 and not set(stripped) - {"="}
            return len(block.more) > _TABLE_LINES or (rule and sum(line.startswith("Root Cause") for line in block.more) > 0)
        if len(block.more) >= _MESSAGE_LINES:
            return True
        if not stripped:
            self._blank += 1
            return self._blank > (12 if _is_long(block) else 2) and not prefixed
        if text[:1].isspace():
            return False
        last = block.more[-1] if block.more else block.message
        if exception_of(text, strict=True) is not None and not last.rstrip().endswith(":"):
            return True
        return not prefixed and (level is not None or (self._blank > 0 and not _is_long(block)))

    def _finish(self) -> list[Chain]:
        if self._open is not None:
            self._blocks.append(self._open)
            self._open = None
        return self._emit()

    def _emit(self, *, cut: bool = False) -> list[Chain]:
        blocks, self._blocks = self._blocks, []
        inner, self._inner = self._inner, None
        self._state, self._open, self._outer = "idle", None, None
        return [Chain(blocks, inner, cut)] if blocks else []
