"""Helpers that several reporters use."""
