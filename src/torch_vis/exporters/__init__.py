"""A graph written for other tools: one file for each format."""
