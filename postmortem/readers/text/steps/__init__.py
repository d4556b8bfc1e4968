"""The step of each row of a text log."""
