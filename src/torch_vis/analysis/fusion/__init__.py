"""What a compiler could fuse: operations that can run as one kernel, and the bytes that this would save.

``fuse(graph)`` gives the groups. What may go together, and what may not:

- pointwise operations over one loop, through views; a smaller tensor used nowhere else is computed where it is used;
- pointwise operations before and after a reduction or normalisation, as long as it sums up the same axes;
- pointwise operations after a matrix product or convolution, which has one such product and no reduction;
- operations that read one tensor over the same loop, with nothing passing between them.
- Never: other phases or devices, data that Python looks at in between, memory that is written over while something
  still reads it, two draws of random numbers (their order would change), and whatever would make a cycle.
"""

from torch_vis.analysis.fusion.groups import KINDS, Fusion, fuse

__all__ = ["KINDS", "Fusion", "fuse"]
