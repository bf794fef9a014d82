"""Advice that takes runs of its own: batch size, quantization, pruning, checkpointing."""
