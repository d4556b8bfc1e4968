"""The configuration of a run: one answer for a scan and a replay."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import postmortem
from postmortem.api import exit_code
from postmortem.core.view import View
from postmortem.reporters import RenderOptions
from postmortem.reporters.text import render as text_report

TABLE = "epoch,step,train_loss\n" + "".join(f"{step // 50},{step},{2 - 0.01 * step}\n" for step in range(100))


RECIPE = """
from pathlib import Path

def recipe(ctx):
    Path({asked!r}).write_text(repr(ctx.config))
    raise ValueError("enough")
"""


def lightning(folder: Path, hparams: str) -> Path:
    """A folder as Lightning's CSVLogger leaves it."""
    version = folder / "lightning_logs" / "version_0"
    version.mkdir(parents=True)
    (version / "metrics.csv").write_text(TABLE)
    (version / "hparams.yaml").write_text(hparams)
    return folder


def config(folder: Path, name: str, text: str | bytes) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The configuration of a run with this settings file, and (what, lost) of its problems."""
    (folder / "metrics.csv").write_text(TABLE)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    run = postmortem.load(folder)
    assert all(p.path == str(path) for p in run.problems)
    return run.config, [(p.what, p.lost) for p in run.problems]


def test_a_lightning_run_that_stops_early_is_a_silent_death(tmp_path: Path) -> None:
    """The hyperparameters of a Lightning folder are the run's configuration, so its planned length is known."""
    report = postmortem.scan(lightning(tmp_path / "exp", "lr: 0.1\nmax_epochs: 10\n")).runs[0]
    assert report.run is not None
    assert report.run.config == {"lr": 0.1, "max_epochs": 10}
    (silent,) = (f for f in report.findings if f.name == "silent-death")
    assert silent.evidence == {"done": 2.0, "planned": 10.0, "unit": "epoch"}


def test_a_replay_gets_the_configuration_of_the_scan(tmp_path: Path) -> None:
    """`ctx.config` of a recipe is `Run.config`."""
    torch = pytest.importorskip("torch")
    folder = lightning(tmp_path / "exp", "lr: 0.1\noptim:\n  name: sgd\n")
    torch.save({"model": {"w": torch.ones(1)}, "step": 10}, folder / "step_10.pt")
    asked = tmp_path / "config.txt"
    (folder / "recipe.py").write_text(RECIPE.format(asked=str(asked)))
    with pytest.raises(postmortem.PostmortemError, match="enough"):
        postmortem.api.replay(folder)
    assert asked.read_text() == repr(postmortem.load(folder).config) == "{'lr': 0.1, 'optim': {'name': 'sgd'}}"


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("config.json", '{"lr": 0.1, "optim": {"name": "sgd"}}', {"lr": 0.1, "optim": {"name": "sgd"}}),
        ("hparams.yaml", "lr: 1e-3\nbetas: !!python/tuple [0.9, 0.999]\n", {"lr": 0.001, "betas": [0.9, 0.999]}),
        ("config.yaml", "wandb_version: 1\n_wandb:\n  value: {a: 1}\nlr:\n  desc: null\n  value: 0.1\n", {"lr": 0.1}),
        (
            "config.yml",
            "base: &base {lr: 0.1, size: 3}\nown: {<<: *base, lr: 2}\n",
            {"base": {"lr": 0.1, "size": 3}, "own": {"lr": 2, "size": 3}},
        ),
        (
            "args.yaml",
            "# timm\nlr: 0.1\nsched: 'a b'\namp: true\nclip: null\ndate: 2026-01-01\n",
            {"lr": 0.1, "sched": "a b", "amp": True, "clip": None, "date": "2026-01-01"},
        ),
        (".hydra/config.yaml", "trainer:\n  max_epochs: 10\n", {"trainer": {"max_epochs": 10}}),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_settings_files(tmp_path: Path, name: str, text: str, found: dict[str, Any]) -> None:
    """Each usual name and style of a settings file is read, nested keys included."""
    assert config(tmp_path, name, text) == (found, [])


