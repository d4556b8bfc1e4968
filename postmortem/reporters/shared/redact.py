"""A report without what tells who ran it and where: user and host names, paths, addresses, settings and secrets."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from postmortem.core.patterns import later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from postmortem.core.report import Report, RunReport

_FOLDER_OF_A_USER = r"(?:/home/|/Users/|[A-Za-z]:[\\/]Users[\\/])"
_HOME = later(_FOLDER_OF_A_USER + r"(?P<user>[^/\\\s'\":]+)")
_PART = r"[^/\\\s'\"`<>|:;,()\[\]]"
_PATH = later(rf"(?<![\w./\\~-])(?:~|[A-Za-z]:)?[/\\]{{1,2}}(?:{_PART}+[/\\])+(?={_PART})")
_URL = later(r"\b(?P<scheme>[A-Za-z][A-Za-z0-9+]*)://(?!pytorch\.org/)[^\s'\"`<>)\]]+")
_AT_HOST = later(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*")
_ADDRESS = later(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?!\.\d)")
_COMMAND = later(
    r"(?<= -- )[^`\n]+|(?<=`)(?:cd |python|torchrun |accelerate |deepspeed |srun |bash |sh |uv )[^`\n]+"
    r"|(?<=by this command: `)[^`\n]+"
)
_OPTION = later(r"(?P<name>--?[A-Za-z][\w.-]*)(?:=|\s+)(?!-)\S+|(?P<key>\b[\w.]+)=\S+")
_NAMED = later(
    r"\b(?P<word>host(?:name)?|node(?:name|list)?|user(?:name)?)(?P<sep>\s*[:=]\s*['\"]?)(?P<name>[\w.\-\[\]]+)", re.I
)
_EVENT_FILE = later(r"tfevents\.\d+\.(?P<name>[\w.-]+?)(?:\.\d+\.\d+)?(?:\.v2)?(?![\w.-])")
_HOSTS = (
    _EVENT_FILE,
    later(r"(?<![\w.-])(?P<name>[\w.-]+):\d+:\d+ \[\d+\] (?:NCCL|RCCL)\b"),
    later(r"(?<![\w.-])(?P<name>[A-Za-z][\w.-]+)<\d+>"),  # an address with a port, as NCCL prints it
    later(r"\[(?:INFO|WARNING|ERROR|DEBUG)\] \[(?P<name>[A-Za-z][\w.-]*)\] \["),  # DeepSpeed's loggers
    later(r"\b(?:ON|on node|srun: error:|slurmstepd-)\s*(?P<name>[A-Za-z][\w-]*\d[\w.-]*)"),
    later(r"(?<![\w.-])(?P<name>[\w-]+(?:\.[\w-]+)+\.(?:com|org|net|edu|gov|local|internal|lan|cluster))(?![\w-])"),
)
_USERS = (
    later(_FOLDER_OF_A_USER + r"(?P<name>[^/\\\s'\":]+)"),
    later(r"\blogged in as:? (?P<name>[\w.-]+)"),
    later(r"\blogged in as:? [\w.-]+ \((?P<name>[\w.-]+)\)"),  # the entity of W&B
)
_SECRET = later(
    r"(?P<name>\b[\w-]*(?:key|token|secret|passw(?:or)?d|credentials?)[\"']?\s*[:=]\s*[\"']?)(?=[^\s\"',)}]*\d)[^\s\"',)}]{6,}"
    r"|\b(?P<kind>sk|hf|ghp|glpat|xox[bp]|AKIA)[-_]?[A-Za-z0-9_-]{12,}",
    re.I,
)
_SETTINGS = later(
    r"(?P<open>\b(?:\w*namespace|\w*config|\w*arg(?:ument)?s|h(?:yper)?params?|hyperparameters|settings)\b\s*(?:[:=]\s*\{?|\())"
    r"(?=\s*[\"']?[\w.]+[\"']?\s*[:=]).*",
    re.I,
)
"""Settings that a program printed: what follows on the line are their values."""
_STRING_VALUE = later(r"(?P<name>[\"'][\w.-]+[\"']:\s*)(?P<quote>[\"'])[^\"']*(?P=quote)")
_SHORTEST = 3  # letters of a name that is looked for everywhere; shorter ones stand in ordinary words


def redacted(report: Report) -> Report:
    """The same report without user names, host names, addresses, paths, settings and the options of commands.

    Of a path, the last part stays; of an option or a setting, its name. Numbers, steps, tags and messages stay, so
    names that a program printed in another form stay as well: read the page before you publish it.
    """
    texts = list(_texts(report))
    named = {m["name"]: m["word"].lower() for text in texts for m in _NAMED.finditer(text)}
    words = {name: "<user>" if word.startswith("user") else "<host>" for name, word in named.items()}
    words |= dict.fromkeys(_names(_HOSTS, texts), "<host>") | dict.fromkeys(_names(_USERS, texts), "<user>")
    folders = _folders(report)
    hidden_words = _any_of(name for name in words if len(name) >= _SHORTEST)
    below = re.compile(rf"(?<![\w./\\-])(?:{'|'.join(map(re.escape, folders))})[/\\]+") if folders else None

    def hide(text: str) -> str:
        text = _SECRET.sub(lambda m: f"{m['name'] or m['kind'] + '-'}…", text)
        text = _SETTINGS.sub(lambda m: f"{m['open']}…", text)
        text = _COMMAND.sub(lambda m: _OPTION.sub(lambda o: f"{o['name'] or o['key']} …", m[0]), text)
        text = _URL.sub(lambda m: f"{m['scheme']}://…", text)
        text = _PATH.sub("…/", below.sub("…/", text) if below else text)
        text = _ADDRESS.sub("<address>", _AT_HOST.sub("<user>@<host>", text))
        return hidden_words.sub(lambda m: words[m[0]], text) if hidden_words else text

    hidden: Report = _mapped(report, hide)
    return hidden


def _names(patterns: Iterable[re.Pattern[str]], texts: Iterable[str]) -> set[str]:
    """What these patterns name, without the dots at its end."""
    return {m["name"].strip(".") for text in texts for pattern in patterns for m in pattern.finditer(text)}


def _any_of(words: Iterable[str]) -> re.Pattern[str] | None:
    """Any of the words, also as a part of a name: of "alice" in "alice_run", not of "al" in "also"."""
    known = sorted(words, key=len, reverse=True)
    return re.compile("|".join(rf"(?<![A-Za-z0-9]){re.escape(n)}(?![A-Za-z0-9])" for n in known)) if known else None


def _folders(report: Report) -> list[str]:
    """The relative folders of the runs and their files, longest first; absolute ones are known by their form."""
    paths = {p for run in report.runs for p in _paths(run)} | {p.path for p in report.problems}
    found = {head for path in paths if (head := re.split(r"[/\\][^/\\]*$", path)[0]) != path}
    return sorted((f for f in found if f.strip("./\\") and not re.match(r"[/\\~]|[A-Za-z]:", f)), key=len, reverse=True)


def _paths(run: RunReport) -> Iterable[str]:
    yield f"{run.path}/"
    yield run.path
    yield from (file for source in run.sources for file in source.files)
    yield from (checkpoint.path for checkpoint in run.checkpoints)
    yield from (event.file for event in run.events if event.file)


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
