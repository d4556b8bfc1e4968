"""Settings: ``[tool.postmortem]`` of the nearest pyproject.toml, overridden by the command line.

[tool.postmortem]
select = ["NAN", "loss-spike"]      # codes, prefixes of codes, or names
ignore = ["SYS"]
fail-on = "warning"
[tool.postmortem.roles]
"my/objective" = "loss"
[tool.postmortem.detectors.loss-spike]
z = 6.0
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.core.errors import UsageError, did_you_mean
from postmortem.core.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FAIL_ON = ("error", "warning", "never")
_KINDS: dict[type[Any], str] = {dict: "a table", list: "a list of codes or names", str: "a string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of a scan."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = "error"
    roles: Mapping[str, str] = field(default_factory=dict)
    detectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origin: str = field(default="", compare=False)
    """The file that the settings are from; no setting itself."""

    def selects(self, code: str, name: str) -> bool:
        """Whether `select` and `ignore` allow this finding. `ignore` wins, even over a more specific `select`."""
        wanted = not self.select or any(_fits(s, code, name) for s in self.select)
        return wanted and not any(_fits(s, code, name) for s in self.ignore)


def _fits(selector: str, code: str, name: str) -> bool:
    return selector == name or (selector.isupper() and code.startswith(selector))


def load_config(folder: Path | None = None) -> Config:
    """The settings of the nearest pyproject.toml at or above `folder`. Raises UsageError for an unknown key."""
    try:
        start = (folder or Path.cwd()).resolve()
    except FileNotFoundError:  # the working directory is gone
        return Config()
    for path in (p / "pyproject.toml" for p in (start, *start.parents)):
        if path.is_file():
            try:
                whole = tomllib.loads(path.read_text(encoding="utf-8"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
                raise UsageError(f"{path}: not valid TOML: {error}") from error
            except OSError as error:
                raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
            tool = _checked(whole.get("tool", {}), dict, f"{path}: tool")
            return make_config(_checked(tool.get("postmortem", {}), dict, f"{path}: tool.postmortem"), where=str(path))
    return Config()


def _checked(value: Any, kind: type[Any], where: str) -> Any:
    """`value` where it is of this kind, else UsageError."""
    if not isinstance(value, kind):
        raise UsageError(f"{where} is {value!r}, not {_KINDS[kind]}")
    return value


def make_config(table: Mapping[str, Any], *, where: str) -> Config:
    """Validates a table of settings. Raises UsageError for an unknown key or value, with a suggestion."""
    known = {f.name.replace("_", "-"): f.name for f in dataclasses.fields(Config) if f.compare}
    for key in table:
        if key not in known:
            raise UsageError(f"{where}: unknown setting {key!r}{did_you_mean(key, known)}")
    values = {known[k]: v for k, v in table.items()}
    for key in ("select", "ignore"):
        given = values.get(key, [])
        values[key] = tuple(
            _checked(one, str, f"{where}: {key}")
            for one in _checked([given] if isinstance(given, str) else given, list, f"{where}: {key}")
        )
    if (fail_on := values.get("fail_on", "error")) not in FAIL_ON:
        raise UsageError(f"{where}: fail-on is {fail_on!r}, not one of {', '.join(FAIL_ON)}")
    check_roles(_checked(values.get("roles", {}), dict, f"{where}: roles"), where=where)
    for name, options in _checked(values.get("detectors", {}), dict, f"{where}: detectors").items():
        _checked(options, dict, f"{where}: detectors.{name}")
    return Config(**values, origin=where)


def check_roles(roles: Mapping[str, str], *, where: str) -> None:
    """Raises UsageError if a tag is given an unknown role."""
    for tag, role in roles.items():
        if _checked(role, str, f"{where}: role of {tag!r}") not in ROLES:
            hint = f"{did_you_mean(role, ROLES)}; the roles are {', '.join(ROLES)}"
            raise UsageError(f"{where}: unknown role {role!r} (of tag {tag!r}){hint}")


def parse_roles(items: Iterable[str]) -> dict[str, str]:
    """``TAG=ROLE`` options of the command line as a dict. Raises UsageError for another form or an unknown role."""
    roles = {}
    for item in items:
        tag, equals, role = item.rpartition("=")
        if not equals or not tag:
            raise UsageError(f"--role: {item!r} is not TAG=ROLE")
        roles[tag] = role
    check_roles(roles, where="--role")
    return roles


def check_selectors(selectors: Iterable[str], known: Iterable[tuple[str, str]], *, where: str) -> None:
    """Raises UsageError if a selector matches no (code, name) of `known`."""
    pairs = list(known)
    for selector in selectors:
        if not any(_fits(selector, code, name) for code, name in pairs):
            whole = next(
                (s for s in (selector.upper(), selector.lower()) if any(_fits(s, *pair) for pair in pairs)), ""
            )
            hint = (
                f"; did you mean {whole!r}?" if whole else did_you_mean(selector, [x for pair in pairs for x in pair])
            )
            raise UsageError(f"{where}: unknown finding {selector!r}{hint}; see `postmortem rules`")


def make_options(options: type[Any], table: Mapping[str, Any], *, where: str) -> Any:
    """An options dataclass from a table. Raises UsageError for an unknown key or a value of the wrong type."""
    fields = {f.name: f for f in dataclasses.fields(options)}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise UsageError(f"{where}: unknown option {key!r}{did_you_mean(key, fields)}")
        default = fields[name].default
        if isinstance(default, (int, float)) and (
            not isinstance(value, (int, float)) or isinstance(value, bool) != isinstance(default, bool)
        ):
            raise UsageError(f"{where}: {key} = {value!r} is not a {type(default).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{where}: {key} = {value!r} is not a finite number")
    return options(**{k.replace("-", "_"): v for k, v in table.items()})
