"""Activations of whole data sets: extracted to files, opened as arrays, or taken as statistics on the way."""
