"""Relevance traced back through a graph that has run: every operation hands on what its output was given.

Each rule hands on exactly what arrived, in shares; what a share is depends on the family:

==================  ==================================================================================================
products            linear, convolution, matmul: by the magnitude of each contribution ``|x·w|``; a bias gets nothing
                    but where every contribution is zero, and then it keeps what its output was given.
                    Of two factors that both come from the inputs (queries and keys, weights and values), each has half
sums                add, mean, pooling by average: by the magnitude of what was added; constants as a bias
elements            activations, softmax and normalisations hand on element by element; in a product with a gate
                    (sigmoid) or a scale (rsqrt) the signal takes all, other factors share evenly; a quotient's
                    numerator takes all. An element that is what zeros would give (a dead ReLU) keeps what it was given
moves               shapes, slices, padding, gathering and maxima: back to where each element was taken from
lookups             an embedding hands the relevance of a vector to its index
composites          attention, recurrent layers and everything else that torch can take apart: by its parts
==================  ==================================================================================================

The shares come from vector-Jacobian products of torch's own operators, run on magnitudes. In mode ``contrastive`` two
amounts are followed: the total, as above, and the net, for which a contribution counts against its output where it has
the other sign, and the output itself where it is below zero; half their sum is what raises the chosen output, half
their difference what lowers it.
"""

from __future__ import annotations

from torch_vis.analysis.relevance.flow import relevance_of

__all__ = ["relevance_of"]
