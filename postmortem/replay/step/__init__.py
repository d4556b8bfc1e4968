"""Runs one training step and restores the state before it."""
