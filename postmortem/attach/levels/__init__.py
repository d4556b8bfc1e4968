"""`postmortem run --level`: what is measured while nothing is wrong, and the history that is made of it."""
