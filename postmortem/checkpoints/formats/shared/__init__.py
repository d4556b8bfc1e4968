"""Helpers that several checkpoint formats use."""
