"""Saved weights: finds, maps, checks and reads saved state; knows nothing of training steps."""
