"""A graph and its tensors, executed again."""
