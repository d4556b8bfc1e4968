"""The shared data types: runs, series, findings, and what all other packages build on."""
