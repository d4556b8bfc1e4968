"""`postmortem.assert_healthy` in a test suite."""

from __future__ import annotations

import pytest

import postmortem


def test_a_healthy_run_passes_and_its_report_comes_back(sample_runs):
    """Nothing to say."""
    assert postmortem.assert_healthy(sample_runs / "healthy-gan")[0].verdict == "healthy"


def test_a_failed_run_fails_with_what_happened(sample_runs):
    """The message names the bad runs, where they failed and what to do; healthy ones are not in it."""
    with pytest.raises(AssertionError) as failed:
        postmortem.assert_healthy([sample_runs / "nan-empty-mask", sample_runs / "healthy-gan"])
    message = str(failed.value)
    assert message.startswith("1 of 2 runs not healthy\n")
    assert "nan-empty-mask: failed: NAN001 nan-onset in loss at step 137" in message
    assert "next: " in message
    assert "healthy-gan" not in message


def test_warnings_count_if_asked_for(sample_runs):
    """A run that is only suspect passes by default."""
    postmortem.assert_healthy(sample_runs / "restart")
    with pytest.raises(AssertionError, match="RUN001 step-reset"):
        postmortem.assert_healthy(sample_runs / "restart", fail_on="warning")
    with pytest.raises(postmortem.UsageError, match="'error' or 'warning', not 'never'"):
        postmortem.assert_healthy(sample_runs / "restart", fail_on="never")


def test_what_could_not_be_judged_is_not_healthy(tmp_path):
    """No numbers is no proof; no log is an error of its own."""
    with pytest.raises(postmortem.NotFoundError):
        postmortem.assert_healthy(tmp_path)
    (tmp_path / "train.out").write_text("starting\n")
    with pytest.raises(AssertionError, match="not-judged"):
        postmortem.assert_healthy(tmp_path)
