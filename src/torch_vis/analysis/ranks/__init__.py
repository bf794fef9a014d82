"""Several ranks of one job: what one says to others, all of them together, and jobs that are only imagined."""
