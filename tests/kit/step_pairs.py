"""Pairs of runs with one known change that have no model of a library: steps of training with several networks, losses
of two parts, a decoder and a small CNN written out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_vis as tv
from tests.kit.pairs import PAIRS, add

Make = Callable[..., tv.Trace]


def step_pair(
    name: str, make: Make, changes: str | tuple[str, ...], sentence: str = "", **options: Any
) -> None:
    """A pair of runs of a program, of which each option is one place."""
    add(name, lambda changed: make(**(options if changed else {})), changes, sentence)


def filled(model: nn.Module, seed: int = 1) -> nn.Module:
    """The model with weights that depend on their names alone."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            generator = torch.Generator().manual_seed(seed + sum(map(ord, name)))
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return model


# --- a generator and a discriminator ---


def gan(**options: Any) -> tv.Trace:
    """A step of both."""
    o = SimpleNamespace(
        **{
            "detach": True,
            "real": 1.0,
            "hinge": False,
            "critic": False,
            "slope": 0.2,
            "clip": None,
            **options,
        }
    )
    generator = filled(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)))
    discriminator = filled(nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(o.slope), nn.Linear(16, 1)))
    adam = [torch.optim.Adam(model.parameters(), 1e-3) for model in (generator, discriminator)]
    torch.manual_seed(0)
    x, z = torch.randn(6, 8), torch.randn(6, 4)

    def step() -> tuple[Tensor, Tensor]:
        adam[1].zero_grad()
        fake = generator(z)
        shown = fake.detach() if o.detach else fake
        if o.hinge:
            loss = F.relu(1 - discriminator(x)).mean() + F.relu(1 + discriminator(shown)).mean()
        else:
            ones, zeros = torch.full((6, 1), o.real), torch.zeros(6, 1)
            loss = F.binary_cross_entropy_with_logits(discriminator(x), ones)
            loss = loss + F.binary_cross_entropy_with_logits(discriminator(shown), zeros)
        loss.backward(retain_graph=True)
        if o.clip is not None:
            nn.utils.clip_grad_norm_(discriminator.parameters(), o.clip)
        adam[1].step()
        scores = discriminator(generator(z))
        if o.critic:
            other = -scores.mean()
        else:
            other = F.binary_cross_entropy_with_logits(scores, torch.ones(6, 1))
        adam[0].zero_grad()
        other.backward()
        adam[0].step()
        return loss.detach(), other.detach()

    return tv.trace(step, hold=True)


def critic_step(*, detach: bool = True) -> tv.Trace:
    """A step of the discriminator alone."""
    generator, discriminator = filled(nn.Linear(4, 8)), filled(nn.Linear(8, 1))
    sgd = torch.optim.SGD(discriminator.parameters(), 0.1)
    torch.manual_seed(0)
    x, z = torch.randn(6, 8), torch.randn(6, 4)

    def step() -> Tensor:
        sgd.zero_grad()
        fake = generator(z).detach() if detach else generator(z)
        loss = F.softplus(-discriminator(x)).mean() + F.softplus(discriminator(fake)).mean()
        loss.backward()
        sgd.step()
        return loss.detach()

    return tv.trace(step, hold=True)


step_pair(
    "gan: labels",
    gan,
    "(root) full fill_value: 1.0 → 0.9",
    "full is the first*fill_value: 1.0 → 0.9",
    real=0.9,
)
step_pair(
    "gan: hinge", gan, "(root) *binary_cross_entropy_with_logits*→*relu*", "relu*the runs part at", hinge=True
)
step_pair(
    "gan: critic", gan, "(root) *binary_cross_entropy_with_logits → mean, neg", "→ mean, neg", critic=True
)
step_pair("gan: slope", gan, "*LeakyReLU*0.2*→*0.1*", "negative_slope: 0.2 → 0.1", slope=0.1)
step_pair("gan: clipped", gan, "*added (optimizer)", "", clip=0.1)
step_pair("gan: the fakes not detached", gan, "(root) detach removed", "detach removed", detach=False)
step_pair("gan: a critic's fakes not detached", critic_step, "(root) detach removed",
          "no difference*only in B*what changed: (root) detach removed", detach=False)  # fmt: skip

