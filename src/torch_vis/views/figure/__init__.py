"""A run as a picture: folded to what a person can read, laid out in layers, ready for any renderer to draw."""
