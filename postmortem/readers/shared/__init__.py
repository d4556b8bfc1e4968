"""Helpers that several readers use."""
