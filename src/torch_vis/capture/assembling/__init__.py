"""From the log of a recording to a graph, after the run."""
