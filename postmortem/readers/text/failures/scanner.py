"""Goes through the lines of a log and collects what looks like a failure.

The prefilter passes over every line without any text that a signature looks for. The other lines lose their prefixes,
go to the traceback reader of their rank, and are matched against the catalogue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from postmortem.readers.text.failures.attempts import Attempts
from postmortem.readers.text.failures.fold import Occurrence, Occurrences
from postmortem.readers.text.failures.follows import Follows
from postmortem.readers.text.failures.naming import name_chain
from postmortem.readers.text.failures.prefilter import Prefilter
from postmortem.readers.text.failures.progress import COMPLETED_ANCHORS, Completion, Progress
from postmortem.readers.text.failures.tracebacks import HEADER, TracebackReader
from postmortem.readers.text.lines.prefixes import Prefix, labelled, peel
from postmortem.readers.text.steps.announced_length import ANNOUNCED, Announcements
from postmortem.signatures import CATALOGUE, Signature, is_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postmortem.readers.text.failures.exceptions import Chain

_LONGEST_LINE = 20_000
_SAMPLE = 500
"""Lines at the start from which the launcher's labels and the number of ranks are learned."""
_BATCH = 256
"""Lines that are passed over together if none of them may matter."""
_AT_ONCE = 16 * _BATCH
"""Lines that the prefilter sees at once."""
_QUIET = 300
"""Lines without news of a rank after which its message is taken as finished."""
_MOST_TEMPLATES = 20_000

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\))")
_WORLD = re.compile(r"(?i)\bworld[_ ]?size\W{1,4}(\d{1,6})\b")
_ENDS_MESSAGE = (
    "slurmstepd:",
    "srun:",
    "terminate called",
    "Fatal Python error",
    "Killed",
    "Aborted",
    "Segmentation fault",
)
"""A line that begins so is never part of the message of an exception."""
_VARIES = re.compile(r"\d+")
_SPAWNED = re.compile(
    r"-- Process (\d{1,6}) terminated with the following error:|-{2,40}Begin (?:global )?rank (\d{1,6}) STDERR-{2,40}"
)
_LONGEST_LEAD = 120
_RANKED_HEADER = re.compile(r"\[(?:rank|default)\d{1,6}\]: ?" + re.escape(HEADER))
"""The first line of a rank's traceback, after a progress bar that had not ended its line."""
_RANK_FIELDS = ("bad_rank", "spawn_rank", "diag_rank", "waiting_rank")
"""Fields that name the rank where the line has no prefix with one."""

_ANCHORS = (
    *("Traceback (most recent call last)", '  File "', "Error:", "Error\n", "Error\r", "Exception:", "Exception\n"),
    *("Interrupt", " terminated with the following error:", " STDERR---"),
    *("orld_size", "orld size", "WORLD_SIZE", "orldSize"),
)


@cache
def prefilter() -> Prefilter:
    """Finds every line that may matter: exceptions, what signatures look for, completions, announced lengths."""
    return Prefilter((*_ANCHORS, *COMPLETED_ANCHORS, *ANNOUNCED, *CATALOGUE.anchors))


@dataclass(slots=True)
class _Stream:
    """The lines of one rank: its traceback reader, and the line that last belonged to a traceback.

    `lead` matches what precedes each line of the open traceback, where `peel` does not know it as a prefix.
    """

    reader: TracebackReader = field(default_factory=TracebackReader)
    fed_at: int = 0
    lead: re.Pattern[str] | None = None

    def without_lead(self, text: str) -> str:
        """A line of an open traceback without the words that precede its header, whatever wrote them."""
        at = text.find(HEADER, 0, _LONGEST_LEAD + len(HEADER))
        if at >= 0:
            lead = text[:at]
            if not lead.strip():
                self.lead = None
            elif not self.reader.active:
                self.lead = re.compile(_VARIES.sub(lambda _: r"\d+", re.escape(lead).replace(r"\ ", " ")))
        if self.lead is not None and self.reader.active and (found := self.lead.match(text)) is not None:
            return text[found.end() :]
        return text


