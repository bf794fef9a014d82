"""Advice that takes many runs: batch size, quantization, pruning."""
