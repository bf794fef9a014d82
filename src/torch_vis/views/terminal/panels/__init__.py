"""What stands beside the tree: one file per panel, each a function of the source, a row and a width."""
