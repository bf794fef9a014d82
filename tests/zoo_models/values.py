"""Cases about values: random numbers, indexing and scattering, and tensors that leave for Python."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo_models.registry import Built, case


@case("adversarial", "rng", backward=False)
def random_factories() -> Built:
    """randperm, multinomial, bernoulli, normal_, uniform_ and rand_like draw from the global generator."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        order = torch.randperm(x.shape[0])
        drawn = torch.multinomial(x.abs(), 2)
        noise = torch.empty_like(x).normal_(0.5, 2).add_(torch.empty(3).uniform_(-1, 1))
        return (
            x[order],
            drawn,
            noise,
            torch.bernoulli(x.sigmoid()),
            torch.rand_like(x),
            torch.poisson(x.abs()),
        )

    return f, (torch.randn(4, 3),), {}


@case("adversarial", "rng", backward=False)
def explicit_generator() -> Built:
    """Draws come from a private generator that is an argument of the operation and moves on."""
    generator = torch.Generator().manual_seed(7)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.rand(3, generator=generator)
        return x + first, x * torch.randn(3, generator=generator)

    return f, (torch.randn(3),), {}


@case("adversarial", "rng", backward=False)
def seeds_inside_forward() -> Built:
    """Forward sets the global seed half-way and restores an earlier state at the end."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        before = torch.rand(2)
        state = torch.get_rng_state()
        torch.manual_seed(3)
        fixed = torch.rand(2)
        torch.set_rng_state(state)
        with torch.random.fork_rng(devices=[]):
            forked = torch.rand(2)
        return x + before, x + fixed, x + forked, torch.rand(2)

    return f, (torch.randn(2),), {}


@case("adversarial", "rng")
def reparameterised_sample() -> Built:
    """A sample from a torch.distributions normal carries gradients."""

    class Sampler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.deviation = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            normal = torch.distributions.Normal(self.mean(x), self.deviation(x).exp())
            sample = normal.rsample()
            return sample, normal.log_prob(sample.detach())

    return Sampler(), (torch.randn(4, 3),), {}


@case("adversarial", "indexing")
def embedding_padding() -> Built:
    """An embedding with padding_idx and max_norm, which rewrites its weight in forward."""
    embed = nn.Embedding(10, 4, padding_idx=0, max_norm=1.0)
    return embed, (torch.tensor([[0, 3, 9], [9, 0, 1]]),), {}


@case("adversarial", "indexing", "sparse")
def embedding_sparse_gradient() -> Built:
    """An embedding whose gradient is a sparse tensor."""
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    return model, (torch.tensor([[1, 3, 9], [9, 0, 1]]),), {}


@case("adversarial", "indexing")
def embedding_bag() -> Built:
    """EmbeddingBag with offsets and per-sample weights returns one of its operation's four outputs."""
    bag = nn.EmbeddingBag(10, 3, mode="sum", include_last_offset=True)
    ids, offsets = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 4, 6])
    return bag, (ids, offsets), {"per_sample_weights": torch.rand(6, requires_grad=True)}


@case("adversarial", "indexing", "inplace", backward=False)
def indexed_writes() -> Built:
    """index_put_, scatter_, masked_fill_, index_add_ and boolean masks write by index."""

    def f(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        y[torch.tensor([0, 2]), torch.tensor([1, 1])] = v
        y.index_put_((torch.tensor([3, 3]),), v.sum(), accumulate=True)
        y[y > 1] = 1.0
        y[1].masked_fill_(y[1] < 0, -5.0)
        y.scatter_(1, torch.tensor([[0], [1], [2], [0]]), 7.0)
        z = torch.zeros(4, 3).index_add_(0, torch.tensor([1, 1]), y[:2])
        z.scatter_add_(0, torch.zeros(1, 3, dtype=torch.long), y[:1])
        return y, z.masked_scatter_(z == 0, torch.arange(12.0))

    return f, (torch.randn(4, 3), torch.randn(2)), {}


@case("adversarial", "indexing")
def indexed_reads() -> Built:
    """gather, take_along_dim, index_select, masked_select, where and mixed advanced indexing."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        mask = x.detach() > 0
        order = x.detach().argsort(dim=1)
        picked = x.masked_select(mask)
        mixed = x[:, None, torch.tensor([2, 0])][..., -1]
        rolled = torch.where(mask, x, x.roll(1, 0))
        return x.gather(1, order), picked, mixed, rolled, x.index_select(0, order[0]), x[mask.any(1)]

    return f, (torch.randn(3, 3, requires_grad=True),), {}


@case("adversarial", "python-values")
def item_control_flow() -> Built:
    """Forward branches, loops and slices by numbers that it reads with `.item()`, `int()` and `bool()`."""

    class Adaptive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            steps = 1 + int(x.abs().sum().item()) % 3
            for _ in range(steps):
                x = self.linear(x)
            if (x.mean() > 0).item() or x.numel() > 100:
                x = x * float(x.std())
            return x[: int((x[:, 0] > -10).sum())]

    return Adaptive(), (torch.randn(3, 4),), {}


@case("adversarial", "python-values", backward=False)
def numpy_round_trip() -> Built:
    """Values leave by `.numpy()` and `.tolist()`, change there, and come back as new tensors."""

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        import numpy as np

        y = x * 2
        doubled = torch.from_numpy(np.sort(y.numpy()) * 2)
        listed = torch.tensor([value + 1 for value in y.tolist()])
        return doubled + 1, listed * y, torch.as_tensor(np.asarray(y).sum())

    return f, (torch.randn(4),), {}


@case("adversarial", "python-values", "unseen", backward=False)
def numpy_write() -> Built:
    """numpy writes into a tensor's memory, which no operation shows."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.numpy()[0] = 5.0
        return y + 1

    return f, (torch.randn(4),), {}


@case("adversarial", "attention")
def attention_variants() -> Built:
    """scaled_dot_product_attention with no mask, causal, boolean and float masks, and grouped heads."""

    def f(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        attend = F.scaled_dot_product_attention
        bias = torch.zeros(6, 6).masked_fill(~mask, -1e9)
        return (
            attend(q, k, v),
            attend(q, k, v, is_causal=True),
            attend(q, k, v, attn_mask=mask),
            attend(q, k, v, attn_mask=bias, scale=0.3),
            attend(q, k[:, :2], v[:, :2], enable_gqa=True),
        )

    qkv = [torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3)]
    return f, (*qkv, torch.ones(6, 6, dtype=torch.bool).tril()), {}


@case("adversarial", "attention", "rng")
def attention_dropout() -> Built:
    """scaled_dot_product_attention with dropout falls back to the math path and draws random numbers."""

    def f(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    return f, (torch.randn(1, 2, 5, 4, requires_grad=True),), {}


@case("adversarial", "dtype", backward=False)
def mixed_dtypes() -> Built:
    """Casts, integer overflow, booleans, half precision and copies to the same dtype or device."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        same = x.to(torch.float32)
        half = x.half().to(torch.bfloat16)
        bits = (x * 100).to(torch.int8) << 1
        same.add_(1)
        return (
            x * 1,
            half,
            bits,
            (x > 0) & (bits < 3),
            x.double().type_as(half),
            x.to(device="cpu", copy=True),
        )

    return f, (torch.randn(5),), {}


@case("adversarial", "dtype", backward=False)
def raises_half_way() -> Built:
    """A data-dependent error is raised and caught inside forward after some work was done."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        try:
            y @ torch.ones(99, 1)
        except RuntimeError:
            y = y + 1
        return y

    return f, (torch.randn(3, 4),), {}
