"""`postmortem run --level`: what is measured during a training, and the history that is written."""
