"""Run discovery: a run is what a person would call one."""

from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path

import pytest

import postmortem
from postmortem.core.errors import NotFoundError
from postmortem.core.points import PointsBuilder
from postmortem.core.reading import Reading
from postmortem.readers import READERS, reader
from postmortem.runs.group import ClaimedFile, Grouping, discover

EVENTS = "events.out.tfevents.{time}.node1.{pid}.0"


def layout(root: Path, *names: str) -> dict[str, list[str]]:
    """Makes the files and discovers them -> {run name: its files, relative}."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("step,loss\n1,2.0\n2,1.5\n" if name.endswith(".csv") else "step=1 loss=2.0\nstep=2 loss=1.5\n")
    found, problems = discover([root])
    assert not problems
    return {run.name: [p.path.relative_to(root).as_posix() for p in run.parts] for run in found}


def events(time: int, pid: int = 1) -> str:
    return EVENTS.format(time=time, pid=pid)


def test_one_run_per_folder_of_event_files(tmp_path):
    """Two folders of event files are two runs; two files of one folder are one, in order of time."""
    got = layout(tmp_path, f"a/{events(1700000200, 9)}", f"a/{events(1700000100)}", f"b/{events(1700000100)}")
    assert got == {"a": [f"a/{events(1700000100)}", f"a/{events(1700000200, 9)}"], "b": [f"b/{events(1700000100)}"]}


def test_folders_made_by_add_scalars_and_hparams_belong_to_their_parent(tmp_path):
    """Sub-folders that the same process wrote are part of the run; those of another process are runs."""
    got = layout(
        tmp_path,
        f"a/{events(1700000100)}",
        f"a/loss_train/{events(1700000101)}",
        f"a/1700000102.5/{events(1700000102)}",
        f"a/other/{events(1700000103, 77)}",
    )
    assert sorted(got) == ["a", "a/other"]
    found, _ = discover([tmp_path])
    assert [p.prefix for p in found[0].parts] == ["", "loss_train", ""]


def test_folders_made_by_add_scalars_without_their_parent_are_one_run(tmp_path):
    """Copied without the event file beside them, they are told from the runs of a sweep by the tag in their names."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for name, tag in [("a/Loss_g", "Loss"), ("a/Loss_d", "Loss"), ("b/lr_1", "Loss"), ("b/lr_2", "Loss")]:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        with tensorboard.SummaryWriter(str(folder)) as writer:
            for step in range(3):
                writer.add_scalar(tag, 1 / (1 + step), step)
    found, _ = discover([tmp_path])
    assert [run.name for run in found] == ["a", "b/lr_1", "b/lr_2"]
    assert sorted(postmortem.load(tmp_path / "a").roles) == ["Loss_d/Loss", "Loss_g/Loss"]


def test_sibling_train_and_validation_folders_are_one_run(tmp_path):
    """train/ and validation/ side by side are one run with prefixed tags; train/ alone is a run of its own."""
    got = layout(
        tmp_path, f"a/train/{events(1700000100)}", f"a/validation/{events(1700000101)}", f"b/train/{events(1700000100)}"
    )
    assert sorted(got) == ["a", "b/train"]
    found, _ = discover([tmp_path])
    assert [p.prefix for p in found[0].parts] == ["train", "validation"]


def test_latest_run_is_not_a_second_run(tmp_path):
    """The latest-run link of W&B leads to a run that is already there."""
    folder = tmp_path / "wandb" / "offline-run-20260101_000000-abc"
    folder.mkdir(parents=True)
    (folder / "run-abc.wandb").write_bytes(b":W&B\xe1\xbe\x00")
    (tmp_path / "wandb" / "latest-run").symlink_to(folder.name)
    found, _ = discover([tmp_path])
    assert len(found) == 1


def test_a_linked_folder_is_followed_once(tmp_path):
    """A link to a folder of the same tree is followed where that was not read, and loops end."""
    layout(tmp_path, "runs/.cache/exp/train.out")
    (tmp_path / "runs" / "exp").symlink_to(tmp_path / "runs" / ".cache" / "exp")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "runs" / ".cache" / "exp")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    found, _ = discover([tmp_path / "runs"])
    assert len(found) == 1


