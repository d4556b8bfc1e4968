"""Runs the user's own command and observes it, without changing the command or the user's files."""
