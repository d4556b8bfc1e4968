"""Who made a step fail: the stages of the diagnosis, and what they share."""
