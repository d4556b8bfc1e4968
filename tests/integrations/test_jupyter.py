"""`%load_ext postmortem` in IPython, and `df.postmortem` in pandas."""

from __future__ import annotations

import pandas as pd
import pytest

import postmortem
from postmortem.integrations.jupyter import register

interactive = pytest.importorskip("IPython.core.interactiveshell")


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """An IPython without history that has loaded the extension."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    interactive.InteractiveShell.clear_instance()
    shell = interactive.InteractiveShell()
    shell.history_manager.enabled = False
    shell.run_line_magic("load_ext", "postmortem")
    yield shell
    shell.history_manager.end_session()
    interactive.InteractiveShell.clear_instance()


def test_the_magic_scans_paths(shell, sample_runs):
    """Of one run its report, of several the report of all."""
    one = shell.run_line_magic("postmortem", f"{sample_runs}/restart")
    assert repr(one).startswith("<RunReport 'restart': suspect")
    several = shell.run_line_magic("postmortem", f"'{sample_runs}/restart' {sample_runs}/killed")
    assert [run.name for run in several] == ["killed", "restart"]


def test_a_terminal_prints_the_report(shell, sample_runs, capsys):
    """It shows no HTML. A notebook, whose shell has a kernel, shows the value itself."""
    shell.run_line_magic("postmortem", f"{sample_runs}/restart")
    assert "step-reset" in capsys.readouterr().out
    shell.kernel = object()
    register(shell)
    assert shell.run_line_magic("postmortem", f"{sample_runs}/restart") is not None
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nowhere", "nowhere: no such file or folder"),
        ("--format json", "takes paths, not --format"),
        ("'a", "No closing"),
    ],
)
def test_what_goes_wrong_is_one_line(shell, capsys, line, said):
    """No traceback in the notebook."""
    assert shell.run_line_magic("postmortem", line) is None
    out = capsys.readouterr().out
    assert said in out
    assert out.count("\n") == 1


def test_the_accessor_gives_the_findings_as_a_table(shell):
    """One row each, as `findings_frame` of a scan."""
    frame = pd.DataFrame({"step": range(100), "loss": [1 / (k + 1) for k in range(60)] + [float("nan")] * 40})
    found = frame.postmortem.findings()
    assert found[["name", "tag", "step"]].values.tolist() == [["nan-onset", "loss", 60]]
    assert isinstance(frame.postmortem.scan(), postmortem.Report)


def test_the_accessor_is_there_where_pandas_was_imported_first(python):
    """Importing postmortem does not import pandas for it."""
    there = "hasattr(pandas.DataFrame, 'postmortem'), 'postmortem.api' in sys.modules"
    assert python("-c", f"import pandas, postmortem, sys; print({there})").stdout.split() == ["True", "False"]
    assert python("-c", "import postmortem, sys; print('pandas' in sys.modules)").stdout.strip() == "False"
