"""A report without what tells who ran it and where: user and host names, absolute paths, options of the command."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from postmortem.core.report import Report

_HOME = re.compile(r"(?:/home/|/Users/|[A-Za-z]:[\\/]Users[\\/])(?P<user>[^/\\\s'\":]+)")
_PART = r"[^/\\\s'\"`<>|:;,()\[\]]"
_PATH = re.compile(rf"(?<![\w.:/\\~-])(?:~|[A-Za-z]:)?[/\\](?:{_PART}+[/\\])+(?={_PART})")
_AT_HOST = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?!\.\d)")
_COMMAND = re.compile(
    r"(?<= -- )[^`\n]+|(?<=`)(?:cd |python|torchrun |accelerate |deepspeed |srun |bash |sh |uv )[^`\n]+"
    r"|(?<=by this command: `)[^`\n]+"
)
_OPTION = re.compile(r"(?P<name>--?[A-Za-z][\w.-]*)(?:=|\s+)(?!-)\S+|(?P<key>\b[\w.]+)=\S+")
_NAMED = re.compile(
    r"\b(?P<word>host(?:name)?|node(?:name|list)?|user(?:name)?)(?P<sep>\s*[:=]\s*['\"]?)(?P<name>[\w.\-\[\]]+)", re.I
)
_EVENT_FILE = re.compile(r"tfevents\.\d+\.(?P<host>[\w.-]+?)(?:\.\d+\.\d+)?(?:\.v2)?(?![\w.-])")
_SHORTEST = 3  # letters of a name that is looked for everywhere; shorter ones stand in ordinary words


def redacted(report: Report) -> Report:
    """The same report without user names, host names, addresses, absolute paths and the options of commands.

    Of a path, the last part stays; of an option, its name. Numbers, steps, tags and messages stay, so names that a
    program printed in another form stay as well: read the page before you publish it.
    """
    texts = list(_texts(report))
    users = {m["user"] for text in texts for m in _HOME.finditer(text)}
    named = {m["name"]: m["word"].lower() for text in texts for m in _NAMED.finditer(text)}
    hosts = {m["host"] for text in texts for m in _EVENT_FILE.finditer(text)}
    words = dict.fromkeys(hosts, "<host>") | dict.fromkeys(users, "<user>")
    words |= {name: "<user>" if word.startswith("user") else "<host>" for name, word in named.items()}
    words = {name: mark for name, mark in words.items() if len(name) >= _SHORTEST}
    known = sorted(words, key=len, reverse=True)
    found = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in known)) if known else None

    def hide(text: str) -> str:
        text = _COMMAND.sub(lambda m: _OPTION.sub(lambda o: f"{o['name'] or o['key']} …", m[0]), text)
        text = _PATH.sub("…/", text)
        text = _ADDRESS.sub("<address>", _AT_HOST.sub("<user>@<host>", text))
        return found.sub(lambda m: words[m[0]], text) if found else text

    hidden: Report = _mapped(report, hide)
    return hidden


def _texts(thing: Any) -> Iterable[str]:
    if isinstance(thing, str):
        yield thing
    elif is_dataclass(thing) and not isinstance(thing, type):
        for field in fields(thing):
            if field.name != "run":
                yield from _texts(getattr(thing, field.name))
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from _texts(key)
            yield from _texts(value)
    elif isinstance(thing, (list, tuple)):
        for item in thing:
            yield from _texts(item)


def _mapped(thing: Any, hide: Callable[[str], str]) -> Any:
    """A copy of a report, or of a part of it, with `hide` applied to every text. The numbers of runs are left out."""
    if isinstance(thing, str):
        return hide(thing)
    if is_dataclass(thing) and not isinstance(thing, type):
        parts = {f.name: None if f.name == "run" else _mapped(getattr(thing, f.name), hide) for f in fields(thing)}
        return replace(thing, **parts)
    if isinstance(thing, dict):
        return {_mapped(key, hide): _mapped(value, hide) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return type(thing)(_mapped(item, hide) for item in thing)
    return thing
