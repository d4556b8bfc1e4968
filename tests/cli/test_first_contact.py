"""The command before it does anything: without arguments, and interrupted while it is imported."""

from __future__ import annotations

import subprocess
import sys

_INTERRUPTED = """
import sys
class Finder:
    def find_spec(self, name, *_):
        if name == "postmortem.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from postmortem.__main__ import main
main()
"""


def test_ctrl_c_during_the_imports_is_one_line():
    """The exit code is that of an interrupted command."""
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "postmortem: interrupted\n")


def test_without_arguments_the_help_is_shown_in_lines():
    """As by --help, on stderr and with the exit code of a usage error."""
    done = subprocess.run([sys.executable, "-m", "postmortem"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "\n  scan  " in done.stderr
