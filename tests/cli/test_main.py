"""The command line as a whole: light start, one-line errors, exit codes, closed pipes."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys

import pytest

from postmortem.cli.main import COMMANDS

HEAVY = ["pandas", "torch", "wandb", "matplotlib", "tensorboard", "rich", "numpy"]


def test_the_page_of_a_signature_is_text(postmortem, monkeypatch):
    """No Markdown and no regular expressions; --verbose has the patterns and all examples, JSON the whole page."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = postmortem("explain", "cuda-oom").out
    assert not re.search(r"^#|```|\(\?", shown, re.M)
    assert max(map(len, shown.splitlines())) <= 80
    assert "\nUsual causes:\n  - " in shown
    assert "\nWhat to do:\n  1. " in shown
    assert re.search(r"\(\d+\s+patterns;\s+--verbose\s+shows\s+them\)", shown)
    whole = postmortem("explain", "cuda-oom", "--verbose").out
    assert "(?P<requested>" in "".join(whole.split())
    assert len(whole) > 1.5 * len(shown)
    page = json.loads(postmortem("explain", "cuda-oom", "--format", "json").out)[0]["text"]
    assert "## Usual causes" in page


def test_help_imports_nothing_heavy(python):
    """``postmortem --help`` loads none of pandas, torch, wandb, matplotlib, tensorboard, rich."""
    code = (
        "import sys\nfrom postmortem.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit: pass\n"
        f"print('LOADED', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    result = python("-c", code)
    assert "Find out why a PyTorch training run failed" in result.stdout
    assert result.stdout.strip().endswith("LOADED []")


def test_scan_of_a_text_log_loads_neither_torch_nor_matplotlib(python, tmp_path):
    """A scan stays light: torch, wandb and matplotlib are not imported."""
    (tmp_path / "train.out").write_text("".join(f"step={i} loss={1 / (i + 1):.4f}\n" for i in range(50)))
    code = (
        "import sys\nfrom postmortem.cli.main import main\n"
        f"try:\n    main(['scan', {str(tmp_path)!r}, '--format', 'json'])\nexcept SystemExit: pass\n"
        "print('LOADED', [m for m in ['torch', 'wandb', 'matplotlib'] if m in sys.modules])"
    )
    assert python("-c", code).stdout.strip().endswith("LOADED []")


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(postmortem, command):
    """Each command of the table exists and explains itself."""
    called = postmortem(command, "--help")
    assert called.code == 0
    assert called.out.startswith("Usage: postmortem " + command)


def test_module_and_version(python):
    """``python -m postmortem --version`` prints the version."""
    import postmortem

    assert python("-m", "postmortem", "--version").stdout == f"postmortem {postmortem.__version__}\n"


def test_scan_without_a_path_scans_the_current_folder(postmortem, sample_runs, monkeypatch):
    """What a folder holds is the default; an empty word is still refused."""
    monkeypatch.chdir(sample_runs / "restart")
    assert postmortem("scan").out.startswith("SUSPECT     restart · RUN001")
    assert postmortem("scan", "").code == 2


def test_unknown_command_suggests(postmortem):
    """A typo in a command gets one line with a suggestion and exit code 2."""
    called = postmortem("scann")
    assert called.code == 2
    assert called.err.count("\n") == 1
    assert "did you mean 'scan'" in called.err


def test_a_folder_in_place_of_a_command(postmortem, tmp_path):
    """``postmortem runs/`` says how to scan it."""
    called = postmortem(tmp_path)
    assert called.code == 2
    assert f"postmortem scan {tmp_path}" in called.err


def test_missing_folder(postmortem, tmp_path):
    """A folder that does not exist: one line, exit code 2."""
    called = postmortem("scan", tmp_path / "nowhere")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "no such file or folder" in called.err


def test_empty_folder(postmortem, tmp_path):
    """An empty folder: one line, exit code 2, never "clean"."""
    called = postmortem("scan", tmp_path)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "no training log found" in called.err


@pytest.mark.parametrize(
    "option",
    [["--select", "NAN9"], ["--ignore", "nan-onst"], ["--role", "x"], ["--role", "x=los"], ["--format", "yaml"]],
)
def test_bad_options(postmortem, tmp_path, option):
    """A selector, role or format that does not exist: one line, exit code 2."""
    (tmp_path / "train.out").write_text("step=1 loss=1.0\n")
    called = postmortem("scan", tmp_path, *option)
    assert (called.code, called.err.count("\n")) == (2, 1)


def test_random_bytes_as_event_file(postmortem, tmp_path):
    """Random bytes named as an event file are named as unreadable, never called clean."""
    path = tmp_path / "events.out.tfevents.1700000000.host.1.0"
    path.write_bytes(bytes((i * 37 + i // 251) % 256 for i in range(5000)))
    called = postmortem("scan", tmp_path, "--format", "json")
    assert called.code in (1, 3)
    run = json.loads(called.out)["runs"][0]
    assert run["verdict"] != "healthy"
    assert run["problems"][0]["path"] == str(path)


def test_wandb_of_seven_bytes(postmortem, tmp_path):
    """What a killed W&B run can leave behind: its header alone."""
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(b":W&B\xe1\xbe\x00")
    called = postmortem("scan", path, "--format", "json")
    assert called.code == 3
    assert json.loads(called.out)["runs"][0]["verdict"] != "healthy"


def test_utf16_text(postmortem, tmp_path):
    """A log in UTF-16 is read like any other."""
    (tmp_path / "train.log").write_bytes(
        "".join(f"step: {i} loss: {2.0 - i / 100}\n" for i in range(100)).encode("utf-16")
    )
    called = postmortem("scan", tmp_path, "--format", "json")
    run = json.loads(called.out)["runs"][0]
    assert run["steps"] == {"first": 0, "last": 99}
    assert called.code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of a POSIX shell")
def test_closed_pipe_is_no_error(tmp_path):
    """``postmortem rules | head -1`` ends quietly."""
    command = f"{sys.executable} -m postmortem rules | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.stdout.strip()
    assert result.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of a POSIX shell")
@pytest.mark.parametrize("command", ["rules", "--help", "explain --help", "explain NAN001", "doctor"])
def test_exit_code_where_the_pipe_is_closed(command):
    """The command ends with 0 and without a message, whatever it was printing when its reader closed the pipe."""
    piped = f"{sys.executable} -m postmortem {command} | head -c0; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("0\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="redirections of a POSIX shell")
@pytest.mark.parametrize(
    ("redirection", "code", "told"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        (">&- 2>&-", 0, ""),
        (">/dev/full", 2, "No space left on device"),
        ("2>/dev/full", 0, ""),
    ],
)
def test_output_that_goes_nowhere(redirection, code, told):
    """A closed stdout or stderr is no error, a full disk is one; neither is a traceback."""
    result = subprocess.run(
        f"{sys.executable} -m postmortem rules {redirection}", shell=True, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr.count("\n")) == (code, 1 if told else 0)
    assert told in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="redirections of a POSIX shell")
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_an_error_that_nobody_can_be_told(redirection):
    """The exit code says it where stderr is closed or full."""
    assert (
        subprocess.run(
            f"{sys.executable} -m postmortem scan /nowhere {redirection}", shell=True, check=False
        ).returncode
        == 2
    )


def test_a_fault_of_postmortem_is_one_line(postmortem, monkeypatch):
    """An unexpected exception ends in one line that says where, and in exit code 2: 1 would mean findings."""
    monkeypatch.setitem(COMMANDS, "doctor", ("os:nothing", ""))
    called = postmortem("doctor")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "AttributeError" in called.err
    assert "main.py:" in called.err


def test_what_libraries_warn_of_is_not_told(python, tmp_path):
    """A pickle of another protocol makes torch warn: the command says what it found, and nothing else."""
    pytest.importorskip("torch")
    (tmp_path / "step_1.pt").write_bytes(pickle.dumps({"a": 1}, protocol=4))
    result = python("-m", "postmortem", "checkpoints", str(tmp_path))
    assert (result.returncode, result.stderr) == (1, "")


def test_names_cannot_steer_the_terminal(postmortem, tmp_path):
    """A path with escape codes and line ends is told in one line without them."""
    called = postmortem("scan", tmp_path / "a\x1b[31m\nb")
    assert (called.code, called.err.count("\n"), "\x1b" in called.err) == (2, 1, False)


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_where_none_is_wanted(postmortem, tmp_path, monkeypatch, variable, value):
    """NO_COLOR and a dumb terminal get no escape codes."""
    (tmp_path / "train.out").write_text("".join(f"step={i} loss={1 / (i + 1):.4f}\n" for i in range(50)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "\x1b" in postmortem("scan", tmp_path).out
    monkeypatch.setenv(variable, value)
    assert "\x1b" not in postmortem("scan", tmp_path).out


def test_show_and_baseline_of_nothing(postmortem, tmp_path):
    """An empty folder is no run: to show it or to compare with it is exit code 2."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "train.out").write_text("".join(f"step={i} loss={1 / (i + 1):.4f}\n" for i in range(50)))
    for called in (
        postmortem("show", tmp_path / "empty"),
        postmortem("scan", tmp_path, "--baseline", tmp_path / "empty"),
    ):
        assert (called.code, called.out, called.err.count("\n")) == (2, "", 1)


@pytest.mark.skipif(shutil.which("su") is None, reason="needs a second user")
def test_unreadable_file(postmortem, tmp_path, monkeypatch):
    """A file that may not be opened is named; the scan goes on and is not "clean"."""
    path = tmp_path / "train.out"
    path.write_text("step=1 loss=1.0\n")
    from pathlib import Path

    original = Path.open

    def denied(self, *args, **kwargs):
        if self == path:
            raise PermissionError(13, "Permission denied")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", denied)
    called = postmortem("scan", tmp_path)
    assert called.code == 2
    assert "Permission denied" in called.err


def test_scan_exit_codes_follow_fail_on(postmortem, tmp_path):
    """A NaN is exit code 1; with --fail-on never it is 0; with everything of its kind ignored too."""
    rows = "".join(f"step={i} loss={'nan' if i >= 60 else 1 / (i + 1)}\n" for i in range(80))
    (tmp_path / "train.out").write_text(rows)
    assert postmortem("scan", tmp_path).code == 1
    assert postmortem("scan", tmp_path, "--fail-on", "never").code == 0
    assert postmortem("scan", tmp_path, "--select", "RUN").code == 0


def test_a_run_that_nothing_looked_at_is_not_healthy(postmortem, tmp_path, monkeypatch):
    """Where the settings leave out all checks that a run allows, it is not judged: exit code 3; the output says so."""
    (tmp_path / "train.out").write_text("".join(f"step={i} loss={1 / (i + 1)}\n" for i in range(80)))
    called = postmortem("scan", tmp_path, "--select", "LRS")  # the log has no learning rate
    assert called.code == 3
    assert "NOT JUDGED" in called.out
    assert "every possible check was left out" in called.out
    assert "left out by select or ignore (" in postmortem("scan", tmp_path, "--ignore", "NAN").out
    (tmp_path / "pyproject.toml").write_text('[tool.postmortem]\nignore = ["NAN"]\n')
    monkeypatch.chdir(tmp_path)
    called = postmortem("scan", tmp_path)
    assert str(tmp_path / "pyproject.toml") in called.err
    assert re.search(r"checks found nothing wrong,\s+\d+\s+left\s+out", called.out)  # wherever the line breaks


def test_nan_in_an_unknown_tag_is_reported(postmortem, tmp_path):
    """A NaN in a tag that no role knows is still a NaN."""
    rows = "step,zorkmid,loss\n" + "".join(f"{i},{'nan' if i >= 70 else i},{2 - i / 100}\n" for i in range(100))
    (tmp_path / "metrics.csv").write_text(rows)
    called = postmortem("scan", tmp_path, "--format", "json")
    findings = json.loads(called.out)["runs"][0]["findings"]
    assert [(f["tag"], f["step"]) for f in findings if f["name"] == "nan-onset"] == [("zorkmid", 70)]


def test_an_empty_path_is_no_folder(postmortem):
    """``postmortem scan "$UNSET"`` is an error, not a scan of the working directory."""
    called = postmortem("scan", "")
    assert called.code == 2
    assert "empty path" in called.err


def test_an_unknown_format_names_the_others(postmortem, sample_runs):
    """--format junk is one line that lists the formats."""
    called = postmortem("scan", sample_runs, "--format", "junk")
    assert called.code == 2
    assert "unknown format 'junk'; did you mean 'junit'?; available: github, html, json" in called.err
    assert called.err.count("\n") == 1


@pytest.mark.parametrize(
    "args", [("show", ""), ("compare", "", ""), ("checkpoints", ""), ("replay", ""), ("report", "")]
)
def test_an_empty_path_is_an_unset_variable(postmortem, args):
    """The empty word that an unset shell variable leaves is not taken for the current folder, by no command."""
    called = postmortem(*args)
    assert called.code == 2
    assert "an empty path" in called.err


def test_compare_needs_two_logs(postmortem, tmp_path):
    """A folder without a log is reported as such, not compared as a run without metrics."""
    (tmp_path / "train.log").write_text("".join(f"step={i} loss={1 / (i + 1):.4f}\n" for i in range(50)))
    (tmp_path / "empty").mkdir()
    called = postmortem("compare", tmp_path / "train.log", tmp_path / "empty")
    assert called.code == 2
    assert "empty: no training log found" in called.err
    same = postmortem("compare", tmp_path / "train.log", tmp_path / "train.log")
    assert "identical in the only common metric" in same.out


def test_a_family_of_codes_is_listed(postmortem):
    """`explain NAN` lists the codes that begin so, as --select would take them."""
    called = postmortem("explain", "nan")
    assert called.code == 2
    assert "NAN001 nan-onset" in called.err


@pytest.mark.torch
def test_names_in_a_checkpoint_do_not_steer_the_terminal(postmortem, tmp_path):
    """Tensor names and file names come from others: no control character of theirs is printed."""
    torch = pytest.importorskip("torch")
    torch.save({"model": {"\x1b[2J\x1b]0;title\x07w": torch.tensor([float("nan")])}}, tmp_path / "a_1.pt")
    torch.save({"model": {"w": torch.tensor([1.0])}}, tmp_path / "b\x1b[31m_2.pt")
    called = postmortem("checkpoints", tmp_path)
    assert called.code == 1
    assert "title" in called.out
    assert not {c for c in called.out if not c.isprintable() and c != "\n"}


def test_show_cuts_a_tag_of_megabytes(postmortem, tmp_path):
    """A tag that is no name is shown by its beginning and its length; JSON has all of it."""
    (tmp_path / "metrics.csv").write_text(
        f"step,loss,{'a' * 100_000}\n" + "".join(f"{i},{1 / i},{i}\n" for i in range(1, 30))
    )
    assert "a… (100000 characters)" in " ".join(postmortem("show", tmp_path).out.split())
    assert len(postmortem("show", tmp_path).out) < 2_000
    assert "a" * 100_000 in postmortem("show", tmp_path, "--format", "json").out


@pytest.mark.parametrize("command", ["scan", "show", "report"])
def test_a_role_for_a_tag_that_no_run_has_is_told(tmp_path, postmortem, command):
    """A typo in the tag of --role has no other effect, so it is named with the tag that is likely meant."""
    (tmp_path / "run.csv").write_text("step,objective\n" + "".join(f"{i},{9 - i / 50}\n" for i in range(60)))
    output = ["-o", tmp_path / "page.html"] if command == "report" else []
    right = postmortem(command, tmp_path / "run.csv", "--role", "objective=loss", *output)
    wrong = postmortem(command, tmp_path / "run.csv", "--role", "objectiv=loss", *output)
    assert "no tag" not in right.err
    assert "postmortem: role: no tag 'objectiv'; did you mean 'objective'?" in wrong.err


def test_a_role_of_the_settings_may_be_for_other_runs(tmp_path, monkeypatch, postmortem):
    """Nothing is said of a tag in the settings file that the scanned runs do not have."""
    (tmp_path / "run.csv").write_text("step,loss\n" + "".join(f"{i},{9 - i / 50}\n" for i in range(60)))
    (tmp_path / "pyproject.toml").write_text('[tool.postmortem.roles]\n"my/objective" = "loss"\n')
    monkeypatch.chdir(tmp_path)
    assert "no tag" not in postmortem("scan", "run.csv").err
    assert "no tag 'my/goal'" in postmortem("scan", "run.csv", "--role", "my/goal=loss").err


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("nosuch", None),
        ("TRN44", "did you mean 'TRN044'"),
        ("missing_zero_grad", "TRN006 missing-zero-grad"),
        ("forward-op", "forward-op (cause)"),
        ("ZeroDivisionError", "generic-exception"),
        ("MyError: no such thing", "generic-exception"),
    ],
)
def test_a_mistyped_name_is_no_message_of_an_exception(postmortem, asked, answer):
    """`explain` shows the page of a name, of a cause of a replay or of a pasted message, and knows what it does not."""
    called = postmortem("explain", asked)
    known = answer is not None and not answer.startswith("did")
    assert called.code == (0 if known else 2)
    assert (answer or f"unknown name '{asked}' (") in (called.out if known else called.err)
