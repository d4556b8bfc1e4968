"""The plain data of a settings file in YAML. PyYAML is imported with the first such file."""

from __future__ import annotations

import re
from typing import Any

import yaml

from postmortem.runs.settings_losses import MOST_LEVELS, Losses, NotUnderstood

MOST_VALUES = 100_000
"""Values of a YAML file with its aliases written out: a few lines of nested aliases can expand to billions."""
MOST_BITS = 4096
"""Of a whole number: Python refuses to print one with more than 4300 digits. A longer one stays text."""

_TOO_DEEP = f"is not read as a configuration: nested more than {MOST_LEVELS} levels deep"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + kind for kind in ("null", "bool", "int", "float")}
_TEXTS = {_TAG + kind for kind in ("str", "timestamp", "value")}
_LISTS = {_TAG + "seq", _TAG + "python/tuple"}
_EXPONENT = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+")
"""A float in YAML 1.2 (1e-3); YAML 1.1, which PyYAML reads, wants a point in it."""


def from_yaml(data: bytes) -> tuple[Any, Losses]:
    """The plain data of a YAML document, and the settings that were lost."""
    try:
        _check_size(data)
        node = yaml.compose(data, Loader=_LOADER)
        document = _PlainYaml()
        found = None if node is None else document.value(node, ())
    except yaml.YAMLError as error:
        if "nesting depth" in str(error):  # the parser's own limit, met before ours
            raise NotUnderstood(_TOO_DEEP) from error
        raise NotUnderstood(f"is not YAML: {' '.join(str(error).split())}") from error
    except _NoPlainData as error:
        tagged = "a Python object, not plain data" if error.tag is None else f"an unknown tag ({error.tag})"
        raise NotUnderstood(f"is not read as a configuration: {tagged}") from error
    return _without_wandb_wrapping(found), document.losses


def _check_size(data: bytes) -> None:
    """Raises NotUnderstood for too many values, and for deep nesting: libyaml's composer would overflow the stack."""
    level = 0
    for count, event in enumerate(yaml.parse(data, Loader=_LOADER)):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise NotUnderstood(_TOO_DEEP)
        if count > 2 * MOST_VALUES:  # a key and its value
            raise NotUnderstood(f"is not read as a configuration: more than {MOST_VALUES} values")


def _without_wandb_wrapping(config: Any) -> Any:
    """W&B's config.yaml holds ``{value: …, desc: …}`` for each key, and its own keys."""
    if not isinstance(config, dict) or not ({"_wandb", "wandb_version"} & config.keys()):
        return config
    own = {key: value for key, value in config.items() if key not in ("_wandb", "wandb_version")}
    return {key: value.get("value", value) if isinstance(value, dict) else value for key, value in own.items()}


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
        self.losses = Losses()
        self.values = 0
        self.constructor = yaml.constructor.SafeConstructor()

    def value(self, node: Any, where: tuple[str, ...]) -> Any:
        """The data of a node whose keys from the top are `where`. _NoPlainData where its tag is not understood."""
        self.values += 1
        if self.values > MOST_VALUES:
            raise NotUnderstood(f"is not read as a configuration: more than {MOST_VALUES} values")
        if len(where) > MOST_LEVELS:
            raise NotUnderstood(_TOO_DEEP)
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
