"""What stands beside the tree: one file per panel, each a function of the subject, a row and a width."""