def test_nested_settings_count(tmp_path: Path) -> None:
    """Detectors find a setting by the last part of its key at any level, outer levels first."""
    (tmp_path / "metrics.csv").write_text(TABLE)
    text = "generator: {optim: {lr: 0.1}}\noptim: {lr: 0.3}\nmodel.lr: 0.5\nsteps: {value: 7}\n"
    (tmp_path / "config.yaml").write_text(text)
    view = View(postmortem.load(tmp_path))
    rates = [("model.lr", 0.5), ("optim.lr", 0.3), ("generator.optim.lr", 0.1)]
    assert list(view.settings("steps", "lr")) == [("steps", 7.0), *rates]


def test_python_objects_are_left_out_and_never_built(tmp_path: Path) -> None:
    """Lightning dumps whatever it is given: keys with Python objects are reported by name, the others are kept."""
    made = tmp_path / "made"
    optim = "optim:\n  kind: adam\n  dtype: !!python/name:torch.float32 ''\n"
    text = f"lr: 0.1\nroot: !!python/object/apply:os.mkdir [{made}]\n{optim}"
    found, problems = config(tmp_path, "hparams.yaml", text)
    assert found == {"lr": 0.1, "optim": {"kind": "adam"}}
    assert problems == [("values that are not plain data (Python objects), not read: root, optim.dtype", "")]
    assert not made.exists()


def test_an_unknown_tag_is_not_called_a_python_object(tmp_path: Path) -> None:
    """A key with a tag of an application is left out, and the problem names the tag."""
    found, problems = config(tmp_path, "hparams.yaml", "lr: !lr 0.1\nsize: 3\nkind: !!python/name:a.B ''\n")
    assert found == {"size": 3}
    assert problems == [
        ("values that are not plain data (Python objects), not read: kind", ""),
        ("values with an unknown tag (!lr), not read: lr", ""),
    ]


@pytest.mark.parametrize(
    ("name", "text", "keys"),
    [
        ("config.json", '{"lr": 0.2, "optim": {"name": 1, "name": "sgd"}, "lr": 0.1}', "name, lr"),
        ("hparams.yaml", "lr: 0.2\noptim: {name: 1, name: sgd}\nlr: 0.1\n", "optim.name, lr"),
    ],
)
def test_duplicate_keys_are_a_problem(tmp_path: Path, name: str, text: str, keys: str) -> None:
    """The last value of a key counts; the problem names the keys of which an earlier value was dropped."""
    found, problems = config(tmp_path, name, text)
    assert found == {"lr": 0.1, "optim": {"name": "sgd"}}
    assert problems == [(f"duplicate keys: {keys}", "")]  # nothing is lost: exit code 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", '{"lr": 0.2, "lr": 0.1}'),
        ("hparams.yaml", "lr: 0.1\nopts: !!python/object:argparse.Namespace {a: 1}\nkind: !lr 3\n"),
    ],
)
def test_settings_that_are_not_understood_make_no_run_suspect(tmp_path: Path, name: str, text: str) -> None:
    """Such problems are listed; they are no damage to the log, so a healthy run stays healthy."""
    (tmp_path / "metrics.csv").write_text("step,loss\n" + "".join(f"{i},{2 / (1 + i / 10)}\n" for i in range(100)))
    (tmp_path / name).write_text(text)
    report = postmortem.scan(tmp_path)
    assert report.runs[0].problems
    assert (report.runs[0].verdict, exit_code(report, "error")) == ("healthy", 0)
    assert {problem.kind for problem in report.runs[0].problems} == {"settings"}
    lines = text_report(report, RenderOptions()).splitlines()
    assert any(line.startswith("settings") for line in lines)
    assert not any(line.startswith("damage") for line in lines)


def test_a_key_that_overrides_a_merged_one_is_no_duplicate(tmp_path: Path) -> None:
    """`<<` gives defaults: a key beside it replaces the inherited value by design."""
    text = "base: &base {lr: 0.1}\nown: {<<: *base, lr: 2}\n"
    assert config(tmp_path, "args.yaml", text) == ({"base": {"lr": 0.1}, "own": {"lr": 2}}, [])


def test_json_with_a_byte_order_mark(tmp_path: Path) -> None:
    """JSON that an editor on Windows saved starts with a UTF-8 byte order mark, which is skipped."""
    assert config(tmp_path, "config.json", b'\xef\xbb\xbf{"lr": 0.1}') == ({"lr": 0.1}, [])


