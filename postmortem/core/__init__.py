"""The vocabulary: runs, timelines, findings, and what everything else is built on."""
