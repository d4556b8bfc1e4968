"""Records every operator of one run of a step. Can be attached to any training code."""
