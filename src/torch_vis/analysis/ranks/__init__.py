"""Several ranks of one job: what one sends to others, all of them together, and simulated jobs."""
