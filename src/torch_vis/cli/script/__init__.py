"""What ``torch-vis run`` does with a script."""
