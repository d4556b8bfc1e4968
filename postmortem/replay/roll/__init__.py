"""From the checkpoint to the step: where to start, restoring the state, rolling forward, comparing with the log."""
