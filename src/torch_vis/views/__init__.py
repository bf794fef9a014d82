"""A graph shown to a person: one file for each way to look at it."""