def test_a_note_names_the_settings_files_that_are_not_used(tmp_path: Path) -> None:
    """Of two good settings files, a note of the run says which one counts; a broken one is not mentioned."""
    (tmp_path / "hparams.yaml").write_text("lr: 0.2\n")
    (tmp_path / "args.yaml").write_text("lr: [\n")
    assert config(tmp_path, "config.json", '{"lr": 0.1}') == ({"lr": 0.1}, [])
    (note,) = (n for n in postmortem.load(tmp_path).notes if "not used" in n)
    used, unused = tmp_path / "config.json", tmp_path / "hparams.yaml"
    assert note == f"the configuration is that of {used}; not used: {unused}"
    unused.unlink()
    assert not any("not used" in n for n in postmortem.load(tmp_path).notes)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    """An empty text tagged as a number is left out; a number with too many digits to be printed stays text."""
    found, problems = config(tmp_path, "args.yaml", f"lr: 0.1\nsize: !!int ''\nseed: 0x{'f' * 9999}\n")
    assert found == {"lr": 0.1, "seed": "0x" + "f" * 9999}
    assert [what.rpartition(": ")[2] for what, _ in problems] == ["size"]


def test_the_largest_file(tmp_path: Path) -> None:
    """One of exactly the bytes allowed is read."""
    text = "lr: 1\n"
    assert config(tmp_path, "args.yaml", text + "#" * (2**20 - len(text))) == ({"lr": 1}, [])


PAIRS = zip("abcdefgh", "bcdefghi", strict=True)
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(f"{b}: &{b} [{', '.join(9 * ['*' + a])}]\n" for a, b in PAIRS)
MERGES = LAUGHS.replace("[x, x, x, x, x, x, x, x, x]", "{x: 1}").replace(" [", " {<<: [").replace("]\n", "]}\n")


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("config.yaml", LAUGHS, "more than 100000 values"),
        ("config.yaml", MERGES, "more than 100000 values"),
        ("config.yaml", "a: " + "[" * 200_000, "nested more than 50 levels deep"),
        ("config.yaml", "a: &a [*a]", "nested more than 50 levels deep"),
        ("config.yaml", "a: [1, 2\nb: 3\n", "is not YAML"),
        ("config.yaml", b"a: \xff\xfe", "is not YAML"),
        ("config.yaml", "!!python/object:a.B {x: 1}", "a Python object"),
        ("config.yaml", "!app {x: 1}", "an unknown tag (!app)"),
        ("config.yaml", "a: 1\n" * 300_000, "more than 1048576"),
        ("config.yaml", "just words", "not a configuration"),
        ("config.json", "[1, 2]", "not a configuration"),
        ("config.json", '{"a": 1', "is not JSON"),
        ("config.json", '{"a":' * 100_000, "is not JSON"),
        ("config.json", '{"a":' * 900 + "1" + "}" * 900, "nested more than 50 levels deep"),
    ],
    ids=[
        *("laughs", "merges", "deep", "itself", "open", "bytes", "object", "tag", "large", "words", "list", "cut"),
        *("deep-json", "deeper-than-python"),
    ],
)
def test_a_file_that_is_not_understood(tmp_path: Path, name: str, text: str | bytes, what: str) -> None:
    """Broken, absurd and hostile files are a Problem that says why, at once; the next name is tried."""
    (tmp_path / "args.yaml").write_text("lr: 0.1\n")
    started = time.monotonic()
    found, problems = config(tmp_path, name, text)
    assert time.monotonic() - started < 10
    assert found == {"lr": 0.1}
    assert [lost for _, lost in problems] == ["the run's configuration"]
    assert what in problems[0][0]


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    """Above the logs up to the path asked for, but neither in a folder of several runs nor in that of a checkpoint."""
    for name in ("one/a", "two/a", "two/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.csv").write_text(TABLE)
        (tmp_path / name).with_name("config.json").write_text('{"lr": 0.1}')
    assert postmortem.load(tmp_path / "one").config == {"lr": 0.1}
    assert postmortem.load(tmp_path / "one" / "a").config == {}
    assert [r.run.config for r in postmortem.scan(tmp_path / "two").runs if r.run] == [{}, {}]
    checkpoint = tmp_path / "hf" / "checkpoint-10"
    checkpoint.mkdir(parents=True)
    state = '{"max_steps": 10, "log_history": [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]}'
    (checkpoint / "trainer_state.json").write_text(state)
    (checkpoint / "config.json").write_text('{"vocab_size": 100}')
    assert postmortem.load(tmp_path / "hf").config == {"max_steps": 10}
