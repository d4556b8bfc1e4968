"""Reads Python tracebacks from a stream of lines: frames, chained causes, messages of several lines.

One `TracebackReader` reads the lines of one rank, without their prefixes. It copes with what logs do to tracebacks: a
header in the middle of a line, no header at all, foreign lines between the frames, several processes writing over one
another, a file that ends in the middle.
"""

from __future__ import annotations

import re

from postmortem.readers.text.failures.exceptions import Block, Chain, Frame, exception_of

HEADER = "Traceback (most recent call last)"
_LINKS = frozenset(
    {
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    }
)
_FRAME = re.compile(r'\s*(?:\| +)?File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,200}))?')
_USER_CODE = "from user code:"
_BOX = "│┃╭╰"
_BOXED = re.compile(r"(?P<file>[^\s❱].{0,499}?):(?P<line>\d{1,9}) in(?: (?P<function>\S.{0,200}))?$")
"""A frame in rich's box; the name of the function, or a long path, may continue in the next row."""
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


def _is_long(block: Block) -> bool:
    """Whether the message may have several paragraphs, as those of compilers, of graphs and of torch.load do."""
    return block.exception.startswith(_LONG) or block.message.startswith("Graph execution error:")


def _quotes_code(block: Block) -> bool:
    """Whether the message itself contains frames."""
    return any(line.strip() == _USER_CODE or line.rstrip().endswith(_NODE) for line in block.more)


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found["file"], int(found["line"]), (found["function"] or "").strip())


