"""The configuration of a run: what its logs contain, and the settings file that the training saved next to them.

This is the only place that looks for such a file; a scan and a replay use the same answer (`Run.config`).
"""

from __future__ import annotations

import json
import re
import stat
from collections import Counter
from typing import TYPE_CHECKING, Any

import yaml

from postmortem.checkpoints.find import folders_above, home_of, names_a_checkpoint
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from postmortem.core.run import Run
    from postmortem.runs.claimed import RunFiles

NAMES = (
    "config.json",
    "hparams.json",
    "args.json",
    "hparams.yaml",  # Lightning's loggers
    "config.yaml",  # W&B, detectron2, many training scripts
    "config.yml",
    "args.yaml",  # timm, Ultralytics
    ".hydra/config.yaml",  # Hydra's composed configuration
)
"""Names of settings files, relative to a folder of the run; the first that holds settings counts."""
MOST_BYTES = 1 << 20
MOST_VALUES = 100_000
"""Values of a YAML file with its aliases written out: a few lines of nested aliases can expand to billions."""
MOST_LEVELS = 50
MOST_BITS = 4096
"""Of a whole number: Python refuses to print one with more than 4300 digits. A longer one stays text."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + kind for kind in ("null", "bool", "int", "float")}
_TEXTS = {_TAG + kind for kind in ("str", "timestamp", "value")}
_LISTS = {_TAG + "seq", _TAG + "python/tuple"}
_EXPONENT = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+")
"""A float in YAML 1.2 (1e-3); YAML 1.1, which PyYAML reads, wants a point in it."""


def config_of_run(
    logged: dict[str, Any],
    files: RunFiles,
    roots: Sequence[Path],
    shared: Collection[Path],
    problems: list[Problem],
    notes: list[str],
) -> dict[str, Any]:
    """The configuration of a run: what its logs contain (`logged`), overridden by the settings file next to them.

    The file is searched for in the folder of the run, in those of its logs, and in the folders above them up to one
    of `roots`, as long as these are not `shared` with other runs. What cannot be understood is added to `problems`,
    and settings files that are not used, because another one is, to `notes`.
    """
    own = files.path if files.path.is_dir() else files.path.parent
    of_logs = (part.path.parent for part in files.parts)
    inside = [folder for folder in of_logs if not names_a_checkpoint(folder)]  # there it is the model's, not the run's
    return {**logged, **find_config([own, *inside, *folders_above(own, roots, shared)], problems, notes)}


def config_for_replay(run: Run | None, target: Path, problems: list[Problem]) -> dict[str, Any]:
    """The configuration for a replay of `target`: that of its run, over the settings file saved with a checkpoint."""
    folder = target if target.is_dir() else target.parent
    beside = find_config([folder, home_of(folder) if run is not None else folder.parent], problems)
    return {**beside, **(run.config if run is not None else {})}


def find_config(folders: Iterable[Path], problems: list[Problem], notes: list[str] | None = None) -> dict[str, Any]:
    """The settings of the first file in `folders` that has one of `NAMES` and holds any; {} if there is none.

    If `notes` is given, the later files that hold settings as well are named there. Their problems do not count.
    """
    paths = (folder / name for folder in dict.fromkeys(folders) for name in NAMES)
    for path in paths:
        if found := _settings_in(path, problems):
            unused = [str(other) for other in paths if _settings_in(other, [])] if notes is not None else []
            if notes is not None and unused:
                notes.append(f"the configuration is that of {path}; not used: {_listed(unused)}")
            return found
    return {}


def _settings_in(path: Path, problems: list[Problem]) -> dict[str, Any]:
    try:
        status = path.stat()
    except OSError:
        return {}  # not there
    if not stat.S_ISREG(status.st_mode):
        return {}
    try:
        if status.st_size > MOST_BYTES:
            raise _NotUnderstood(f"is not read as a configuration: {status.st_size} bytes, more than {MOST_BYTES}")
        found, losses = (_from_json if path.suffix == ".json" else _from_yaml)(path.read_bytes())
        if found is not None and not isinstance(found, dict):
            raise _NotUnderstood("is not a configuration: it contains no names with values")
    except (OSError, _NotUnderstood) as error:
        what = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        problems.append(Problem(path=str(path), what=what, lost="the run's configuration", kind="settings"))
        return {}
    problems += losses.problems(str(path))
    return found or {}


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


class _Losses:
    """The names of settings of which a value was dropped while a file was read, dotted in YAML."""

    def __init__(self) -> None:
        self.python_objects: list[str] = []
        self.tagged: list[tuple[str, str]] = []  # name, tag
        self.repeated: list[str] = []

    def problems(self, path: str) -> Iterator[Problem]:
        """One Problem for each reason. The files are in order and nothing of the training's data is lost with them."""
        others = "the other settings"
        if names := self.python_objects:
            what = f"values that are not plain data (Python objects), not read: {_listed(names)}"
            yield Problem(path=path, what=what, kept=others, kind="settings")
        if names := [name for name, _ in self.tagged]:
            tags = list(dict.fromkeys(tag for _, tag in self.tagged))
            what = f"values with an unknown tag ({_listed(tags)}), not read: {_listed(names)}"
            yield Problem(path=path, what=what, kept=others, kind="settings")
        if names := list(dict.fromkeys(self.repeated)):
            what, kept = f"duplicate keys: {_listed(names)}", "the last value of each key"
            yield Problem(path=path, what=what, kept=kept, kind="settings")


