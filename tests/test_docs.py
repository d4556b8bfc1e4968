"""The documents tell the truth: quoted output is real output, quoted Python runs, links lead somewhere.

``python tests/test_docs.py`` writes the real output into the console blocks of the README and of docs/scan.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("sample_runs/**/README.md")),
]
CONSOLE = re.compile(r"^```console\n\$ postmortem (?P<args>[^\n]+)\n(?P<output>.*?)^```$", re.M | re.S)
PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```$", re.M | re.S)


TUTORIAL = ROOT / "docs" / "tutorial.md"
QUOTING = [README, ROOT / "docs" / "scan.md"]
"""The pages whose console blocks show commands typed in the repository's root."""


def real_output(args: str, cwd: Path = ROOT) -> str:
    """What ``postmortem ARGS`` prints at 100 columns, run in the repository's root; trailing spaces are cut off."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the command of a replay names python
    env = {**os.environ, "PATH": path, "COLUMNS": "100", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "postmortem", *args.split()]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


def comparable(text: str) -> str:
    """The text without what differs from machine to machine: the time it took, the last digit of a replayed loss.

    How many finite steps lie between the copy of the process and the fault depends on its speed; only a copy right
    before the fault leaves open whether the step is deterministic.
    """
    text = re.sub(r"\(\d+\.\d s\)", "(… s)", text)
    text = re.sub(r"^Fidelity: (\w+).*\n(?:  .*\n)*", r"Fidelity: \1 …\n", text, flags=re.MULTILINE)
    text = re.sub(r"^  - two finite reruns of the step .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\d+ (of \d+ )?logged values of .*", "… logged values", text)


FIXED = "## Does the change cure it?"
"""From this heading on the tutorial works on a copy."""
SHELL = re.compile(r"^```\n(?P<lines>.*?)^```$", re.M | re.S)


@pytest.mark.skipif(sys.platform != "linux", reason="files are protected by Linux")
@pytest.mark.parametrize(
    "block", list(CONSOLE.finditer(TUTORIAL.read_text().partition(FIXED)[0])), ids=lambda m: m["args"][:40]
)
def test_tutorial_is_real(block):
    """A console block of the tutorial shows what the command prints in the folder of its run."""
    pytest.importorskip("torch")
    assert comparable(block["output"]) == comparable(real_output(block["args"], ROOT / "sample_runs/nan-empty-mask"))


@pytest.mark.skipif(sys.platform != "linux", reason="as sed is there")
def test_tutorial_ends_with_a_cure_and_a_report(tmp_path):
    """Its last part, typed as it stands, but for /tmp: the change cures the training, and the page is written."""
    pytest.importorskip("torch")
    before, _, after = TUTORIAL.read_text().partition(FIXED)
    lines = "".join(m["lines"] for m in SHELL.finditer(CONSOLE.sub("", after))).replace("/tmp/", f"{tmp_path}/")
    change, report = lines.split("postmortem report ")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    sample = ROOT / "sample_runs/nan-empty-mask"
    subprocess.run(["bash", "-ec", change], cwd=sample, env=env, check=True, timeout=120)
    proposed = re.search(r"^ {2}\+ (.*clamp.*)$", before, re.M)
    assert proposed is not None
    assert proposed[1] in (tmp_path / "fixed" / "train.py").read_text()
    (block,) = CONSOLE.finditer(after)
    assert block["output"] == real_output(block["args"], tmp_path / "fixed")
    command = [sys.executable, "-m", "postmortem", "report", *report.split()]
    done = subprocess.run(
        command,
        cwd=sample,
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert f"wrote {tmp_path}/report.html (1 run), to open in a browser: file://" in done.stderr
    assert "It says `wrote /tmp/report.html (1 run)`" in after


def commands() -> list[str]:
    from postmortem.cli.main import COMMANDS

    return sorted(COMMANDS)


@pytest.mark.parametrize(
    "block", [m for page in QUOTING for m in CONSOLE.finditer(page.read_text())], ids=lambda m: m["args"][:40]
)
def test_quoted_output_is_real(block):
    """A console block of these pages shows what the command prints."""
    pytest.importorskip("torch")  # a scan looks into the checkpoints where it can
    assert comparable(block["output"]) == comparable(real_output(block["args"]))


@pytest.mark.parametrize(
    "block",
    list(PYTHON.finditer(README.read_text())),
    ids=lambda m: f"line {README.read_text()[: m.start()].count(chr(10)) + 1}",
)
def test_quoted_python_runs(block, monkeypatch):
    """A Python block of the README runs in the repository's root."""
    pytest.importorskip("torch")  # checkpoints and replay are in it as well
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(compile(block["code"], "README.md", "exec"), names)
    assert len(names["findings"]) > 0
    assert len(names["losses"]) == 350


@pytest.mark.parametrize("name", commands())
def test_every_command_is_documented(name):
    """Every command has a row in the README's table, and its --help says what it does."""
    from postmortem.cli.main import cli

    assert re.search(rf"\| `postmortem {name}[ `]", README.read_text())
    command = cli.get_command(None, name)
    assert command is not None
    assert command.help


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    """Relative links in the documents point at files that are there."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert [t for t in targets if not (path.parent / t).exists()] == []


def test_linked_names_are_in_their_files():
    """A link such as [`resolve`](…/resolve.py) leads to a file that defines that name."""
    page = ROOT / "docs" / "architecture.md"
    links = re.findall(r"\[`(\w+)`\]\(([^)#]+\.py)\)", page.read_text())
    assert links
    defined = r"^ *(?:async )?(?:def|class) {0}\b|^ *{0}\b[^\n]* = "
    files = {target: (page.parent / target).read_text() for _, target in links}
    assert [link for link in links if not re.search(defined.format(link[0]), files[link[1]], re.M)] == []


def test_every_format_and_exit_code_is_documented():
    """The README names every output format and the four exit codes."""
    from postmortem.reporters import REPORTERS

    text = README.read_text()
    assert [r.name for r in REPORTERS if f"`{r.name}`" not in text] == []
    assert [code for code in range(4) if f"| {code} | " not in text] == []


def test_every_reader_is_documented():
    """docs/formats.md has a row for the source of every reader."""
    from postmortem.readers import READERS

    text = (ROOT / "docs" / "formats.md").read_text()
    assert [r.kind for r in READERS if f"| `{r.kind}` |" not in text] == []


def test_every_benchmark_is_listed():
    """benchmarks/README.md has a row for each benchmark."""
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert [p.name for p in (ROOT / "benchmarks").glob("*.py") if f"python benchmarks/{p.name}" not in text] == []


def test_two_commands_are_those_of_the_makefile():
    """`make demo` and `make test` of the README are targets of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    wanted = re.findall(r"^make (\w+)", README.read_text(), re.M)
    assert wanted == ["demo", "test"]
    assert [target for target in wanted if not re.search(rf"^{target}:", makefile, re.M)] == []


if __name__ == "__main__":
    for page in QUOTING:
        real = CONSOLE.sub(
            lambda m: f"```console\n$ postmortem {m['args']}\n{real_output(m['args'])}```", page.read_text()
        )
        page.write_text(real)
