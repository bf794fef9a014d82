"""The selector language: its text, and what it means in a graph."""
