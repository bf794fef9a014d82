"""Relevance traced back through a graph that has run: every operation hands on what its output was given.

Each rule hands on exactly what arrived, in shares; what a share is depends on the family:

==================  ==================================================================================================
products            linear, convolution, matmul: by the magnitude of each contribution ``|x·w|``; a bias gets nothing.
                    Of two factors that both come from the inputs (queries and keys, weights and values), each has half
sums                add, mean, pooling by average: by the magnitude of what was added; constants get nothing
elements            activations, softmax and normalisations hand on element by element; in a product with a gate
                    (sigmoid) or a scale (rsqrt) the signal takes all, other factors share evenly; a quotient's
                    numerator takes all
moves               shapes, slices, padding, gathering and maxima: back to where each element was taken from
lookups             an embedding hands the relevance of a vector to its index
composites          attention, recurrent layers and everything else that torch can take apart: by its parts
==================  ==================================================================================================

The shares come from vector-Jacobian products of torch's own operators, run on magnitudes. In mode ``contrastive`` two
amounts are followed: the total, as above, and the net, for which a contribution counts against its output where it has
the other sign; half their sum speaks for the chosen output, half their difference against it.
"""

from __future__ import annotations

from torch_vis.analysis.relevance.flow import relevance_of

__all__ = ["relevance_of"]
