"""Names what made the step fail, one file per question."""
