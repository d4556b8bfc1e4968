"""Finding checkpoints by their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from postmortem.checkpoints.find import (
    by_epochs,
    checkpoints_of,
    find_checkpoints,
    shown,
    step_in,
    step_in_name,
    step_of,
)
from postmortem.core.model import Checkpoint


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_000099", 99),
        ("epoch=3-step=400", 400),
        ("checkpoint-500", 500),
        ("ckpt-90", 90),
        ("ckpt_50", 50),
        ("model_100", 100),
        ("iter_0001000", 1000),
        ("global_step20", 20),
        ("step_10k", 10_000),
        ("step=400-val_loss=0.25", 400),
        ("1200", 1200),
        ("epoch_3", None),
        ("epoch=3-val_loss=0.25", None),
        ("llama-7b", None),
        ("resnet50", None),
        ("model-v2", None),
        ("best", None),
        ("20240101120000", None),
    ],
)
def test_step_in_name(name: str, step: int | None) -> None:
    """The step is read from the usual names; epochs, versions, sizes and dates are no steps."""
    assert step_in_name(name) == step


@pytest.fixture
def run(tmp_path: Path) -> Path:
    def touch(name: str, text: str = "") -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    touch("step_000099.pt")
    touch("step_000024.pt")
    touch("train.bin")
    touch("dataset.pt")
    touch("config.json", "{}")
    touch("rng_state_0.pth")
    touch("ckpt-90/model.safetensors")
    touch("ckpt-90/optimizer.pt")
    touch("ckpt-90/state.json", '{"step": 90}')
    touch("last/model.safetensors")
    touch("last/state.json", '{"step": 95}')
    touch("sharded/model-00001-of-00002.safetensors")
    touch("sharded/model-00002-of-00002.safetensors")
    touch("sharded/model.safetensors.index.json", json.dumps({"weight_map": {}}))
    touch("dcp/step_60/.metadata")
    touch("dcp/step_60/__0_0.distcp")
    touch("lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt")
    touch("checkpoints/model_10.pt")
    touch("checkpoints/model_20.pt")
    touch("checkpoints/optimizer_20.pt")
    touch("deep/global_step7/mp_rank_00_model_states.pt")
    touch("deep/global_step7/zero_pp_rank_0_mp_rank_00_optim_states.pt")
    touch("iter_0000300/mp_rank_00/model_optim_rng.pt")
    return tmp_path


def test_finds_files_and_folders_in_order_of_step(run: Path) -> None:
    """Files and folders of all kinds are found once, by step; data and companions of a model are none."""
    found = [(Path(c.path).relative_to(run).as_posix(), c.step) for c in find_checkpoints(run)]
    assert found == [
        ("deep/global_step7", 7),
        ("checkpoints/model_10.pt", 10),
        ("checkpoints/model_20.pt", 20),
        ("step_000024.pt", 24),
        ("dcp/step_60", 60),
        ("ckpt-90", 90),
        ("last", 95),
        ("step_000099.pt", 99),
        ("iter_0000300", 300),
        ("lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt", 400),
        ("sharded", None),
    ]


def test_a_checkpoint_given_itself(run: Path) -> None:
    """A file or a checkpoint folder, asked for itself, is found."""
    assert [c.step for c in find_checkpoints(run / "ckpt-90")] == [90]
    assert [c.step for c in find_checkpoints(run / "step_000024.pt")] == [24]


def test_installed_packages_hold_no_checkpoints(tmp_path: Path) -> None:
    """An environment in the folder of a project has .pth files, which are lists of paths."""
    packages = tmp_path / "venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "distutils-precedence.pth").write_text("import os")
    (tmp_path / "step_3.pth").touch()
    assert [c.path for c in find_checkpoints(tmp_path)] == [str(tmp_path / "step_3.pth")]


def test_links_count_once_and_damaged_json_only_costs_the_step(tmp_path: Path) -> None:
    """A link to a checkpoint is not another one; a state file that is cut leaves the step unknown."""
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "model.safetensors").touch()
    (tmp_path / "last" / "state.json").write_text('{"step": 9')
    (tmp_path / "step_5.pt").touch()
    (tmp_path / "latest.pt").symlink_to(tmp_path / "step_5.pt")
    assert sorted((Path(c.path).name, c.step) for c in find_checkpoints(tmp_path))[0] == ("last", None)
    assert len(find_checkpoints(tmp_path)) == 2


def test_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    """It is followed if its name says that checkpoints are there, and else only within the folder."""
    run, disk = tmp_path / "run", tmp_path / "disk"
    for place in (run / "own", disk / "a", disk / "b"):
        place.mkdir(parents=True)
        (place / f"step_{len(place.parts)}.pt").touch()
    (run / "checkpoints").symlink_to(disk / "a")
    (run / "away").symlink_to(disk / "b")
    (run / "again").symlink_to(run / "own")
    (run / "process").symlink_to("/proc/self")
    assert sorted(Path(c.path).parent.name for c in find_checkpoints(run)) == ["again", "checkpoints"]


def test_step_in_nested_state() -> None:
    """The step is found under the usual keys, also one level down; a flag is no step."""
    assert step_in({"iter_num": 50, "model": {}}) == 50
    assert step_in({"state": {"step": 90}}) == 90
    assert step_in({"step": True, "epoch": 3}) is None
    assert step_in([1]) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"step": NaN}',
        '{"step": Infinity}',
        '{"step": 1.5}',
        '{"step": true}',
        '{"step": [1]}',
        "[" * 50_000,
        '{"step": ' + "9" * 5000 + "}",
    ],
)
def test_a_state_file_that_tells_no_step(tmp_path, text):
    """A step that is no whole number, or JSON that cannot be read, costs the step alone."""
    folder = tmp_path / "checkpoint-last"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "trainer_state.json").write_text(text)
    assert [c.step for c in find_checkpoints(tmp_path)] == [None]


def saved(*names: str) -> list[Checkpoint]:
    return [Checkpoint(path=name, step=step_of(Path(name))) for name in names]


@pytest.mark.parametrize(
    ("names", "last", "steps"),
    [
        (["epoch_10.pt", "epoch_20.pt", "epoch_30.pt"], 36, [10, 20, 30]),
        (["epoch_30.pt"], 30, [30]),
        (["epoch_0.pt", "epoch_1.pt", "epoch_2.pt"], 960, [None, None, None]),
        (["epoch=3-step=117.ckpt"], 4, [117]),
        (["last.pt"], 4, [None]),
    ],
)
def test_epochs_are_steps_where_the_log_counts_them(names: list[str], last: int, steps: list[int | None]) -> None:
    """The newest epoch saved lies just before the end of a log that counts epochs, and nowhere near that of one that
    counts steps."""
    assert [c.step for c in by_epochs(saved(*names), last)] == steps


def test_checkpoints_beside_the_folder_of_a_log(tmp_path: Path) -> None:
    """Those of the folder above belong to the run where it is the run's home or was asked for, and to nobody where runs
    share it."""
    log = tmp_path / "exp" / "tb"
    log.mkdir(parents=True)
    (tmp_path / "exp" / "step_5.pt").touch()
    assert [c.step for c in checkpoints_of(log, [log], ())] == [5]
    assert checkpoints_of(log, [tmp_path], {tmp_path / "exp"}) == []
    other = tmp_path / "exp" / "second"
    other.mkdir()
    assert checkpoints_of(other, [other], ()) == []
    assert [c.step for c in checkpoints_of(other, [tmp_path], ())] == [5]


def test_folders_named_by_a_number_alone(tmp_path: Path) -> None:
    """``checkpoints/40`` with a model is a checkpoint of step 40; ``runs/40`` is a run, and the file in it the
    checkpoint."""
    for folder in ("exp/checkpoints/40", "exp/checkpoints/120", "runs/40"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").touch()
        (tmp_path / folder / "optimizer.pt").touch()
    found = [(Path(c.path).relative_to(tmp_path).as_posix(), c.step) for c in find_checkpoints(tmp_path)]
    assert found == [("exp/checkpoints/40", 40), ("exp/checkpoints/120", 120), ("runs/40/model.safetensors", None)]
    assert [shown(tmp_path / name) for name in ("checkpoints/40", "step_40.pt")] == ["checkpoints/40", "step_40.pt"]


def test_lightning_counts_the_steps_of_all_optimizers() -> None:
    """Its loggers count batches that stepped, and so does the log; older versions say `global_step` alone."""
    epoch_loop = {"epoch_loop.state_dict": {"_batches_that_stepped": 59}}
    content = {"pytorch-lightning_version": "2.5.0", "global_step": 120, "loops": {"fit_loop": epoch_loop}}
    assert step_in(content) == 59
    assert step_in({**content, "loops": {}}) == 120
