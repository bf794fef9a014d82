"""Runs on shapes alone."""
