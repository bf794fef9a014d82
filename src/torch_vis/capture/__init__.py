"""Captures: each turns a run (or a compiler's trace) into a graph."""