def test_a_link_that_leads_elsewhere_is_not_followed(tmp_path):
    """It is named if logs lie there; named in the command itself, it is read."""
    layout(tmp_path, "scratch/exp/train.out", "data/images/1.csv", "runs/a/train.out")
    (tmp_path / "runs" / "exp").symlink_to(tmp_path / "scratch" / "exp")
    (tmp_path / "runs" / "data").symlink_to(tmp_path / "data")
    (tmp_path / "runs" / "all").symlink_to("/")
    found, problems = discover([tmp_path / "runs"])
    assert [run.name for run in found] == ["a"]
    (problem,) = problems
    assert problem.path.endswith("runs/exp")
    assert problem.what.startswith("not searched: a link to a folder elsewhere, with train.out")
    assert [run.name for run in discover([tmp_path / "runs" / "exp"])[0]] == ["exp"]


def test_installed_packages_are_no_runs(tmp_path):
    """The lists of an installed package hold sizes and checksums, not metrics."""
    (files,) = layout(tmp_path, "foo-1.0.dist-info/RECORD.csv", "foo.egg-info/a.log", "train.out").values()
    assert files == ["train.out"]


def test_what_cannot_be_read_and_looks_like_a_log_is_told(tmp_path):
    """Pipes, broken links, packed logs and logs of zero bytes alone are never opened and never dropped in silence."""
    os.mkfifo(tmp_path / "job.out")
    (tmp_path / "gone.log").symlink_to("nowhere.log")
    (tmp_path / "circle.log").symlink_to("circle.log")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "old.log").write_bytes(gzip.compress(b"step=1 loss=2.0\n" * 100))
    (tmp_path / "crashed.log").write_bytes(bytes(5000))
    (tmp_path / "empty.err").touch()
    (tmp_path / "train.csv").write_text("step,loss\n1,2.0\n2,1.5\n")
    found, problems = discover([tmp_path])
    assert len(found) == 1
    assert {Path(p.path).name: p.what for p in problems} == {
        "job.out": "is a named pipe, not a file",
        "gone.log": "cannot be opened: No such file or directory",
        "circle.log": f"cannot be opened: {os.strerror(errno.ELOOP)}",
        "old.log": "compressed with gzip: decompress it first",
        "crashed.log": "contains only NUL bytes, as left by a system crash",
    }
    assert all(p.lost for p in problems)


def test_a_file_of_size_zero_is_not_opened(tmp_path, monkeypatch):
    """Files of size 0 hold nothing, and those below /proc block once opened: none is opened, whatever its name."""
    layout(tmp_path / "before", "train.out")  # the first look loads the readers
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "train.log").touch()
    monkeypatch.setattr(Path, "open", lambda self, *_, **__: pytest.fail(f"{self} was opened"))
    discover([tmp_path / "after"])


@pytest.mark.parametrize("kind", ["pipe", "circle", "long"])
def test_a_path_that_is_neither_file_nor_folder(tmp_path, kind):
    """A pipe is not waited for; a link in a circle or a name that is too long is an error that says so."""
    path = tmp_path / ("x" * 300 if kind == "long" else "train.log")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "circle":
        path.symlink_to(path.name)
    words = {"pipe": "named pipe", "circle": os.strerror(errno.ELOOP), "long": os.strerror(errno.ENAMETOOLONG)}
    with pytest.raises(NotFoundError, match=words[kind]):
        discover([path])


def test_a_very_deep_folder(tmp_path):
    """A log 400 folders down is found in no time that is worth telling."""
    deep = tmp_path.joinpath(*["d"] * 400)
    deep.mkdir(parents=True)
    (deep / "train.csv").write_text("step,loss\n1,2.0\n")
    found, problems = discover([tmp_path])
    assert (len(found), problems) == (1, [])


def test_out_and_err_are_one_run(tmp_path):
    """The .out and the .err of one name are one run; another name is another."""
    got = layout(tmp_path, "train_a.out", "train_a.err", "train_b.out")
    assert {name: len(files) for name, files in got.items()} == {"train_a": 2, "train_b": 1}