# --- a network and its target ---


def learner(**options: Any) -> tv.Trace:
    """A step of learning values, whose target follows slowly."""
    o = SimpleNamespace(
        **{"tau": 0.005, "gamma": 0.99, "double": False, "huber": True, "ema": True, "quiet": True, **options}
    )
    model = filled(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)))
    target = filled(copy.deepcopy(model), 7)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(0)
    state, later, reward = torch.randn(8, 4), torch.randn(8, 4), torch.randn(8)
    action = torch.randint(0, 3, (8, 1))

    def step() -> Tensor:
        value = model(state).gather(1, action)[:, 0]
        with torch.set_grad_enabled(not o.quiet):
            ahead = target(later)
            if o.double:
                best = ahead.gather(1, model(later).argmax(1, keepdim=True))[:, 0]
            else:
                best = ahead.max(1).values
        goal = reward + o.gamma * best
        loss = F.smooth_l1_loss(value, goal) if o.huber else F.mse_loss(value, goal)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if o.ema:
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), model.parameters()):
                    slow.lerp_(fast, o.tau)
        return loss.detach()

    return tv.trace(step, hold=True)


step_pair(
    "target: rate", learner, "(root) lerp_ weight: 0.005 → 0.05", "lerp_*weight: 0.005 → 0.05", tau=0.05
)
step_pair("target: discount", learner, "(root) mul other: 0.99 → 0.9", "mul*other: 0.99 → 0.9", gamma=0.9)
step_pair(
    "target: squares", learner, "(root) smooth_l1_loss → mse_loss", "smooth_l1_loss → mse_loss", huber=False
)
step_pair("target: not updated", learner, "(root) lerp_, lerp_, lerp_, lerp_ removed",
          "only in A*what changed: (root) lerp_", ema=False)  # fmt: skip
step_pair(
    "target: with gradients",
    learner,
    ("(root) runs without gradients in A alone (no_grad)", "* runs without gradients in A alone (no_grad)"),
    "runs without gradients in A alone",
    quiet=False,
)
step_pair("target: the best by the model", learner, ("* called 1 → 2 times", "(root) max → argmax, gather, select"),
          "", double=True)  # fmt: skip

# --- losses of several parts ---


