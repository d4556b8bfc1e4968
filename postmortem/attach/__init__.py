"""The user's own command under observation: nothing of it is changed, and nothing of the user's is written to."""