def _from_json(data: bytes) -> tuple[Any, _Losses]:
    losses = _Losses()

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            losses.repeated += [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        return found

    try:
        found = json.loads(data.decode("utf-8-sig"), object_pairs_hook=mapping)
    except (ValueError, RecursionError) as error:
        raise _NotUnderstood(f"is not JSON: {error}") from error
    level = [found]
    for _ in range(MOST_LEVELS + 1):
        containers = (held for held in level if isinstance(held, (dict, list)))
        level = [inner for held in containers for inner in (held.values() if isinstance(held, dict) else held)]
    if level:
        raise _NotUnderstood(f"is not read as a configuration: nested more than {MOST_LEVELS} levels deep")
    return found, losses


def _from_yaml(data: bytes) -> tuple[Any, _Losses]:
    """The plain data of a YAML document, and the settings that were lost."""
    try:
        _check_size(data)
        node = yaml.compose(data, Loader=_LOADER)
        document = _PlainYaml()
        found = None if node is None else document.value(node, ())
    except yaml.YAMLError as error:
        raise _NotUnderstood(f"is not YAML: {' '.join(str(error).split())}") from error
    except _NoPlainData as error:
        tagged = "a Python object, not plain data" if error.tag is None else f"an unknown tag ({error.tag})"
        raise _NotUnderstood(f"is not read as a configuration: {tagged}") from error
    return _without_wandb_wrapping(found), document.losses


def _check_size(data: bytes) -> None:
    """Raises _NotUnderstood for too many values, and for deep nesting: libyaml's composer would overflow the stack."""
    level = 0
    for count, event in enumerate(yaml.parse(data, Loader=_LOADER)):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise _NotUnderstood(f"is not read as a configuration: nested more than {MOST_LEVELS} levels deep")
        if count > 2 * MOST_VALUES:  # a key and its value
            raise _NotUnderstood(f"is not read as a configuration: more than {MOST_VALUES} values")


def _without_wandb_wrapping(config: Any) -> Any:
    """W&B's config.yaml holds ``{value: …, desc: …}`` for each key, and its own keys."""
    if not isinstance(config, dict) or not ({"_wandb", "wandb_version"} & config.keys()):
        return config
    own = {key: value for key, value in config.items() if key not in ("_wandb", "wandb_version")}
    return {key: value.get("value", value) if isinstance(value, dict) else value for key, value in own.items()}


class _NotUnderstood(Exception):
    """A file that is not used; the message says why."""


class _NoPlainData(Exception):
    """A value that only its own program could build. tag: its tag, if it is unknown and not one of Python."""

    def __init__(self, tag: str | None = None) -> None:
        known = tag is None or tag in _SCALARS or tag.startswith(_TAG + "python/")
        self.tag = None if tag is None or known else tag.replace(_TAG, "!!")


class _PlainYaml:
    """Numbers, texts, lists and mappings of a composed YAML document; nothing in it is executed.

    `losses` are the keys whose values are tagged as something else (``!!python/object``), and the duplicate keys.
    """

    def __init__(self) -> None:
        self.losses = _Losses()
        self.values = 0
        self.constructor = yaml.constructor.SafeConstructor()

    def value(self, node: Any, where: tuple[str, ...]) -> Any:
        """The data of a node whose keys from the top are `where`. _NoPlainData where its tag is not understood."""
        self.values += 1
        if self.values > MOST_VALUES:
            raise _NotUnderstood(f"is not read as a configuration: more than {MOST_VALUES} values")
        if len(where) > MOST_LEVELS:
            raise _NotUnderstood(f"is not read as a configuration: nested more than {MOST_LEVELS} levels deep")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, where)
        if isinstance(node, yaml.SequenceNode) and node.tag in _LISTS:
            return [self.value(inner, (*where, str(i))) for i, inner in enumerate(node.value)]
        raise _NoPlainData(node.tag)

    def _scalar(self, node: Any) -> Any:
        if node.tag == _TAG + "str" and not node.style and _EXPONENT.fullmatch(node.value):
            return float(node.value)
        if node.tag in _TEXTS:
            return node.value
        if node.tag not in _SCALARS:
            raise _NoPlainData(node.tag)
        try:
            found = self.constructor.construct_object(node)
        except (ValueError, LookupError) as error:  # an explicit tag: !!int x, !!bool x, !!int ""
            raise _NoPlainData from error
        return node.value if isinstance(found, int) and found.bit_length() > MOST_BITS else found

    def _mapping(self, node: Any, where: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        seen: set[str] = set()
        for key, inner in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            try:
                if key.tag == _TAG + "merge":
                    for source in inner.value if isinstance(inner, yaml.SequenceNode) else [inner]:
                        for inherited, value in self._merged(source, where).items():
                            merged.setdefault(inherited, value)
                elif not isinstance(key, yaml.ScalarNode):
                    raise _NoPlainData
                else:
                    if name in seen:
                        self.losses.repeated.append(".".join((*where, name)))
                    seen.add(name)
                    found[name] = self.value(inner, (*where, name))
            except _NoPlainData as error:
                self._leave_out(".".join((*where, name)), error.tag)
        return merged | found

    def _leave_out(self, name: str, tag: str | None) -> None:
        if tag is None:
            self.losses.python_objects.append(name)
        else:
            self.losses.tagged.append((name, tag))

    def _merged(self, node: Any, where: tuple[str, ...]) -> dict[str, Any]:
        """The mapping that ``<<: *name`` merges."""
        value = self.value(node, (*where, "<<"))
        if not isinstance(value, dict):
            raise _NoPlainData
        return value
