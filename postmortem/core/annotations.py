"""Where `postmortem annotate` writes, so that a scan can ignore these files."""

FOLDER = "postmortem-notes"
"""The folder beside the files of a run."""
SUFFIX = ".postmortem"
"""The end of the name of an event file with findings."""
