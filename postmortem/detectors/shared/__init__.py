"""Helpers that several detectors use."""
