"""postmortem inside other tools: callbacks of trainers."""
