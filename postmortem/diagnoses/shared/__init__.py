"""Helpers that several diagnoses use."""
