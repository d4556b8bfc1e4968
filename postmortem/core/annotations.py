"""Where `postmortem annotate` writes, so that a scan knows what is not of the training."""

FOLDER = "postmortem-notes"
"""The folder beside the files of a run."""
SUFFIX = ".postmortem"
"""The end of the name of an event file with findings."""
