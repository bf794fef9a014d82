"""Statistics of activations that are too many to hold: taken batch by batch, and equal to those of all at once.

Features lie along one dimension (``dim``, the last by default), and every vector along it counts as a row; with
``dim=None`` all that a sample has is one row. Sums are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from torch_vis.analysis.activations.dataset import ActivationArray
from torch_vis.errors import UsageError

Source = Any
"""An array of ``open_activations``, a tensor, or batches: a sequence or an iterator of tensors."""


def batches_of(source: Source) -> Iterator[torch.Tensor]:
    """The tensors that a source is made of."""
    if isinstance(source, ActivationArray):
        yield from source.batches()
        return
    if isinstance(source, torch.Tensor):
        yield source
        return
    if isinstance(source, (str, bytes)) or not isinstance(source, Iterable):
        raise UsageError(
            f"statistics are of activations: an array, a tensor or batches, not {type(source).__name__}"
        )
    for batch in source:
        if not isinstance(batch, torch.Tensor):
            raise UsageError(f"a batch is a tensor, not {type(batch).__name__}")
        yield batch


def _checked(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise UsageError("statistics are of dense tensors; this one is sparse, nested or quantized")
    if tensor.is_complex():
        raise UsageError("statistics are of real numbers; take .real, .imag or .abs() of complex ones")
    return tensor.detach()


def _rows(tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Rows of features in float64."""
    tensor = _checked(tensor)
    if tensor.dim() == 0:
        tensor = tensor.reshape(1, 1)
    elif tensor.dim() == 1:
        tensor = tensor.reshape(-1, 1)
    if dim is None:
        return tensor.reshape(len(tensor), math.prod(tensor.shape[1:])).double()
    if not -tensor.dim() <= dim < tensor.dim():
        raise UsageError(f"dim={dim}: a batch has {tensor.dim()} dimensions")
    wide = tensor.movedim(dim, -1)
    return wide.reshape(wide[..., 0].numel() if wide.shape[-1] else 0, wide.shape[-1]).double()


class Statistic:
    """Something that is found out batch by batch; ``update`` takes one batch, and ``result`` gives what it came to.

    Some need the data more than once: after each time through it ``next_pass`` says whether to go through it again.
    """

    sides = 1
    """How many activations it is about: 2 for a comparison."""

    def update(self, *tensors: torch.Tensor) -> None:
        """Take one batch."""
        raise NotImplementedError

    def next_pass(self) -> bool:
        """The data have ended; whether another pass over them is needed."""
        return False

    def result(self) -> Any:
        """What it came to."""
        raise NotImplementedError

    def over(self, *sources: Source) -> Any:
        """Take everything of a source, and give what it came to."""
        needs_pass = True
        while needs_pass:
            seen = 0
            for tensors in zip(*map(batches_of, sources), strict=True):
                self.update(*tensors)
                seen += 1
            if not seen:
                raise UsageError("there is nothing to take statistics of: the source gave no batch")
            needs_pass = self.next_pass()
            if needs_pass and any(isinstance(source, Iterator) for source in sources):
                raise UsageError(
                    f"{type(self).__name__} goes through the data more than once, and an iterator can be gone through "
                    "once: give an array, a tensor or a list"
                )
        return self.result()


class Mean(Statistic):
    """The mean of every feature: of each place along ``dim``, over all other dimensions.

    >>> import torch, torch_vis as tv
    >>> tv.stats.Mean().over([torch.tensor([[1.0], [2.0]]), torch.tensor([[6.0]])])
    tensor([3.], dtype=torch.float64)
    """

    def __init__(self, *, dim: int | None = -1) -> None:
        self.dim = dim
        self.rows = 0
        """How many rows there were."""
        self._sum: torch.Tensor | None = None

    def update(self, *tensors: torch.Tensor) -> None:
        """Take one batch."""
        rows = _rows(tensors[0], self.dim)
        self.rows += len(rows)
        total = rows.sum(0)
        self._sum = total if self._sum is None else _same(self._sum, total) + total

    def result(self) -> torch.Tensor:
        """The mean, in float64."""
        if self._sum is None or not self.rows:
            raise UsageError("there are no rows to take the mean of")
        return self._sum / self.rows


