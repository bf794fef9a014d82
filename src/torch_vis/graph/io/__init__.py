"""Graphs as files: the .tvz and .json formats, their column codec, and writing a file whole or not at all."""
