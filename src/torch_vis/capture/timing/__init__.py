"""Runs that are repeated to time them, and the profiler's events matched to operations."""
