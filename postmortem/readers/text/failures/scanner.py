"""Goes through the lines of a log and collects what looks like a failure.

A line without any text that a signature looks for is passed over by the prefilter; the rest is peeled of its
prefixes, given to the traceback reader of its rank and matched against the catalogue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from postmortem.readers.text.failures.blame import AFTER_COMPLETION, COMPLETED, COMPLETED_ANCHORS, STRONG, Completion
from postmortem.readers.text.failures.fold import Kept, Occurrence
from postmortem.readers.text.failures.prefilter import Prefilter
from postmortem.readers.text.failures.tracebacks import HEADER, Chain, TracebackReader
from postmortem.readers.text.lines.prefixes import Prefix, labelled, peel
from postmortem.readers.text.steps.announced_length import ANNOUNCED
from postmortem.signatures import CATALOGUE, Signature, advice

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST_LINE = 20_000
_SAMPLE = 500
"""Lines at the start from which the launcher's labels and the number of ranks are learned."""
_BATCH = 256
"""Lines that the prefilter sees at once."""
_QUIET = 300
"""Lines without news of a rank after which its message is taken as finished."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\))")
_PROGRESS = re.compile(r"(?:\b(?:[Ll]oss|[Ss]tep|[Ii]ter|[Ii]teration|[Ee]poch|ppl|lr|eta|[Aa]cc)\b.{0,40}?\d|it/s|s/it|_loss\W)")
_WORLD = re.compile(r"(?i)\bworld[_ ]?size\W{1,4}(\d{1,6})\b")
_STARTS_ANEW = ("slurmstepd:", "srun:", "terminate called", "Fatal Python error", "Killed", "Aborted", "Segmentation fault")
_VARIES = re.compile(r"\d+")
_SPAWNED = re.compile(r"-- Process (\d{1,6}) terminated with the following error:|-{2,40}Begin (?:global )?rank (\d{1,6}) STDERR-{2,40}")
_LONGEST_LEAD = 120
_RANKED_HEADER = re.compile(r"\[(?:rank|default)\d{1,6}\]: ?" + re.escape(HEADER))
"""The first line of a rank's traceback behind a progress bar that had not ended its line."""

_EXCEPTIONS = ("Traceback (most recent call last)", '  File "', "Error:", "Error\n", "Error\r", "Exception:", "Exception\n", "Interrupt")
_SPAWNED_ANCHORS = (" terminated with the following error:", " STDERR---")
_WORLD_ANCHORS = ("orld_size", "orld size", "WORLD_SIZE", "orldSize")


@cache
def prefilter() -> Prefilter:
    """Finds every line that may matter: exceptions, what signatures look for, ends."""
    return Prefilter((*_EXCEPTIONS, *_SPAWNED_ANCHORS, *_WORLD_ANCHORS, *COMPLETED_ANCHORS, *ANNOUNCED, *CATALOGUE.anchors))


@dataclass(slots=True)
class _Follow:
    """A matched line whose signature reads on in the next lines of the same rank."""

    seen: Occurrence
    key: int | None
    left: int
    lines: list[str]


