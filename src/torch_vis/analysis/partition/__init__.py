"""A graph cut into parts, each operation in one, in an order without cycles, and why each cut is where it is."""

from torch_vis.analysis.partition.parts import WAYS, Budget, Cut, Parts, cut

__all__ = ["WAYS", "Budget", "Cut", "Parts", "cut"]