def test_a_shared_slurm_job_id_ties_files_together(tmp_path):
    """Differently named files of one job id are one run; array tasks of one job are not."""
    got = layout(tmp_path, "slurm-48211.out", "errors_48211.err", "slurm-48300_1.out", "slurm-48300_2.out")
    assert sorted(len(files) for files in got.values()) == [1, 1, 2]


def test_dates_are_no_job_ids(tmp_path):
    """Two logs of one day are two runs."""
    assert len(layout(tmp_path, "alpha_20260101.log", "beta_20260101.log")) == 2


def test_files_of_ranks_are_one_run(tmp_path):
    """x_rank0.out, x_rank1.out are one run, and each file knows its rank."""
    layout(tmp_path, "job_rank0.out", "job_rank1.out")
    (run,) = discover([tmp_path])[0]
    assert [p.rank for p in run.parts] == [0, 1]


def test_torchrun_redirects(tmp_path):
    """The log folders of ``torchrun --redirects`` are one run; the folder's number is the rank."""
    layout(tmp_path, "logs/none_x1/attempt_0/0/stdout.log", "logs/none_x1/attempt_0/1/stderr.log")
    (run,) = discover([tmp_path])[0]
    assert sorted(p.rank for p in run.parts) == [0, 1]


def test_texts_join_the_numbers_beside_them(tmp_path):
    """Event files, a W&B run and Slurm files in one folder are one run."""
    got = layout(
        tmp_path,
        f"exp/{events(1700000100)}",
        "exp/slurm-48211.out",
        "exp/slurm-48222.out",
        "exp/wandb/offline-run-20260101_000000-abc/run-abc.wandb",
        "exp/logs/train.err",
    )
    assert {name: len(files) for name, files in got.items()} == {"exp": 5}


def test_a_wandb_run_out_of_its_folder_is_one_run(tmp_path):
    """Copied or downloaded alone, without ``wandb/`` around it; the output of two files side by side is nobody's."""
    files = "run-20260101_000000-abc/run-abc.wandb", "run-20260101_000000-abc/files/output.log"
    assert [sorted(run) for run in layout(tmp_path / "one", *files).values()] == [sorted(files)]
    two = layout(tmp_path / "two", *files, "run-20260101_000000-abc/run-def.wandb")
    assert [files[1]] in two.values()


def test_several_wandb_runs_of_a_folder_are_several(tmp_path):
    """Two W&B runs in one wandb/ folder are two runs."""
    got = layout(tmp_path, *(f"exp/wandb/offline-run-20260101_00000{i}-abc{i}/run-abc{i}.wandb" for i in range(2)))
    assert len(got) == 2


def test_newest_trainer_state_belongs_to_the_parent(tmp_path):
    """Of checkpoint-N/trainer_state.json only the newest is read, as part of the run that holds the folders."""
    for n in (100, 900, 1000):
        path = tmp_path / "exp" / f"checkpoint-{n}" / "trainer_state.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"log_history": [{"step": 1, "loss": 2.0}]}')
    found, _ = discover([tmp_path])
    assert [(r.name, [p.path.parent.name for p in r.parts]) for r in found] == [("exp", ["checkpoint-1000"])]


def test_lightning_versions(tmp_path):
    """One version below lightning_logs is the run of the folder; several are several runs."""
    assert list(layout(tmp_path / "one", "exp/lightning_logs/version_0/metrics.csv")) == ["exp"]
    assert len(layout(tmp_path / "two", *(f"exp/lightning_logs/version_{i}/metrics.csv" for i in range(2)))) == 2


@pytest.mark.parametrize(
    ("inside", "file"),
    [
        ("lightning_logs/version_0", "metrics.csv"),
        ("wandb/offline-run-20260101_000000-abc/files", "output.log"),
        ("exp/checkpoint-40", "trainer_state.json"),
        ("exp/logs", "train.log"),
        ("none_x1/attempt_0/1", "stdout.log"),
        ("exp/rank_1", "train.log"),
    ],
)
def test_a_folder_inside_a_run(tmp_path, inside, file):
    """A path that leads to the inside of a run is taken as the run: what lies above it was not asked for. A folder of
    logs alone does not tell runs apart by its name: the one above gives it."""
    path = tmp_path / inside / file
    path.parent.mkdir(parents=True)
    path.write_text(
        '{"log_history": [{"step": 1, "loss": 2.0}]}' if file.endswith(".json") else "step,loss\n1,2.0\n2,1.5\n"
    )
    (run,) = discover([path.parent])[0]
    assert (run.path, run.name) == (path.parent, "exp" if inside == "exp/logs" else path.parent.name)