def autoencoder(**options: Any) -> tv.Trace:
    """A variational autoencoder."""
    o = SimpleNamespace(
        **{
            "beta": 0.5,
            "half": 0.5,
            "dim": 1,
            "kl": True,
            "reduction": "mean",
            "detach": False,
            "sample": True,
            **options,
        }
    )
    encoder, decoder = filled(nn.Linear(8, 6)), filled(nn.Linear(3, 8))
    torch.manual_seed(0)
    x = torch.randn(5, 8)

    def run() -> Tensor:
        torch.manual_seed(3)
        mean, log = encoder(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (o.half * log).exp() if o.sample else mean
        loss = F.mse_loss(decoder(code.detach() if o.detach else code), x, reduction=o.reduction)
        penalty = -0.5 * (1 + log - mean.pow(2) - log.exp()).sum(o.dim).mean()
        return loss + o.beta * penalty if o.kl else loss

    return tv.trace(run, loss=lambda loss: loss, hold=True)


step_pair("vae: beta", autoencoder, "(root) mul other: 0.5 → 0.1", "mul*other: 0.5 → 0.1", beta=0.1)
step_pair("vae: deviation", autoencoder, "(root) mul other: 0.5 → 1.0", "mul*other: 0.5 → 1.0", half=1.0)
step_pair(
    "vae: summed over another dimension",
    autoencoder,
    "(root) sum dim: [1] → [0]",
    "sum dim: [1] → [0]",
    dim=0,
)
step_pair("vae: no penalty", autoencoder, "(root) mul, add removed", "mul, add removed", kl=False)
step_pair(
    "vae: sum for mean", autoencoder, "(root) mse_loss reduction: 1 → 2", "reduction: 1 → 2", reduction="sum"
)
step_pair("vae: code detached", autoencoder, "(root) detach added", "detach added", detach=True)
step_pair(
    "vae: nothing drawn", autoencoder, "(root) randn_like,*removed", "randn_like,*removed", sample=False
)


def contrast(**options: Any) -> tv.Trace:
    """Two encoders whose results for one thing are to be alike."""
    o = SimpleNamespace(**{"heat": 0.1, "norm": True, "both": True, "stop": False, "dim": 1, **options})
    first, second = filled(nn.Linear(8, 4)), filled(nn.Linear(8, 4), 5)
    torch.manual_seed(0)
    x, y = torch.randn(6, 8), torch.randn(6, 8)

    def run() -> Tensor:
        u, v = first(x), second(y)
        if o.norm:
            u, v = F.normalize(u, dim=o.dim), F.normalize(v, dim=o.dim)
        if o.stop:
            v = v.detach()
        scores, labels = u @ v.t() / o.heat, torch.arange(6)
        loss = F.cross_entropy(scores, labels)
        return (loss + F.cross_entropy(scores.t(), labels)) / 2 if o.both else loss

    return tv.trace(run, loss=lambda loss: loss, hold=True)


step_pair("contrast: temperature", contrast, "(root) div other: 0.1 → 0.2", "div*other: 0.1 → 0.2", heat=0.2)
step_pair(
    "contrast: not normalised",
    contrast,
    "(root) linalg_vector_norm, *removed",
    "linalg_vector_norm",
    norm=False,
)
step_pair("contrast: one side", contrast, "(root) _log_softmax, nll_loss_forward, add, div removed",
          "add, div removed", both=False)  # fmt: skip
step_pair("contrast: one side detached", contrast, "(root) detach added",
          "only in A*what changed: (root) detach added", stop=True)  # fmt: skip
step_pair("contrast: normalised along the batch", contrast, "(root) linalg_vector_norm dim: [1] → [0]",
          "linalg_vector_norm dim: [1] → [0]", dim=0)  # fmt: skip

# --- a decoder that is written out ---

DECODER: dict[str, Any] = {
    "embed": 1.0, "first": 0, "base": 10000.0, "positions": True, "pre": True, "scale": 8**-0.5, "diagonal": 1,
    "mask": True, "fill": float("-inf"), "cap": None, "dim": -1, "double": False, "turned": True, "residual": 1.0,
    "last": False, "bias": True, "drop": 0.0, "padding": None, "twice": False,
}  # fmt: skip


class Decoder(nn.Module):
    """One layer of attention, and what is around it."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.table = nn.Embedding(20, 16, padding_idx=o.padding)
        self.inside, self.outside = nn.Linear(16, 48, bias=o.bias), nn.Linear(16, 16)
        self.norm, self.drop, self.head = nn.LayerNorm(16), nn.Dropout(o.drop), nn.Linear(16, 20)

    def forward(self, words: Tensor) -> Tensor:
        o, (batch, length) = self.o, words.shape
        x = self.table(words) * o.embed
        angles = torch.arange(o.first, length + o.first)[:, None] * o.base ** -(torch.arange(8) / 8)
        if o.positions:
            x = x + torch.cat([angles.sin(), angles.cos()], -1)
        h = self.norm(x) if o.pre else x
        query, key, value = self.inside(h).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) * o.scale
        if o.mask:
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(o.diagonal), o.fill)
        if o.cap:
            scores = torch.tanh(scores / o.cap) * o.cap
        weights = scores.double().softmax(-1).float() if o.double else scores.softmax(o.dim)
        mixed = weights @ value
        mixed = mixed.transpose(1, 2) if o.turned else mixed
        x = x * o.residual + self.drop(self.outside(mixed.reshape(batch, length, 16)))
        x = x[:, -1:] if o.last else x
        return self.head(x if o.pre else self.norm(x))


def decoder(**options: Any) -> tv.Trace:
    """A run of it."""
    model = filled(Decoder(SimpleNamespace(**{**DECODER, **options})))
    torch.manual_seed(2)
    return tv.trace(model, torch.randint(0, 20, (2, 5)), hold=True)


step_pair(
    "decoder: scale of words", decoder, "(root) mul other: 1.0 → 4.0", "mul*other: 1.0 → 4.0", embed=4.0
)
step_pair(
    "decoder: positions from 1",
    decoder,
    "(root) arange start: 0 → 1, end: 5 → 6",
    "arange start: 0 → 1",
    first=1,
)
step_pair(
    "decoder: base of positions", decoder, "(root) pow self: 10000.0 → 500.0", "10000.0 → 500.0", base=500.0
)
step_pair(
    "decoder: no positions", decoder, "(root) sin, cos, cat, add removed", "cat, add removed", positions=False
)
step_pair("decoder: norm at the end", decoder, "norm called after drop instead of after table",
          "norm called after drop", pre=False)  # fmt: skip
step_pair("decoder: scale", decoder, "(root) mul other: 0.35* → 0.125", "→ 0.125", scale=0.125)
step_pair(
    "decoder: mask off by one", decoder, "(root) triu diagonal: 1 → 2", "triu diagonal: 1 → 2", diagonal=2
)
step_pair(
    "decoder: fill of the mask",
    decoder,
    "(root) masked_fill value: -inf → -10000.0",
    "-inf → -10000.0",
    fill=-1e4,
)
step_pair(
    "decoder: no mask", decoder, "(root) ones, triu, masked_fill removed", "masked_fill removed", mask=False
)
step_pair("decoder: soft cap", decoder, "(root) div, tanh, mul added", "div, tanh, mul added", cap=5.0)
step_pair(
    "decoder: softmax of columns", decoder, "(root) _softmax dim: -1 → -2", "_softmax*dim: -1 → -2", dim=-2
)
step_pair(
    "decoder: heads not turned back",
    decoder,
    ("(root) transpose removed", "(root) clone, _unsafe_view → view"),
    "transpose removed",
    turned=False,
)
step_pair("decoder: residual", decoder, "(root) mul other: 1.0 → 0.5", "mul*other: 1.0 → 0.5", residual=0.5)
step_pair("decoder: no bias", decoder, "inside Linear(16, 48, bias=True) → Linear(16, 48, bias=False)",
          "inside Linear(16, 48, bias=True) → Linear", bias=False)  # fmt: skip
step_pair(
    "decoder: dropout", decoder, "drop Dropout(p=0.0) → Dropout(p=0.3)", "drop Dropout(p=0.0)", drop=0.3
)
step_pair("decoder: padding", decoder, "table Embedding(20, 16, padding_idx=None) → *padding_idx=3)",
          "what changed: table Embedding", padding=3)  # fmt: skip

# --- a small CNN that is written out ---

CNN: dict[str, Any] = {
    "mode": "zeros", "pool": "max", "stride": 1, "groups": 1, "dilation": 1, "norm": "batch", "momentum": 0.1,
    "track": True, "affine": True, "all": "mean", "kernel": 3, "ceil": False, "training": True, "bias": True,
    "up": None, "corners": False, "first": "norm",
}  # fmt: skip


class Small(nn.Module):
    """Two convolutions, and what is between and behind."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.one = nn.Conv2d(3, 8, o.kernel, padding=o.kernel // 2, padding_mode=o.mode)
        self.two = nn.Conv2d(8, 8, 3, o.stride, 1, o.dilation, o.groups, o.bias)
        norms: dict[str, Callable[[], nn.Module]] = {
            "batch": lambda: nn.BatchNorm2d(
                8, momentum=o.momentum, track_running_stats=o.track, affine=o.affine
            ),
            "group": lambda: nn.GroupNorm(2, 8),
            "none": nn.Identity,
        }
        self.norm, self.head = norms[o.norm](), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        o = self.o
        x = self.one(x)
        x = F.relu(self.norm(x)) if o.first == "norm" else self.norm(F.relu(x))
        x = F.max_pool2d(x, 2, ceil_mode=o.ceil) if o.pool == "max" else F.avg_pool2d(x, 2)
        x = self.two(x)
        if o.up:
            x = F.interpolate(x, scale_factor=2, mode=o.up, align_corners=o.corners)
        return self.head(x.mean((2, 3)) if o.all == "mean" else x.amax((2, 3)))


def small(**options: Any) -> tv.Trace:
    """A run of it, and backward."""
    o = SimpleNamespace(**{**CNN, **options})
    model = filled(Small(o)).train(o.training)
    torch.manual_seed(3)
    return tv.trace(model, torch.randn(2, 3, 9, 9), backward=True, hold=True)


step_pair(
    "small: padding mode",
    small,
    "one Conv2d(*padding_mode='zeros'*padding_mode='reflect'*",
    "one Conv2d",
    mode="reflect",
)
step_pair(
    "small: average pool",
    small,
    "(root) max_pool2d_with_indices → avg_pool2d",
    "→ avg_pool2d",
    pool="average",
)
step_pair("small: stride", small, "two Conv2d(*stride=1*stride=2*", "two Conv2d(*stride=2", stride=2)
step_pair("small: groups", small, "two Conv2d(*groups=1*groups=2*", "two Conv2d(*groups=2", groups=2)
step_pair(
    "small: dilation", small, "two Conv2d(*dilation=1*dilation=2*", "two Conv2d(*dilation=2", dilation=2
)
step_pair(
    "small: no norm", small, "norm BatchNorm2d(8) → Identity", "norm BatchNorm2d(8) → Identity", norm="none"
)
step_pair(
    "small: group norm", small, "norm BatchNorm2d(8) → GroupNorm(2, 8)", "→ GroupNorm(2, 8)", norm="group"
)
step_pair(
    "small: momentum",
    small,
    "norm BatchNorm2d(8, momentum=0.1) → *momentum=0.3)",
    "momentum: 0.1 → 0.3",
    momentum=0.3,
)
step_pair("small: no running statistics", small, "norm *track_running_stats=True*track_running_stats=False)",
          "what changed: norm BatchNorm2d", track=False)  # fmt: skip
step_pair("small: no affine", small, "norm *affine=True*affine=False*", "norm BatchNorm2d", affine=False)
step_pair("small: greatest of all", small, "(root) mean → amax", "mean → amax", all="max")
step_pair(
    "small: kernel",
    small,
    "one Conv2d(3, 8, 3, padding=1) → Conv2d(3, 8, 5, padding=2)",
    "one Conv2d",
    kernel=5,
)
step_pair(
    "small: ceiling", small, "(root) max_pool2d_with_indices ceil_mode: False → True", "ceil_mode", ceil=True
)
step_pair(
    "small: eval",
    small,
    "norm BatchNorm2d(8, training=True) → *training=False)",
    "training: True → False",
    training=False,
)
step_pair("small: no bias", small, "two Conv2d(*bias=True*bias=False)", "two Conv2d", bias=False)
step_pair(
    "small: corners",
    lambda **options: small(up="bilinear", **options),
    "(root) upsample_bilinear2d align_corners: False → True",
    "align_corners: False → True",
    corners=True,
)

__all__ = ["PAIRS"]
