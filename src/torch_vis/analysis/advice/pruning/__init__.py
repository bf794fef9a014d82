"""Which channels and heads can be removed."""
