"""Tests of torch_vis; the layout mirrors src."""
