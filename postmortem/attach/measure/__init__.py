"""Measuring a training from within: sums and norms of many tensors, reading them late, and staying within a budget."""