def _same(before: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    if before.shape != new.shape:
        raise UsageError(f"a batch has {len(new):,} features and those before it had {len(before):,}")
    return before


class Comoments:
    """Centred products of two sets of features, joined batch by batch so that nothing cancels."""

    def __init__(self) -> None:
        self.rows = 0
        self.left: torch.Tensor | None = None
        self.right: torch.Tensor | None = None
        self.products: torch.Tensor | None = None

    def update(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """Take rows of both."""
        if len(left) != len(right):
            raise UsageError(
                f"the two have to have the same rows, and a batch has {len(left)} and {len(right)}"
            )
        if not len(left):
            return
        mine, theirs = left.mean(0), right.mean(0)
        products = (left - mine).T @ (right - theirs)
        if self.left is None or self.right is None or self.products is None:
            self.left, self.right, self.products = mine, theirs, products
        else:
            total = self.rows + len(left)
            apart_left, apart_right = mine - _same(self.left, mine), theirs - _same(self.right, theirs)
            weight = self.rows * len(left) / total
            self.products = self.products + products + weight * torch.outer(apart_left, apart_right)
            self.left = self.left + apart_left * (len(left) / total)
            self.right = self.right + apart_right * (len(left) / total)
        self.rows += len(left)


class Covariance(Statistic):
    """How features vary together, as a matrix; features lie along ``dim``.

    >>> import torch, torch_vis as tv
    >>> rows = torch.randn(100, 3)
    >>> torch.allclose(tv.stats.covariance(rows.split(7)).float(), rows.T.cov(), atol=1e-6)
    True
    """

    def __init__(self, *, dim: int | None = -1, correction: int = 1) -> None:
        self.dim, self.correction = dim, correction
        self.moments = Comoments()

    def update(self, *tensors: torch.Tensor) -> None:
        """Take one batch."""
        rows = _rows(tensors[0], self.dim)
        self.moments.update(rows, rows)

    def result(self) -> torch.Tensor:
        """The matrix, in float64."""
        if self.moments.products is None or self.moments.rows <= self.correction:
            raise UsageError(f"a covariance needs more than {self.correction} rows, not {self.moments.rows}")
        return self.moments.products / (self.moments.rows - self.correction)


class Principal(NamedTuple):
    """Directions of the largest variance, the largest first."""

    components: torch.Tensor
    """A row for each direction, of length 1; its largest element is positive."""
    variances: torch.Tensor
    """How much the data vary along each."""
    ratios: torch.Tensor
    """That as a share of all variance."""
    mean: torch.Tensor
    """What is taken off before projecting."""

    def project(self, tensor: torch.Tensor) -> torch.Tensor:
        """Coordinates of rows along the directions."""
        return (tensor.double() - self.mean) @ self.components.T


class PCA(Covariance):
    """The directions in which activations vary most; features lie along ``dim``.

    >>> import torch, torch_vis as tv
    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> line = torch.randn(50, 1) * torch.tensor([[3.0, 4.0]])
    >>> tv.stats.pca(line, 1).components
    tensor([[0.6000, 0.8000]], dtype=torch.float64)
    """

    def __init__(self, count: int | None = None, *, dim: int | None = -1) -> None:
        super().__init__(dim=dim)
        if count is not None and count < 1:
            raise UsageError(f"pca() gives one direction or more, not {count}")
        self.count = count

    def result(self) -> Principal:  # type: ignore[override]
        """The directions."""
        covariance = super().result()
        assert self.moments.left is not None
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1).T
        count = len(values) if self.count is None else self.count
        if count > len(values):
            raise UsageError(f"there are {len(values)} features, and no {count} directions")
        largest = vectors.abs().argmax(1, keepdim=True)
        vectors = vectors * vectors.gather(1, largest).sign()
        whole = values.sum()
        return Principal(vectors[:count], values[:count], values[:count] / whole, self.moments.left)


class HistogramCounts(NamedTuple):
    """How many elements lie between neighbouring edges; the last edge belongs to the last bin."""

    counts: torch.Tensor
    edges: torch.Tensor
    outside: int
    """Elements beyond the edges."""
    nan: int


class Histogram(Statistic):
    """How elements are spread over bins of one width.

    >>> import torch, torch_vis as tv
    >>> tv.stats.histogram([torch.tensor([0.0, 1.0]), torch.tensor([4.0])], bins=2).counts
    tensor([2, 1])
    """

    def __init__(self, bins: int = 100, *, range: tuple[float, float] | None = None) -> None:
        if bins < 1:
            raise UsageError(f"a histogram has one bin or more, not {bins}")
        if range is not None and not (len(range) == 2 and range[0] < range[1]):
            raise UsageError(f"range is (least, most), not {range!r}")
        self.bins = bins
        self._low, self._high = (math.inf, -math.inf) if range is None else map(float, range)
        self._counts = torch.zeros(bins, dtype=torch.int64) if range is not None else None
        self._outside = self._nan = 0

    def update(self, *tensors: torch.Tensor) -> None:
        """Take one batch: first for the least and the most, then to count."""
        values = _checked(tensors[0]).reshape(-1).double().cpu()
        finite = values[values.isfinite()]
        if self._counts is None:
            if len(finite):
                self._low = min(self._low, float(finite.min()))
                self._high = max(self._high, float(finite.max()))
            return
        self._nan += int(values.isnan().sum())
        inside = finite[(finite >= self._low) & (finite <= self._high)]
        self._outside += int((~values.isnan()).sum()) - len(inside)
        # by the edges themselves, so that an element is in the same bin in whichever batch it comes
        where = torch.bucketize(inside, self._edges(), right=True) - 1
        self._counts += torch.bincount(where.clamp_(0, self.bins - 1), minlength=self.bins)

    def _edges(self) -> torch.Tensor:
        return torch.linspace(self._low, self._high, self.bins + 1, dtype=torch.float64)

    def next_pass(self) -> bool:
        """Whether the data are to be counted now that their range is known."""
        if self._counts is not None:
            return False
        if self._low > self._high:
            raise UsageError("a histogram needs a finite element")
        if self._low == self._high:
            self._low, self._high = self._low - 0.5, self._high + 0.5
        self._counts = torch.zeros(self.bins, dtype=torch.int64)
        return True

    def result(self) -> HistogramCounts:
        """The counts."""
        assert self._counts is not None
        return HistogramCounts(self._counts, self._edges(), self._outside, self._nan)


# bits of an element that one time through the data settles
DIGIT_BITS = 16
_WIDER = {
    torch.bool: torch.uint8,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.float8_e4m3fn: torch.float16,
    torch.float8_e5m2: torch.float16,
}
ORDERED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Quantiles(Statistic):
    """The elements below which given shares of all lie, exactly; NaN if there is one.

    Elements are sorted by their bits, sixteen at a time: float16 and bfloat16 are gone through once, float32 twice and
    float64 four times.

    >>> import torch, torch_vis as tv
    >>> tv.stats.quantiles([torch.tensor([3.0, 1.0]), torch.tensor([2.0])], [0.0, 0.25, 1.0])
    tensor([1.0000, 1.5000, 3.0000], dtype=torch.float64)
    """

    def __init__(self, shares: Sequence[float] = (0.01, 0.25, 0.5, 0.75, 0.99)) -> None:
        try:
            self.shares = [float(share) for share in shares]
        except (TypeError, ValueError):
            raise UsageError(f"quantiles are a list of shares between 0 and 1, not {shares!r}") from None
        if not self.shares or not all(0 <= share <= 1 for share in self.shares):
            raise UsageError(f"quantiles are shares between 0 and 1, not {shares!r}")
        self.elements = 0
        """How many there were."""
        self._dtype: torch.dtype | None = None
        self._nan = 0
        # for each stretch of elements that is still open: what its elements begin with, and what follows how often
        self._prefixes: list[int] = [0]
        self._digits = 0
        self._counts: dict[int, torch.Tensor] = {}
        # ranks that are looked for: the prefix so far, and the place among elements with that prefix
        self._wanted: dict[int, tuple[int, int]] = {}

    def _bits(self) -> int:
        assert self._dtype is not None
        return int(self._dtype.itemsize) * 8

    def update(self, *tensors: torch.Tensor) -> None:
        """Take one batch."""
        tensor = _checked(tensors[0]).reshape(-1).cpu()
        # those that torch hardly computes with, in the next that holds all of their values
        tensor = tensor.to(_WIDER.get(tensor.dtype, tensor.dtype))
        if self._dtype is None:
            self._dtype = tensor.dtype
        elif tensor.dtype != self._dtype:
            raise UsageError(f"a batch is of {tensor.dtype} and those before it of {self._dtype}")
        if tensor.is_floating_point():
            nan = int(tensor.isnan().sum())
            if not self._digits:
                self._nan += nan
                self.elements += len(tensor) - nan
            tensor = tensor[~tensor.isnan()] if nan else tensor
        elif not self._digits:
            self.elements += len(tensor)
        keys = _sortable(tensor)
        shift = max(0, self._bits() - DIGIT_BITS * (self._digits + 1))
        width = 1 << min(DIGIT_BITS, self._bits())
        digits = (keys >> shift) & (width - 1)
        for prefix in self._prefixes:
            chosen = digits
            if self._digits:
                upper = (1 << (DIGIT_BITS * self._digits)) - 1
                chosen = digits[((keys >> (shift + DIGIT_BITS)) & upper) == prefix]
            counts = torch.bincount(chosen, minlength=width)
            self._counts[prefix] = self._counts[prefix] + counts if prefix in self._counts else counts

    def next_pass(self) -> bool:
        """Settle the next sixteen bits; whether there are more."""
        if self._dtype is None or not self.elements:
            return False
        if not self._digits:
            places = [share * (self.elements - 1) for share in self.shares]
            ranks = {rank for position in places for rank in (math.floor(position), math.ceil(position))}
            self._wanted = {rank: (0, rank) for rank in ranks}
        settled = {}
        for rank, (prefix, position) in self._wanted.items():
            ends = self._counts[prefix].cumsum(0)
            digit = int(torch.searchsorted(ends, position, right=True))
            before = int(ends[digit - 1]) if digit else 0
            settled[rank] = ((prefix << min(DIGIT_BITS, self._bits())) | digit, position - before)
        self._wanted = settled
        self._digits += 1
        self._prefixes = sorted({prefix for prefix, _ in settled.values()})
        self._counts = {}
        return self._digits * DIGIT_BITS < self._bits()

    def result(self) -> torch.Tensor:
        """The quantiles, in float64; between two elements as far as their share says."""
        if self._nan:
            return torch.full((len(self.shares),), math.nan, dtype=torch.float64)
        if self._dtype is None or not self.elements:
            raise UsageError("there are no elements to take quantiles of")
        values = {rank: _value(prefix, self._dtype) for rank, (prefix, _) in self._wanted.items()}
        result = []
        for share in self.shares:
            position = share * (self.elements - 1)
            low, high = values[math.floor(position)], values[math.ceil(position)]
            part = position - math.floor(position)
            result.append(low if low == high or not part else low + (high - low) * part)
        return torch.tensor(result, dtype=torch.float64)


def _sortable(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers in the order of the elements, read as if they had no sign."""
    bits = tensor.element_size() * 8
    if tensor.dtype == torch.uint8:
        return tensor.long()
    if tensor.is_floating_point():
        # minus zero is zero
        tensor = torch.where(tensor == 0, torch.zeros_like(tensor), tensor)
    whole = tensor.contiguous().view(ORDERED[tensor.element_size()]).long()
    if tensor.is_floating_point():
        # negative numbers are in the reverse order of their bits
        largest = (1 << (bits - 1)) - 1
        whole = torch.where(whole < 0, whole ^ largest, whole)
    # into the upper half, so that shifts give digits; of 64 bits, adding wraps around as it should
    half = 1 << (bits - 1)
    return whole + half if bits < 64 else whole ^ torch.tensor(-(1 << 63))


def _value(key: int, dtype: torch.dtype) -> float:
    """The element that a whole number of ``_sortable`` stands for."""
    bits = dtype.itemsize * 8
    if dtype == torch.uint8:
        return float(key)
    whole = key - (1 << (bits - 1))
    if dtype.is_floating_point and whole < 0:
        whole ^= (1 << (bits - 1)) - 1
    return float(torch.tensor([whole], dtype=ORDERED[dtype.itemsize]).view(dtype))


class CKA(Statistic):
    """How alike two activations of the same samples are, whatever the basis: linear centred kernel alignment, 0 to 1.

    >>> import torch, torch_vis as tv
    >>> rows = torch.randn(100, 3)
    >>> rotation = torch.linalg.qr(torch.randn(3, 3)).Q
    >>> round(tv.stats.cka(rows, 2 * rows @ rotation), 5)
    1.0
    """

    sides = 2

    def __init__(self, *, dim: int | None = -1) -> None:
        self.dim = dim
        self._both, self._left, self._right = Comoments(), Comoments(), Comoments()

    def update(self, *tensors: torch.Tensor) -> None:
        """Take a batch of each."""
        left, right = (_rows(tensor, self.dim) for tensor in tensors)
        self._both.update(left, right)
        self._left.update(left, left)
        self._right.update(right, right)

    def result(self) -> float:
        """The alignment; NaN where one of the two does not vary."""
        products = [moments.products for moments in (self._both, self._left, self._right)]
        if any(product is None for product in products):
            raise UsageError("there are no rows to compare")
        both, left, right = (
            float(torch.linalg.matrix_norm(product)) for product in products if product is not None
        )
        return both**2 / (left * right) if left and right else math.nan


def mean(source: Source, *, dim: int | None = -1) -> torch.Tensor:
    """The mean of every feature over all rows of a source, in float64.

    Features lie along ``dim``, the last dimension by default: samples, tokens and whatever else a source has are rows.
    With ``dim=None`` only samples are, and the mean has the length of all that one sample has.

    >>> import torch, torch_vis as tv
    >>> tv.stats.mean([torch.ones(2, 3), torch.zeros(2, 3)])
    tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """
    return Mean(dim=dim).over(source)


def covariance(source: Source, *, dim: int | None = -1, correction: int = 1) -> torch.Tensor:
    """How features vary together over all rows of a source, as a matrix in float64.

    Features lie along ``dim``, as for ``mean``.

    >>> import torch, torch_vis as tv
    >>> tv.stats.covariance(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    tensor([[2., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    return Covariance(dim=dim, correction=correction).over(source)


def pca(source: Source, count: int | None = None, *, dim: int | None = -1) -> Principal:
    """The directions in which rows of a source vary most; ``project`` of the result gives coordinates along them.

    Features lie along ``dim``, as for ``mean``.

    >>> import torch, torch_vis as tv
    >>> principal = tv.stats.pca(torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.5]]), 1)
    >>> principal.components, round(float(principal.ratios[0]), 3)
    (tensor([[1., 0.]], dtype=torch.float64), 0.923)
    """
    return PCA(count, dim=dim).over(source)


def quantiles(source: Source, shares: Sequence[float] = (0.01, 0.25, 0.5, 0.75, 0.99)) -> torch.Tensor:
    """The elements of a source below which given shares of all lie, exactly, in float64.

    >>> import torch, torch_vis as tv
    >>> tv.stats.quantiles(torch.arange(5), [0.5])
    tensor([2.], dtype=torch.float64)
    """
    return Quantiles(shares).over(source)


def histogram(
    source: Source, bins: int = 100, *, range: tuple[float, float] | None = None
) -> HistogramCounts:
    """How the elements of a source are spread over bins of one width, between the least and the most or in a range.

    >>> import torch, torch_vis as tv
    >>> tv.stats.histogram(torch.arange(10), 2).counts
    tensor([5, 5])
    """
    return Histogram(bins, range=range).over(source)


def cka(a: Source, b: Source, *, dim: int | None = -1) -> float:
    """How alike two activations of the same samples are, from 0 to 1: linear centred kernel alignment.

    Features lie along ``dim``, as for ``mean``.

    >>> import torch, torch_vis as tv
    >>> tv.stats.cka(torch.tensor([[0.0], [1.0], [0.0], [1.0]]), torch.tensor([[0.0], [0.0], [1.0], [1.0]]))
    0.0
    """
    if isinstance(a, ActivationArray) and isinstance(b, ActivationArray):
        if len(a) != len(b):
            raise UsageError(
                f"{a.name!r} has {len(a):,} rows and {b.name!r} {len(b):,}: not the same samples"
            )
        a, b = _alike(a, b)
    return CKA(dim=dim).over(a, b)


def _alike(a: ActivationArray, b: ActivationArray) -> tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]]:
    """Both arrays in the same steps."""
    step = max(1, min(len(batch) for array in (a, b) for batch in [next(array.batches())]))
    starts = range(0, len(a), step)
    return (a[at : at + step] for at in starts), (b[at : at + step] for at in starts)
