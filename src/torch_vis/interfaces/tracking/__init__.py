"""``ComputationalGraphTracker`` and what goes with it."""