class Scanner:
    """Goes through the lines of a log and collects occurrences."""

    def __init__(self) -> None:
        self.found = Occurrences()
        self.progress = Progress()
        self.announced = Announcements()
        self.attempts = Attempts()
        self.ranks: set[int] = set()
        self.world_size = 0
        self.code_lines: list[int] = []
        """Lines with the source code of tracebacks, whose numbers are no metrics."""
        self._follows = Follows(self.found)
        self._streams: dict[int | None, _Stream] = {}
        self._open: dict[int | None, _Stream] = {}
        """Streams inside a traceback; the one whose last line is oldest comes first."""
        self._signatures: dict[str, Signature | None] = {}
        """The signature of each line that was looked up, by its text with the numbers masked."""
        self._labels = False
        self._number = 0
        self._recent: list[str] = []
        self._prefix = Prefix()
        self._spawned: int | None = None
        """Rank of the process whose traceback a launcher prints next."""
        self._state_at: dict[int, tuple[int, int, float | None]] = {}
        """Training, ordinary output and time at the last line of an exception, which ends only after its message."""

    def read(self, lines: Iterable[tuple[int, str]]) -> None:
        """Reads a log of (1-based line number, text)."""
        stream = iter(lines)
        sample = list(islice(stream, _SAMPLE))
        self._labels = labelled([text[:200] for _, text in sample])
        for _, text in sample:
            self._add_rank(peel(text[:200], labels=self._labels)[1])
        self.attempts.learn(text for _, text in sample)
        lines_left = chain(sample, stream)
        while ahead := list(islice(lines_left, _AT_ONCE)):
            texts = [text for _, text in ahead]
            anchored = prefilter().lines_with(texts)
            self.announced.watch(ahead, anchored)
            hits = set(anchored)
            for start in range(0, len(ahead), _BATCH):
                end = start + _BATCH
                near = {i - start for i in hits.intersection(range(start, end))}
                self._batch(ahead[start:end], texts[start:end], near)
            self._recent = (self._recent + texts)[-_BATCH:]

    def last_is_cut(self) -> bool:
        """Whether the last line is the beginning of a line that the log printed in full before."""
        templates = [_VARIES.sub("0", text.rpartition("\r")[2][:_LONGEST_LINE]).rstrip() for text in self._recent]
        if not templates or not templates[-1]:
            return False
        last = templates.pop()
        return last not in templates and any(template.startswith(last) for template in templates)

    def completion(self) -> Completion | None:
        """The line that reports the completed training, if there is one."""
        return self.progress.completion(self._number)

    def close(self) -> list[Occurrence]:
        """All occurrences, in the order of their lines."""
        self._close_streams()
        self._follows.close()
        return self.found.close()

    def _batch(self, batch: list[tuple[int, str]], texts: list[str], hits: set[int]) -> None:
        """Looks at the lines that the prefilter found, and at those around an open traceback."""
        if not (hits or self._follows.open or self._busy() or (self.attempts.failed and self._starts_in(texts))):
            self.progress.skip(texts)
            self._number = batch[-1][0]
            return
        for i, (number, text) in enumerate(batch):
            self._number = number
            if i in hits or self._follows.open or self._busy() or (self.attempts.failed and self.attempts.starts(text)):
                self._states(number, text)
            else:
                self.progress.skip((text,))

    def _starts_in(self, texts: list[str]) -> bool:
        return any(map(self.attempts.starts, texts))

    def _states(self, number: int, text: str) -> None:
        """Reads each state of a line that was redrawn after a carriage return as a separate line."""
        if not text:
            self._line(number, text)
            return
        for state in text.split("\r"):
            if state and not state.isspace():
                self._line(number, state[:_LONGEST_LINE])

    def _line(self, number: int, text: str) -> None:
        if "\x1b" in text:
            text = _ESCAPES.sub("", text)
        rest, key = self._peel(text)
        if self.attempts.starts(text):
            self._next_attempt()
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream()
        rest = stream.without_lead(rest)
        if self._follows.read(key, rest) and not stream.reader.active:
            return
        if stream.reader.in_message and not stream.reader.in_table and rest.startswith(_ENDS_MESSAGE):
            self._close_stream(key)
        if self._feed(stream, key, number, rest):
            return
        self.progress.ordinary += self._prefix.level not in ("WARNING", "ERROR", "CRITICAL")
        if stream.reader.active or self.progress.counting:
            self.progress.count(rest)
        self._match(number, rest, key)

    def _peel(self, text: str) -> tuple[str, int | None]:
        """A line without its prefixes, and the key of its stream: the rank, or a negative number for a process."""
        at = _RANKED_HEADER.search(text) if HEADER in text else None
        rest, self._prefix = peel(text[at.start() :] if at is not None else text, labels=self._labels)
        self._add_rank(self._prefix)
        spawned = _SPAWNED.match(rest)
        if spawned is not None:
            self._spawned = int(spawned[1] or spawned[2])
        key = self._prefix.best_rank
        if key is None and self._prefix.pid is not None:
            key = -1 - self._prefix.pid  # Ray names processes, not ranks
        return rest, key

    def _add_rank(self, prefix: Prefix) -> None:
        rank = prefix.best_rank
        if rank is not None and rank < 100_000:
            self.ranks.add(rank)

    def _feed(self, stream: _Stream, key: int | None, number: int, rest: str) -> bool:
        """Gives a line to the traceback reader of its rank; returns whether it belongs to a traceback."""
        reader = stream.reader
        for done in reader.feed(number, rest, self._prefix.level, prefixed=key is not None):
            self._add_chain(done, key)
        if reader.ended_at == number:
            self._state_at[number] = (self.progress.training, self.progress.ordinary, self._prefix.wall_time)
        if reader.took_code:
            self.code_lines.append(number)
        if reader.took:
            stream.fed_at = number
            self._open.pop(key, None)
        if reader.active:
            self._open[key] = stream
        else:
            self._open.pop(key, None)
        return reader.took

    def _busy(self) -> bool:
        """Whether a traceback is open; one whose rank has been silent for long is closed."""
        if not self._open:
            return False
        if self._number - next(iter(self._open.values())).fed_at > _QUIET:
            for key, stream in self._streams.items():
                if key in self._open and self._number - stream.fed_at > _QUIET:
                    self._close_stream(key)
        return bool(self._open)

    def _close_stream(self, key: int | None) -> None:
        stream = self._streams[key]
        for done in stream.reader.close():
            self._add_chain(done, key)
        stream.reader = TracebackReader()
        self._open.pop(key, None)

    def _close_streams(self) -> None:
        for key in self._streams:
            self._close_stream(key)

    def _next_attempt(self) -> None:
        """What is open belongs to the attempt before."""
        self._close_streams()
        self.attempts.next()

    def _match(self, number: int, rest: str, key: int | None) -> None:
        """Looks a line up in the catalogue; lines that differ in their numbers only are looked up once."""
        template = _VARIES.sub("0", rest[:300])
        signature = self._signatures.get(template)
        fields = signature.match(rest) if signature is not None else None
        if fields is None and (found := CATALOGUE.match(rest)) is not None:
            signature, fields = found
            if len(self._signatures) < _MOST_TEMPLATES:
                self._signatures[template] = signature
        self.progress.complete(number, rest, template)
        world = _WORLD.search(rest[:2000]) if "orld" in rest or "WORLD" in rest else None
        if world is not None:
            self.world_size = max(self.world_size, int(world[1]))
        if signature is None or fields is None or is_code(rest):
            return
        # A line with numbers is about something that happened; without, it may be advice how to avoid it.
        measured = any(isinstance(value, (int, float, list)) for value in fields.values())
        if signature.severity == "error" and not measured and signature.is_hypothetical(rest):
            return
        seen = self._occurrence(signature, number, rest.strip(), key, fields)
        self._add(seen)
        if signature.follow:
            self._follows.add(seen, key, rest)
        else:
            seen.fields = signature.detail(rest) | seen.fields
        if signature.id == "elastic-restart" or "restart" in fields:  # Slurm counts its restarts
            self._next_attempt()

    def _add_chain(self, done: Chain, key: int | None) -> None:
        """A complete traceback becomes one occurrence."""
        named = name_chain(done)
        if named is None:
            return
        signature, fields = named
        last = done.last
        lines = len(last.more)
        self.found.withdraw(signature, last.line + 1, last.line + lines, among=2 * lines + _BATCH)
        title = "a traceback without its last line" if done.cut else done.headline.title
        seen = self._occurrence(signature, last.line, title, key, fields)
        seen.first_line, seen.exception, seen.uncaught = done.blocks[0].header, last.exception, last.uncaught
        seen.in_thread, seen.in_request = last.in_thread, last.in_request
        if seen.rank is None and signature.role != "wrapper":
            seen.rank, self._spawned = self._spawned, None
        state = self._state_at.pop(last.line, (seen.training, seen.ordinary, None))
        seen.training, seen.ordinary, seen.wall_time = state
        if done.cut and self._number - last.line > _QUIET:
            seen.severity = "warning"  # not the end of the log: its other lines were lost, or written elsewhere
        elif signature.severity != "error" and signature.ended != "interrupted":
            seen.severity = "error"  # a note that became an exception is none
        self._add(seen)

    def _occurrence(
        self, signature: Signature, line: int, message: str, key: int | None, fields: dict[str, Any]
    ) -> Occurrence:
        """An occurrence on this line, with what is known here: rank, time, attempt, progress."""
        if key is None or key < 0:
            named = (fields.get(name) for name in _RANK_FIELDS)
            key = next((rank for rank in named if isinstance(rank, int)), None)
        return Occurrence(
            signature=signature,
            severity=signature.severity,
            line=line,
            first_line=line,
            message=message,
            rank=key,
            wall_time=self._prefix.wall_time,
            fields=fields,
            attempt=self.attempts.number,
            training=self.progress.training,
            ordinary=self.progress.ordinary,
        )

    def _add(self, seen: Occurrence) -> None:
        self.attempts.failed = self.attempts.failed or seen.signature.severity == "error"
        self.progress.mark()
        self.found.add(seen)
