"""Settings from pyproject.toml: whatever stands in it, a wrong one is named in one line."""

from __future__ import annotations

import pytest

from postmortem.core.config import load_config, make_options
from postmortem.core.errors import UsageError
from postmortem.detectors.loss_spike import LossSpike


def test_settings_are_read(tmp_path):
    """The nearest pyproject.toml counts; one selector may stand without a list."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.postmortem]\nselect = "NAN"\nignore = ["SYS"]\nfail-on = "warning"\n'
    )
    (tmp_path / "sub").mkdir()
    config = load_config(tmp_path / "sub")
    assert (config.select, config.ignore, config.fail_on) == (("NAN",), ("SYS",), "warning")


@pytest.mark.parametrize(
    "text",
    [
        "tool = 3",
        "[tool]\npostmortem = 3",
        *(
            f"[tool.postmortem]\n{line}"
            for line in ("select = 3", "ignore = [1]", "fail-on = [1]", "roles = 3", "roles = {a = 3}", "detectors = 4")
        ),
        "[tool.postmortem.detectors]\nloss-spike = 4",
        "[tool.postmortem]\njunk = 1",
        "[tool",
        "a = " + "[" * 5000,
    ],
)
def test_a_wrong_setting_is_named(tmp_path, text):
    """Wrong types, unknown keys and broken TOML are UsageErrors that name the file."""
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        load_config(tmp_path)


@pytest.mark.parametrize("value", ["a", float("nan"), float("inf"), [1], True])
def test_a_number_that_is_none(value):
    """An option of a detector that is no finite number is refused by its name."""
    with pytest.raises(UsageError, match="z = "):
        make_options(LossSpike.Options, {"z": value}, where="detectors.loss-spike")