class Scanner:
    """Goes through the lines and collects occurrences."""

    def __init__(self) -> None:
        self.kept = Kept()
        self.progress = 0
        """Bytes of lines that look like training, since the first failure."""
        self.ordinary = 0
        """Lines that are neither of a failure nor warnings of a logger."""
        self._completions: dict[str, Completion] = {}
        self.ranks: set[int] = set()
        self.world_size = 0
        self._completed = re.compile("|".join(COMPLETED))
        self._streams: dict[int | None, TracebackReader] = {}
        self._fed: dict[int | None, int] = {}
        self._follows: list[_Follow] = []
        self._shapes: dict[str, Signature | None] = {}
        self._labels = False
        self._first = ""
        self.attempt = 0
        """Starts of the job after a failure, appended in this file."""
        self._failed = False
        self._number = 0
        self._recent: list[str] = []
        self._counted_from = 0
        self._prefix = Prefix()
        self._spawned: int | None = None
        """Rank of the process whose traceback a launcher prints next."""
        self._leads: dict[int | None, re.Pattern[str]] = {}
        """What stood before the header of the open traceback of each rank, where `peel` does not know it."""
        self._course_at: dict[int, tuple[int, int, float | None]] = {}
        """`progress`, `ordinary` and the time at the last line of an exception, which is complete only after its message."""

    def read(self, lines: Iterable[tuple[int, str]]) -> None:
        stream = iter(lines)
        sample = list(islice(stream, _SAMPLE))
        self._labels = labelled(text[:200] for _, text in sample)
        for _, text in sample:
            self._rank(peel(text[:200], labels=self._labels)[1])
        self._first = next((text.strip() for _, text in sample if text.strip()), "")[:500]
        if HEADER in self._first or len(self._first) < 8:
            self._first = ""
        news = prefilter()
        lines_left = chain(sample, stream)
        while batch := list(islice(lines_left, _BATCH)):
            texts = [text for _, text in batch]
            self._batch(batch, texts, set(news.lines_with(texts)))
            self._recent = (self._recent + texts)[-_BATCH:]

    def _batch(self, batch: list[tuple[int, str]], texts: list[str], hits: set[int]) -> None:
        """Looks at the lines that the prefilter found, and at those around an open traceback."""
        again = self._first if self._failed else None
        if not hits and not self._follows and not self._busy() and again not in texts:
            if self._counting():
                for text in texts:
                    self._count(text)
            self.ordinary += len(texts)
            self._number = batch[-1][0]
            return
        for i, (number, text) in enumerate(batch):
            self._number = number
            if i not in hits and not self._follows and not self._busy() and not (self._failed and text.strip() == self._first):
                if self._counting():
                    self._count(text)
                self.ordinary += 1
                continue
            for part in text.split("\r"):
                if part and not part.isspace():
                    self._line(number, part[:_LONGEST_LINE])
                elif not part and "\r" not in text:
                    self._line(number, part)

    def _counting(self) -> bool:
        """Whether it still matters how much progress there is: only the first part after a failure or an end does."""
        return bool(self.kept.occurrences or self._completions) and self.progress - self._counted_from < 4 * AFTER_COMPLETION

    def last_is_cut(self) -> bool:
        """Whether the last line is the beginning of one that the log wrote in full before."""
        shapes = [_VARIES.sub("0", text.rpartition("\r")[2][:_LONGEST_LINE]).rstrip() for text in self._recent]
        if not shapes or not shapes[-1]:
            return False
        last = shapes.pop()
        return last not in shapes and any(shape.startswith(last) for shape in shapes)

    def close(self) -> list[Occurrence]:
        """All occurrences, in the order of their lines."""
        for key in list(self._streams):
            self._close_stream(key)
        for follow in self._follows:
            self._finish(follow)
        self._follows = []
        return self.kept.close()

    def _started_again(self, text: str) -> None:
        """The first line of the file once more, after a failure: another attempt is appended."""
        if self._first and text.strip() == self._first:
            self._next_attempt()

    def _next_attempt(self) -> None:
        """What was open belongs to the attempt before; without a failure in it there was none."""
        for key in list(self._streams):
            self._close_stream(key)
        self.attempt += self._failed
        self._failed = False

    def _busy(self) -> bool:
        """Whether a traceback is open; one whose rank has been silent for long is closed."""
        busy = False
        for key, stream in list(self._streams.items()):
            if stream.active:
                if self._number - self._fed[key] > _QUIET:
                    self._close_stream(key)
                else:
                    busy = True
        return busy

    def _line(self, number: int, text: str) -> None:
        if "\x1b" in text:
            text = _ESCAPES.sub("", text)
        at = _RANKED_HEADER.search(text) if HEADER in text else None
        rest, prefix = peel(text[at.start() :] if at is not None else text, labels=self._labels)
        self._rank(prefix)
        self._prefix = prefix
        key = prefix.best_rank
        if key is None and prefix.pid is not None:
            key = -1 - prefix.pid  # Ray names processes, not ranks
        spawned = _SPAWNED.match(rest)
        if spawned is not None:
            self._spawned = int(spawned[1] or spawned[2])
        self._started_again(text)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = TracebackReader()
        rest = self._without_lead(rest, key, stream)
        if self._read_on(key, rest) and not stream.active:
            return
        if stream.in_message and not stream.in_table and rest.startswith(_STARTS_ANEW):
            self._close_stream(key)
            stream = self._streams[key]
        for done in stream.feed(number, rest, prefix.level, prefixed=key is not None):
            self._chain(done, key)
        if stream.ended_at == number:
            self._course_at[number] = (self.progress, self.ordinary, prefix.wall_time)
        if stream.took:
            self._fed[key] = number
            return
        self.ordinary += prefix.level not in ("WARNING", "ERROR", "CRITICAL")
        if stream.active or self._counting():
            self._count(rest)
        self._match(number, rest, key)

    def _without_lead(self, text: str, key: int | None, stream: TracebackReader) -> str:
        """A line of an open traceback without the words that stand in front of its header, whatever wrote them there."""
        at = text.find(HEADER, 0, _LONGEST_LEAD + len(HEADER))
        if at >= 0:
            lead = text[:at]
            if lead.strip() and not stream.active:
                self._leads[key] = re.compile(_VARIES.sub(lambda _: r"\d+", re.escape(lead).replace(r"\ ", " ")))
            elif not lead.strip():
                self._leads.pop(key, None)
        if stream.active and (known := self._leads.get(key)) is not None and (found := known.match(text)) is not None:
            return text[found.end() :]
        return text

    def _read_on(self, key: int | None, rest: str) -> bool:
        """Gives a line to the matched lines that read on; whether one of them took it for itself."""
        took = False
        for follow in self._follows:
            if follow.key == key and follow.left > 0:
                follow.left -= 1
                follow.lines.append(rest[:2000])
                took = took or (rest[:1].isspace() and not rest.isspace())
        for follow in [f for f in self._follows if f.left <= 0]:
            self._follows.remove(follow)
            self._finish(follow)
        return took

    def _match(self, number: int, rest: str, key: int | None) -> None:
        """Looks a line up in the catalogue; lines that differ in their numbers only are looked up once."""
        shape = _VARIES.sub("0", rest[:300])
        signature = self._shapes.get(shape)
        fields = signature.match(rest) if signature is not None else None
        if fields is None and (found := CATALOGUE.match(rest)) is not None:
            signature, fields = found
            if len(self._shapes) < 20_000:
                self._shapes[shape] = signature
        if any(anchor in rest for anchor in COMPLETED_ANCHORS):
            self._complete(number, rest[:2000], shape)
        world = _WORLD.search(rest[:2000]) if "orld" in rest or "WORLD" in rest else None
        if world is not None:
            self.world_size = max(self.world_size, int(world[1]))
        if signature is None or fields is None:
            return
        measured = any(isinstance(value, (int, float, list)) for value in fields.values())  # numbers are of something that happened
        if signature.severity == "error" and not measured and signature.only_if(rest):
            return
        seen = self._add(signature, number, number, rest.strip(), key, fields)
        if signature.follow:
            for follow in [f for f in self._follows if f.key == key and f.seen.signature is signature]:
                self._follows.remove(follow)
                self._finish(follow)
            self._follows.append(_Follow(seen, key, signature.follow, [rest]))
        else:
            seen.fields = signature.detail(rest) | seen.fields
        if signature.id == "elastic-restart" or "restart" in fields:  # Slurm counts its restarts
            self._next_attempt()

    def _complete(self, number: int, rest: str, shape: str) -> None:
        """Remembers a line that says that the training is complete."""
        if self._completed.search(rest) is None:
            return
        known = self._completions.get(shape)
        if known is None and len(self._completions) < 1000:
            self._completions[shape] = Completion(number, self.progress, plain=STRONG.search(rest) is not None)
        elif known is not None:
            known.again(number, self.progress)
        self._counted_from = self.progress

    def completion(self) -> Completion | None:
        """The last line that says that the training is complete, unless each epoch says so."""
        found = [c for c in self._completions.values() if c.plain or not c.repeated or self._number - c.line < 10]
        return max(found, key=lambda c: c.line, default=None)

    def _finish(self, follow: _Follow) -> None:
        text = "\n".join(follow.lines)
        seen = follow.seen
        seen.fields = seen.signature.detail(text) | seen.fields | {"text": text[:4000]}
        what = seen.fields.get("what")
        if not isinstance(what, str) or any(o.severity == "error" and o is not seen and o.attempt == seen.attempt for o in self.kept.occurrences):
            return
        known = CATALOGUE.match(what, exception=True)  # nothing but the abort says why
        if known is not None and known[0].rank > seen.signature.rank:
            seen.signature, seen.severity = known[0], known[0].severity
            seen.fields = known[0].detail(what) | known[1] | seen.fields
            seen.message = f"{seen.message}: {what}"

    def _close_stream(self, key: int | None) -> None:
        for done in self._streams[key].close():
            self._chain(done, key)
        self._streams[key] = TracebackReader()

    def _chain(self, done: Chain, key: int | None) -> None:
        """A complete traceback becomes one occurrence, named by the exception that the catalogue knows best."""
        last = done.last
        candidates = [last] if done.inner is not None else done.blocks
        best: tuple[int, Signature, dict[str, Any], str] | None = None
        for block in candidates:
            found = CATALOGUE.match(block.title, exception=True)
            if found is None or found[0].rank == 0:
                below = CATALOGUE.match(block.text, exception=True)
                found = below if below is not None and (below[0].role != "note" or below[0].severity == "error") else found
            raised = CATALOGUE.match(block.raised, exception=True) if block.frames else None
            if raised is not None and (found is None or raised[0].rank > found[0].rank):
                found = raised
            if found is not None and (best is None or found[0].rank > best[0]):
                best = (found[0].rank, found[0], found[1], block.text)
        if best is None:
            if not done.cut:
                return
            best = (0, CATALOGUE["generic-exception"], {}, "")
        _, signature, fields, text = best
        if not last.had_header and signature.rank == 0 and last.level == "WARNING":
            return
        fields = signature.detail(text) | fields
        if last.exception:
            fields["exception"] = last.exception.rpartition(".")[2]
            fields["exception_class"] = last.exception
        if last.message:
            fields["exception_message"] = last.message[:2000]
        if signature.rank == 0 and (fixes := advice(str(fields.get("exception", "")), last.message)):
            fields["advice"] = list(fixes)
        causes = [block.title[:500] for block in done.by_cause if block is not last]
        if causes:
            fields["causes"] = causes
        if done.inner is not None:
            fields["exception"] = done.inner.exception.rpartition(".")[2]
            cause = CATALOGUE.match(done.inner.title, exception=True)
            if cause is not None:
                fields["cause_kind"] = cause[0].id
                fields = cause[0].detail(done.inner.text) | cause[1] | fields
        frame = done.own_frame
        if "user_file" in fields:  # the compiler quotes the code that it could not take
            fields["frame"] = {"file": fields["user_file"], "line": fields["user_line"], "function": fields["user_function"], "code": ""}
        elif frame is not None:
            fields["frame"] = {"file": frame.file, "line": frame.line, "function": frame.function, "code": frame.code}
        if done.cut:
            fields["cut"] = True
        if signature.follow or done.last.exception.endswith("ChildFailedError"):
            fields["text"] = last.text
        end = last.line + len(last.more)
        recent = max(0, len(self.kept.occurrences) - 2 * len(last.more) - _BATCH)  # what the lines of its message were taken for
        said = [o for o in self.kept.occurrences[recent:] if not (o.signature is signature and last.line < o.line <= end and not o.exception)]
        self.kept.occurrences[recent:] = said
        title = "a traceback without its last line" if done.cut else last.title
        seen = self._add(signature, last.line, done.blocks[0].header, title, key, fields, last.exception)
        seen.uncaught = last.uncaught
        if seen.rank is None and signature.role != "wrapper":
            seen.rank, self._spawned = self._spawned, None
        seen.progress, seen.ordinary, seen.wall_time = self._course_at.pop(last.line, (seen.progress, seen.ordinary, None))
        if done.cut and self._number - last.line > _QUIET:
            seen.severity = "warning"  # not the end of the log: its other lines were lost, or written elsewhere
        elif signature.severity != "error" and signature.ended != "interrupted":
            seen.severity = "error"  # a note that became an exception is none

    def _add(
        self, signature: Signature, line: int, first: int, message: str, key: int | None, fields: dict[str, Any], exception: str = ""
    ) -> Occurrence:
        if key is None or key < 0:
            key = next((fields[name] for name in ("bad_rank", "spawn_rank", "diag_rank", "waiting_rank") if isinstance(fields.get(name), int)), None)
        seen = Occurrence(
            signature=signature,
            severity=signature.severity,
            line=line,
            first_line=first,
            message=message,
            rank=key,
            wall_time=self._prefix.wall_time,
            fields=fields,
            exception=exception,
            attempt=self.attempt,
            progress=self.progress,
            ordinary=self.ordinary,
        )
        self._failed = self._failed or signature.severity == "error"
        self._counted_from = self.progress
        self.kept.add(seen)
        return seen

    def _count(self, text: str) -> None:
        """Progress after a failure: bytes of lines that look like training."""
        if _PROGRESS.search(text[:400]) is not None:
            self.progress += min(len(text), 4096) + 1

    def _rank(self, prefix: Prefix) -> None:
        rank = prefix.best_rank
        if rank is not None and rank < 100_000:
            self.ranks.add(rank)
