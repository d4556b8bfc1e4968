"""Runs that still grow: what is new in them (`watch-logs`), and their state over HTTP (`serve`)."""