def test_a_folder_of_tables(tmp_path):
    """a.csv and b.csv are two runs; metrics.csv beside train.out is one."""
    assert len(layout(tmp_path / "x", "a.csv", "b.csv")) == 2
    assert len(layout(tmp_path / "y", "exp/metrics.csv", "exp/train.out")) == 1


def test_missing_path(tmp_path):
    """A path that does not exist is an error that names it."""
    with pytest.raises(NotFoundError, match="nowhere"):
        discover([tmp_path / "nowhere"])


def test_a_path_given_twice_is_read_once(tmp_path):
    """A folder and a folder inside it: each file belongs to one run."""
    layout(tmp_path, f"a/{events(1700000100)}")
    found, _ = discover([tmp_path, tmp_path / "a"])
    assert len(found) == 1


def test_the_output_of_a_trainer_and_its_text_are_one_run(tmp_path):
    """A Hugging Face output folder, the event files of each of its starts and the text above it are one run."""
    state, first, second = (
        "job/out/checkpoint-20/trainer_state.json",
        f"job/out/runs/a/{events(1700000100)}",
        f"job/out/runs/b/{events(1700000200, 2)}",
    )
    got = layout(tmp_path, "job/train.log", state, first, second)
    assert {name: sorted(files) for name, files in got.items()} == {
        "job": sorted(["job/train.log", state, first, second])
    }


def test_a_text_above_several_runs_is_none_of_theirs(tmp_path):
    """A text joins the only run below its folder; above two runs, or beside other texts, it stays by itself."""
    one = layout(tmp_path / "one", "train.log", f"exp/{events(1700000100)}")
    assert list(one) == ["one"]
    two = layout(tmp_path / "two", "train.log", f"a/{events(1700000100)}", f"b/{events(1700000200, 2)}")
    assert sorted(two) == ["a", "b", "two"]
    other = layout(tmp_path / "other", "slurm-100.out", "slurm-200.out", f"a/{events(1700000100)}")
    assert sorted(other) == ["a", "slurm-100", "slurm-200"]


def test_a_text_named_like_a_folder_is_its_output(tmp_path):
    """`a.log` beside `a/` belongs to the one run in there, however deep; with two runs in there it stays alone."""
    got = layout(tmp_path, "a.log", f"a/runs/x/{events(1700000100)}", "b.out", "b.err", "b/metrics.csv", "c.log")
    assert {name: sorted(files) for name, files in got.items()} == {
        "a": ["a.log", f"a/runs/x/{events(1700000100)}"],
        "b": ["b.err", "b.out", "b/metrics.csv"],
        "c": ["c.log"],
    }
    two = layout(tmp_path / "two", "d.log", f"d/x/{events(1700000100)}", f"d/y/{events(1700000200, 2)}", "e.log")
    assert sorted(two) == ["d", "d/x", "d/y", "e"]


def test_output_without_a_name_of_its_own(tmp_path):
    """nohup.out or console.log beside one named log is the output of that run; beside two it is a run of its own."""
    assert sorted(layout(tmp_path / "one", "exp.log", "nohup.out")) == ["one"]
    assert sorted(layout(tmp_path / "two", "exp1.log", "exp2.log", "nohup.out")) == ["exp1", "exp2", "nohup"]


def test_the_link_to_the_log_of_wandb_is_no_run(tmp_path):
    """W&B leaves links to its own log in ``wandb/``, and a list of packages: they are no output of the training."""
    got = layout(tmp_path, "a/train.log", "a/wandb/debug.log", "a/wandb/debug-internal.log", "a/requirements.txt")
    assert got == {"a": ["a/train.log"]}


