"""Gradients, NaN and dead units of a run."""
