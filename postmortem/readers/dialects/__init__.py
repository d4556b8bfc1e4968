"""Dialects: one file per style in which programs print their metrics."""