def test_two_loggers_of_one_lightning_trainer_are_one_run(tmp_path):
    """A table and event files in consecutive versions with equal hyperparameters are one run; two tables are two."""
    for name in ("both", "unlike"):
        for version in range(2):
            folder = tmp_path / name / "lightning_logs" / f"version_{version}"
            folder.mkdir(parents=True)
            (folder / "hparams.yaml").write_text(f"lr: {0.1 if name == 'both' else version}\n")
    table, event = "lightning_logs/version_0/metrics.csv", f"lightning_logs/version_1/{events(1700000100)}"
    assert layout(tmp_path / "both", table, event) == {"both": [table, event]}
    assert len(layout(tmp_path / "unlike", table, event)) == 2
    assert len(layout(tmp_path / "tables", table, table.replace("_0", "_1"))) == 2


def test_the_text_of_a_launcher_and_the_logs_of_its_ranks_are_one_run(tmp_path):
    """What torchrun printed belongs to the run whose ranks it redirected into a folder below."""
    ranks = [f"logs/none_ab12/attempt_0/{rank}/stderr.log" for rank in (0, 1)]
    assert layout(tmp_path / "job7", "job.err", *ranks) == {"job7": ["job.err", *ranks]}


def test_the_work_grows_with_the_number_of_folders(tmp_path, monkeypatch):
    """A thousand runs are separated without comparing each folder with every other."""
    compared = []
    plain = Path.__eq__
    for i in range(300):
        layout_of = tmp_path / f"exp{i}"
        for split in ("train", "validation"):
            (layout_of / split).mkdir(parents=True)
            (layout_of / split / events(1700000100, i)).touch()
    monkeypatch.setattr(Path, "__eq__", lambda a, b: compared.append(None) or plain(a, b))
    found, _ = discover([tmp_path])
    assert [len(run.parts) for run in found] == [2] * 300
    assert len(compared) < 100 * 600


@pytest.mark.parametrize("names", [("step-100", "step-1000"), ("ckpts/100", "ckpts/1000"), ("epoch_1", "epoch_2")])
def test_trainer_state_of_folders_with_other_names(tmp_path, names):
    """A trainer_state.json in a folder that is named like a checkpoint belongs to the run above it."""
    for n in names:
        path = tmp_path / "exp" / n / "trainer_state.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"log_history": [{"step": 1, "loss": 2.0}]}')
    found, _ = discover([tmp_path])
    assert [[p.path.parent.name for p in r.parts] for r in found] == [[names[-1].rpartition("/")[2]]]


def test_a_file_with_one_word_is_no_log(tmp_path):
    """Megatron's latest_checkpointed_iteration.txt makes no run, unless it is asked for."""
    layout(tmp_path, "exp/train.csv")
    note = tmp_path / "exp" / "ckpt" / "latest_checkpointed_iteration.txt"
    note.parent.mkdir()
    note.write_text("100\n")
    assert [r.name for r in discover([tmp_path])[0]] == ["exp"]
    assert len(discover([note])[0]) == 1


@pytest.fixture
def metric_store():
    """A reader of an MLflow store, ``EXPERIMENT/RUN/metrics/NAME``, as a package of its own would register it."""

    @reader
    class MetricStore:
        """Lines of time, value and step."""

        kind = "metric_store"
        priority = 5

        @staticmethod
        def claims(path: Path, head: bytes) -> bool:
            return path.parent.name == "metrics"

        @staticmethod
        def read(path: Path) -> Reading:
            builder = PointsBuilder()
            for line in path.read_text().splitlines():
                _, value, step = line.split()
                builder.add(path.name, int(step), float(value))
            return Reading(source="metric_store", path=str(path), points=builder.build())

        @staticmethod
        def home(path: Path) -> Path | None:
            return path.parent.parent

    yield MetricStore
    READERS._items.pop(READERS.key(MetricStore))


def test_a_reader_with_its_own_idea_of_a_run(tmp_path, metric_store):
    """The files with one `home` are one run, named after that folder; one above it that was not asked for is no run."""
    for run in ("0/abc", "0/def"):
        (tmp_path / run / "metrics").mkdir(parents=True)
        for name in ("loss", "lr"):
            (tmp_path / run / "metrics" / name).write_text("1700000000000 2.0 1\n1700000001000 1.5 2\n")
    found, _ = discover([tmp_path])
    assert {r.name: [p.path.name for p in r.parts] for r in found} == {"0/abc": ["loss", "lr"], "0/def": ["loss", "lr"]}
    report = postmortem.scan(tmp_path).runs[0]
    assert (report.name, report.last_step, [s.kind for s in report.sources]) == ("0/abc", 2, ["metric_store"])
    assert [r.path for r in discover([tmp_path / "0" / "abc" / "metrics"])[0]] == [tmp_path / "0" / "abc" / "metrics"]


