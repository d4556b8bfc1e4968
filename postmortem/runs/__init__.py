"""From paths to runs: finds files, groups them, puts their readings together."""