class TracebackReader:
    """Reads one rank's lines. `feed` returns the chains that are complete, `close` what is left at the end."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._open: Block | None = None
        self._state = "idle"
        self._foreign = 0
        self._blank = 0
        self._inner: Block | None = None
        self._outer: Block | None = None
        self._headless: list[Frame] = []
        """Consecutive frames without a header."""
        self._headless_at = 0
        """Line of the last of them."""
        self._path = ""
        """The beginning of a path that a box breaks into several rows."""
        self.ended_at = 0
        """Line of the last ``Class: message`` that was read."""
        self.took = False
        """Whether the last line fed belongs to a traceback."""
        self.took_code = False
        """Whether it is the source line of a frame, or the marks below one."""

    @property
    def active(self) -> bool:
        """Whether the next line may belong to a traceback."""
        return self._state != "idle"

    @property
    def in_message(self) -> bool:
        """Whether the last line of an exception was read, and its message may continue."""
        return self._state == "message"

    @property
    def in_table(self) -> bool:
        """Whether the message is torchelastic's table of failures."""
        return self._state == "message" and self._open is not None and self._open.exception.endswith("ChildFailedError")

    def feed(self, number: int, text: str, level: str | None = None, prefixed: bool = False) -> list[Chain]:
        """Reads one line, without its prefixes, and returns the chains that it completes.

        `level` is the logger's; `prefixed`: the line had a rank in front, so no other process can have written it.
        """
        self.took, self.took_code = True, False
        if self._state == "idle":
            return self._read_idle(number, text, level)
        if self._state == "frames":
            return self._read_frames(number, text)
        if self._state == "linked":
            if HEADER in text:
                self._start(number, level)
                return []
            if text.strip():
                return self._emit() + self.feed(number, text, level, prefixed)
            return []
        return self._read_message(number, text, level, prefixed)

    def close(self) -> list[Chain]:
        """Returns what is left at the end of the file; a traceback without its last line is marked as cut."""
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

    def _read_idle(self, number: int, text: str, level: str | None) -> list[Chain]:
        """A line outside of tracebacks: it may start one, or be the last line of a traceback without its header."""
        self.took = False
        if HEADER in text:
            self.took = True
            self._start(number, level)
        elif not text[:1].isspace():
            found = exception_of(text, strict=True)
            if found is not None and level not in ("INFO", "DEBUG"):
                self.took = True
                block = Block(number, level=level, had_header=False)
                if self._headless and number - self._headless_at <= _NEXT_FRAME:
                    block.frames = self._headless
                self._headless = []
                self._complete(block, number, found)
        elif text[:1] == " " and (frame := _FRAME.match(text)) is not None:  # the header was lost
            earlier = self._headless[-50:] if number - self._headless_at <= _NEXT_FRAME else []
            self._headless = [*earlier, _frame(frame)]
            self._headless_at = number
        else:
            self.took_code = bool(self._headless) and number == self._headless_at + 1
        return []

    def _start(self, number: int, level: str | None) -> None:
        self._open = Block(number, level=level)
        self._state, self._foreign = "frames", 0

    def _complete(self, block: Block, number: int, found: tuple[str, str]) -> None:
        block.line, (block.exception, block.message) = number, found
        self._open, self._state, self._blank = block, "message", 0
        self.ended_at = number

    def _read_frames(self, number: int, text: str) -> list[Chain]:
        """A line between the header and ``Class: message``."""
        block = self._open
        assert block is not None
        if text[:1] and text[:1] in _BOX:
            self._foreign = 0
            self._read_row(block, text.strip(_BOX + " "))
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
            block.add_frame(_frame(frame))
        elif text[:1].isspace() and bare is text:
            self.took_code = True
            if set(text.strip()) - set("^~ "):
                block.add_code(text)
        elif HEADER in text:  # another process began its own traceback
            self._foreign = 0
        elif (found := exception_of(bare, strict=not block.frames and self._foreign > 0)) is not None:
            self._close_frames(block, number, text, found)
        elif bare is not text:  # a source line of an exception group
            self.took_code = True
            block.add_code(bare)
        else:
            self.took = False
            self._foreign += 1
            if self._foreign > _FOREIGN:
                return self.close()
        return []

    def _close_frames(self, block: Block, number: int, text: str, found: tuple[str, str]) -> None:
        """The line ``Class: message`` of the open traceback, or of the exception that a worker sent inside of it."""
        if self._outer is None:
            self._complete(block, number, found)
            return
        block.line, (block.exception, block.message) = number, found
        self._inner, self._open, self._outer = block, self._outer, None
        self._state, self._blank = "message", 0
        self._open.more.append(text)

    def _read_row(self, block: Block, row: str) -> None:
        """One row of a traceback that rich draws into a box."""
        frame = _BOXED.match((self._path + row)[:1000])
        code = _BOXED_CODE.match(row)
        if frame is not None:
            block.add_frame(_frame(frame))
            self._path = ""
        elif block.frames and code is not None and not block.frames[-1].code:
            block.add_code(code["code"].replace("│", " "))
        elif block.frames and not block.frames[-1].function and row.replace("_", "a").isalnum():
            block.frames[-1].function = row
        else:
            self._path = self._path + row if self._path or row[:1] in ("/", "~") or row[1:3] == ":\\" else ""
            self._path = self._path if len(self._path) < 500 else ""

    def _read_message(self, number: int, text: str, level: str | None, prefixed: bool) -> list[Chain]:
        """A line after ``Class: message``: more of the message, a link to the next exception, or something new."""
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
            return done + self._read_frames(number, text)
        if self._ends_message(text, stripped, level, prefixed):
            done = self._finish()
            return done + self._read_idle(number, text, level)
        if self._blank == 0 or prefixed or self.in_table or _is_long(block):
            block.more.append(text[:2000])
        # Without a rank in front, a line that is not indented may just as well be the next output of the program.
        self.took = prefixed or self.in_table or text[:1].isspace() or not stripped
        return []

    def _ends_message(self, text: str, stripped: str, level: str | None, prefixed: bool) -> bool:
        """Whether the message ended before this line."""
        block = self._open
        assert block is not None
        if self.in_table:
            rule = len(stripped) > 8 and not set(stripped) - {"="}
            return len(block.more) > _TABLE_LINES or (rule and any(m.startswith("Root Cause") for m in block.more))
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