class TestRules:
    """Each rule of a `Grouping` alone, on files that need not exist."""

    @staticmethod
    def after(rule: str, *paths: str) -> dict[str, tuple[str, str]]:
        """Applies one rule -> {file: (home of its run, key)}."""
        root = Path("/data")
        kinds = {r.kind: r for r in READERS}
        claimed = []
        for path in (root / p for p in paths):
            kind = {".csv": "csv", ".json": "trainer_state", ".wandb": "wandb", ".0": "tensorboard"}.get(
                path.suffix, "text"
            )
            claimed.append(ClaimedFile(path, kinds[kind], path.parent))
        grouping = Grouping(root, claimed, [])
        getattr(grouping, rule)()
        return {
            f.path.relative_to(root).as_posix(): (f.home.relative_to(root).as_posix(), f.key) for f in grouping.files
        }

    def test_all_are_listed(self) -> None:
        """A rule that no one calls would be a mistake."""
        public = {name for name in vars(Grouping) if not name.startswith("_")} - {"RULES", "runs"}
        assert set(Grouping.RULES) == public

    def test_place_by_path(self) -> None:
        """The path of a file alone may say its run; event files are left to the next rule."""
        assert self.after(
            "place_by_path",
            "a/wandb/run-1-x/files/output.log",
            "b/checkpoint-5/trainer_state.json",
            "c/attempt_0/3/stderr.log",
            "d/rank_1/train.log",
            "e/rank_1/events.out.tfevents.1.h.0",
        ) == {
            "a/wandb/run-1-x/files/output.log": ("a/wandb/run-1-x", ""),
            "b/checkpoint-5/trainer_state.json": ("b", ""),
            "c/attempt_0/3/stderr.log": ("c", ""),
            "d/rank_1/train.log": ("d", ""),
            "e/rank_1/events.out.tfevents.1.h.0": ("e/rank_1", ""),
        }

    def test_place_event_files(self) -> None:
        """Sub-folders of the same process belong to their parent; other readers are left alone."""
        files = (
            "events.out.tfevents.1.h.7.0",
            "x/events.out.tfevents.2.h.7.0",
            "y/events.out.tfevents.2.h.8.0",
            "x/a.csv",
        )
        assert [home for home, _ in self.after("place_event_files", *files).values()] == [".", ".", "y", "x"]

    def test_keep_newest_snapshot(self) -> None:
        """Of one home one snapshot stays: that of the run itself, as it is written last."""
        assert list(
            self.after("keep_newest_snapshot", "a/trainer_state.json", "b/checkpoint-9/trainer_state.json")
        ) == [
            "a/trainer_state.json",
            "b/checkpoint-9/trainer_state.json",
        ]

    def test_join_inner_folders(self) -> None:
        """One W&B run belongs to the folder above `wandb`, two are runs; texts belong beside the numbers."""
        one = self.after("join_inner_folders", "a/wandb/run-1/x.wandb", "a/logs/x.log")
        assert {home for home, _ in one.values()} == {"a"}
        two = self.after("join_inner_folders", "a/wandb/run-1/x.wandb", "a/wandb/run-2/x.wandb")
        assert {home for home, _ in two.values()} == {"a/wandb/run-1", "a/wandb/run-2"}
        texts = self.after("join_inner_folders", "a/logs/x.log", "a/y.log")
        assert {home for home, _ in texts.values()} == {"a/logs", "a"}

    def test_separate_loose_files(self) -> None:
        """Texts are separated by name if no numbers are in their folder."""
        assert [key for _, key in self.after("separate_loose_files", "a.out", "a.err", "b.out").values()] == [
            "a",
            "a",
            "b",
        ]
        assert {key for _, key in self.after("separate_loose_files", "a.out", "b.out", "x.wandb").values()} == {""}

    def test_joins_upwards(self) -> None:
        """A namesake, or the only text above the only run, belongs to it."""
        assert set(self.after("join_namesakes", "a.log", "a/b/m.csv", "c.log").values()) == {("a", ""), (".", "")}
        assert set(self.after("join_the_only_run", "a.log", "x/m.csv").values()) == {(".", "")}


