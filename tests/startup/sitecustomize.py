"""Loaded by each Python that a test starts, as a user's own `sitecustomize` would be.

Importing torch makes a million objects, and the collector goes through them again and again: a sixth of the time.
"""

import gc

gc.set_threshold(100_000, 20, 50)
