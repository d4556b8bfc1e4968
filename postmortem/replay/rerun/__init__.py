"""Runs the step again from the state before it, unchanged or changed."""
