"""What a recorded run cost and how it behaved: each analysis reads a graph and gives columns beside it."""
