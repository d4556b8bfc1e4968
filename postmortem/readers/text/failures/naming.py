"""Names a traceback: the signature of the catalogue that knows it best, and the fields of its event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from postmortem.signatures import CATALOGUE, Signature, advice

if TYPE_CHECKING:
    from postmortem.readers.text.failures.exceptions import Block, Chain


class _Match(NamedTuple):
    """A signature, the fields that its pattern found, and the text of the exception in which it found them."""

    signature: Signature
    fields: dict[str, Any]
    text: str


def name_chain(chain: Chain) -> tuple[Signature, dict[str, Any]] | None:
    """The signature and the fields of a complete traceback.

    Returns None for a traceback that reports no failure: no signature knows it, or it is the warning of a logger that
    only looks like an exception. A traceback without its last line is always named.
    """
    best = _best_match(chain)
    if best is None:
        return None
    signature, last = best.signature, chain.last
    if not last.had_header and signature.rank == 0 and last.level == "WARNING":
        return None
    told = chain.headline
    fields = signature.detail(best.text) | best.fields | _exception_fields(told)
    if signature.rank == 0 and (fixes := advice(str(fields.get("exception", "")), told.message)):
        fields["advice"] = list(fixes)
    if causes := [block.title[:500] for block in chain.by_cause if block is not told and not block.is_wrapper]:
        fields["causes"] = causes
    if chain.inner is not None:
        fields = _with_inner(fields, chain.inner)
    fields |= _frame_fields(chain, fields)
    if chain.cut:
        fields["cut"] = True
    if signature.follow or last.exception.endswith("ChildFailedError"):
        fields["text"] = last.text
    return signature, fields


def _best_match(chain: Chain) -> _Match | None:
    """The match of highest rank among the exceptions of a chain; the first of equal ones."""
    blocks = (
        [chain.last] if chain.inner is not None else [b for b in chain.blocks if not b.is_wrapper] or [chain.headline]
    )
    matches = [match for block in blocks if (match := _match(block)) is not None]
    if not matches:
        return _Match(CATALOGUE["generic-exception"], {}, "") if chain.cut else None
    return max(matches, key=lambda match: match.signature.rank)


def _match(block: Block) -> _Match | None:
    """Looks one exception up: by its title, by the lines of its message, and by the file that raised it."""
    found = CATALOGUE.match(block.title, exception=True)
    if found is None or found[0].rank == 0:
        below = CATALOGUE.match(block.text, exception=True)
        if below is not None and (below[0].role != "note" or below[0].severity == "error"):
            found = below
    raised = CATALOGUE.match(block.raised, exception=True) if block.frames else None
    if raised is not None and (found is None or raised[0].rank > found[0].rank):
        found = raised
    return _Match(*found, block.text) if found is not None else None


def _exception_fields(last: Block) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if last.exception:
        fields["exception"] = last.exception.rpartition(".")[2]
        fields["exception_class"] = last.exception
    if last.message:
        fields["exception_message"] = last.message[:2000]
    return fields


def _with_inner(fields: dict[str, Any], inner: Block) -> dict[str, Any]:
    """`fields` with those of the exception that a data-loader worker or another rank sent along."""
    fields["exception"] = inner.exception.rpartition(".")[2]
    cause = CATALOGUE.match(inner.title, exception=True)
    if cause is None:
        return fields
    fields["cause_kind"] = cause[0].id
    return cause[0].detail(inner.text) | cause[1] | fields


def _frame_fields(chain: Chain, fields: dict[str, Any]) -> dict[str, Any]:
    """The innermost frame in the user's own code."""
    if "user_file" in fields:  # the compiler quotes the code that it could not compile
        file, line, function, code = fields["user_file"], fields["user_line"], fields["user_function"], ""
    elif (frame := chain.own_frame) is not None:
        file, line, function, code = frame.file, frame.line, frame.function, frame.code
    else:
        return {}
    return {"frame": {"file": file, "line": line, "function": function, "code": code}}