def test_output_of_grid_engine_and_pbs(tmp_path: Path) -> None:
    """``train.o812`` and ``train.e812`` are one run, ``train.o813`` another."""
    rows = "".join(f"step {i} loss {2 - i / 10:.2f}\n" for i in range(10))
    for name, text in {"train.o8121": rows, "train.e8121": "Killed\n", "train.o8122": rows}.items():
        (tmp_path / name).write_text(text)
    report = postmortem.scan(tmp_path)
    assert sorted((len(run.sources[0].files), run.ended) for run in report) == [(1, "unknown"), (2, "killed")]


@pytest.mark.parametrize("name", ["train_worker0.INFO", "ddpm.node1.me.log.INFO.20261019-070122.512", "train.o8121.3"])
def test_logs_that_do_not_end_as_a_log(tmp_path: Path, name: str) -> None:
    """Of glog, absl, and of an array task."""
    (tmp_path / name).write_text("".join(f"step {i} loss {2 - i / 10:.2f}\n" for i in range(10)))
    assert len(postmortem.load(tmp_path).frame) == 10


@pytest.mark.parametrize("version", ["", "version_0/"])
def test_two_loggers_with_names_are_one_run(tmp_path, version):
    """``csv`` and ``tb`` of one trainer, with or without versions; other hyperparameters are another training."""
    for name, lr in (("exp/csv", 0.1), ("exp/tb", 0.1), ("unlike/csv", 0.1), ("unlike/tb", 0.2)):
        folder = tmp_path / name / version
        folder.mkdir(parents=True)
        (folder / "hparams.yaml").write_text(f"lr: {lr}\n")
    names = [f"csv/{version}metrics.csv", f"tb/{version}{events(1700000100)}"]
    got = layout(tmp_path, *(f"exp/{name}" for name in names), *(f"unlike/{name}" for name in names))
    assert got["exp"] == [f"exp/{name}" for name in names]
    assert len(got) == 3


def test_versions_of_two_loggers_are_a_run_each(tmp_path):
    """A second start of the same trainer is another run."""
    names = [(f"csv/version_{i}/metrics.csv", f"tb/version_{i}/{events(1700000100 + i)}") for i in range(2)]
    for both in names:
        for name in both:
            (tmp_path / name).parent.mkdir(parents=True)
            (tmp_path / name).with_name("hparams.yaml").write_text("lr: 0.1\n")
    assert sorted(map(tuple, layout(tmp_path, *names[0], *names[1]).values())) == names


def test_a_table_beside_the_log_of_the_training(tmp_path):
    """One program writes a log and a table of updates; a table with another name beside a named log is apart."""
    assert len(layout(tmp_path / "a", "train.log", "updates.csv")) == 1
    assert len(layout(tmp_path / "b", "exp1.log", "exp2.csv")) == 2
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "ckpt_10.pt").write_bytes(b"PK")
    assert len(layout(tmp_path / "c", "ppo.log", "updates.csv", "episodes.csv")) == 1


def test_a_table_above_the_folder_of_its_event_files(tmp_path):
    """``metrics.csv`` and a log beside ``tb/``, or ``csv`` beside ``tb``; a folder of another name is another run."""
    assert len(layout(tmp_path / "a", "metrics.csv", "train.log", f"tb/{events(1700000100)}")) == 1
    assert len(layout(tmp_path / "b", "csv/metrics.csv", f"tb/{events(1700000100)}")) == 1
    assert len(layout(tmp_path / "c", "metrics.csv", f"other/{events(1700000100)}")) == 2


def test_the_output_folder_of_a_trainer_may_be_called_log(tmp_path):
    """``job/log`` with checkpoints and event files is one run, whatever lies beside it, as where it is given itself."""
    files = [
        f"job/{name}/{file}"
        for name in ("log", "ok")
        for file in ("checkpoint-20/trainer_state.json", f"runs/a/{events(1700000100)}")
    ]
    got = layout(tmp_path, *files)
    assert {name: len(found) for name, found in got.items()} == {"job/log": 2, "job/ok": 2}
