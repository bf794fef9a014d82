"""Statistics of activations, taken batch by batch and equal to those of all at once. Features lie along the last
dimension, and every vector along it is a row: of ``[batch, token, feature]`` the mean is ``[feature]``. ``dim=1`` names
another dimension (channels of pictures, say); with ``dim=None`` all of a sample is one row. Quantiles and histograms
are of single numbers.

A function takes an array of ``tv.open_activations``, a tensor, or batches; a class takes batches by ``update``, or is
given to ``tv.extract(model, loader, stats={name: …})``, so that nothing is written.

>>> import torch, torch_vis as tv
>>> tv.stats.mean(torch.ones(10, 3).split(4))
tensor([1., 1., 1.], dtype=torch.float64)
"""

from torch_vis.analysis.activations.statistics import (
    CKA,
    PCA,
    Covariance,
    Histogram,
    Mean,
    Quantiles,
    cka,
    covariance,
    histogram,
    mean,
    pca,
    quantiles,
)

__all__ = [
    "CKA",
    "PCA",
    "Covariance",
    "Histogram",
    "Mean",
    "Quantiles",
    "cka",
    "covariance",
    "histogram",
    "mean",
    "pca",
    "quantiles",
]
