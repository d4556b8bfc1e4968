"""One file per format in which weights are saved."""
