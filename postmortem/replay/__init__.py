"""Replay: rerun the step at fault and name the culprit. The only part that needs torch."""
