"""Convolutions, normalisations of maps, pooling and resampling to time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from torch_vis.analysis.machine.probes.sizes import Bench, Probe, Work, backward, without_gradients

CHANNELS = [16, 32, 64, 64, 128, 128, 256, 256, 512, 512, 1024, 2048]
SIDES = [4, 7, 8, 10, 14, 16, 20, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256]
IMAGE = 3  # channels of an image
BATCHES = [1, 1, 2, 4, 8, 8, 16, 32, 32, 64]


class Filter(NamedTuple):
    """A convolution: batch, side of the map, channels in and out, side of the window, stride, groups, direction."""

    batch: int
    side: int
    inputs: int
    outputs: int
    window: int
    stride: int
    groups: int
    transposed: bool

    @property
    def made(self) -> int:
        """The side of what it makes."""
        return self.side * self.stride if self.transposed else max(self.side // self.stride, 1)

    @property
    def flops(self) -> float:
        """Its arithmetic."""
        pixels = self.side**2 if self.transposed else self.made**2
        return 2.0 * self.batch * pixels * self.outputs * self.inputs / self.groups * self.window**2


def convolutions(bench: Bench, dtype: str, count: int) -> Iterator[Probe]:
    """Convolutions forward and backward: dense, grouped, one per channel, strided, transposed.

    Every second one is heavy: those are what a device is busy with, and of all that models have they are few.
    """
    most = bench.flops.get("tf32" if dtype == "float32" else dtype, bench.flops[dtype]) / 8

    def sample() -> Filter:
        pick = bench.random.random()
        window = bench.some([1, 1, 1, 1, 3, 3, 3, 3, 3, 5, 7, 2, 4])
        inputs = bench.some([*CHANNELS, bench.between(16, 1024, 8)])
        outputs = bench.some([*CHANNELS, inputs, inputs, bench.between(16, 1024, 8)])
        groups, stride = 1, 2 if window in (2, 4) else bench.some([1, 1, 1, 2])
        if inputs >= 16 and pick < 0.2:
            groups = outputs = inputs
            window = bench.some([3, 3, 5, 5, 7])
        elif pick > 0.92:  # the first layer of most models
            window, stride = bench.random.choice([(7, 2), (3, 1), (3, 2), (4, 4), (16, 16)])
            image = bench.some([96, 128, 160, 192, 224, 256])
            return Filter(
                bench.some(BATCHES), image, IMAGE, bench.some([16, 32, 64, 96, 768]), window, stride, 1, False
            )
        elif inputs % 32 == outputs % 32 == 0 and pick < 0.25:
            groups = 32
        turned = groups == 1 and window in (2, 4) and bench.random.random() < 0.6
        return Filter(bench.some(BATCHES), bench.some(SIDES), inputs, outputs, window, stride, groups, turned)

    def fits(one: Filter, least: float) -> bool:
        cells = one.batch * (one.inputs * one.side**2 + one.outputs * one.made**2)
        return one.window <= one.side and least < one.flops <= most and cells <= bench.elements

    for least, part in ((1e4, count - count // 2), (most / 50, count // 2)):
        for one in bench.draw(part, sample, partial(fits, least=least)):
            yield Probe("convolution", partial(_convolution, bench, dtype, one, False))
            yield Probe("convolution backward", partial(_convolution, bench, dtype, one, True))


def _convolution(bench: Bench, dtype: str, one: Filter, gradient: bool) -> Work:
    asked = gradient and one.inputs != IMAGE
    data = bench.tensor(one.batch, one.inputs, one.side, one.side, dtype=dtype, grad=asked)
    ends = (one.inputs, one.outputs) if one.transposed else (one.outputs, one.inputs // one.groups)
    weight = bench.tensor(*ends, one.window, one.window, dtype=dtype, grad=gradient)

    def call() -> torch.Tensor:
        if one.transposed:
            return F.conv_transpose2d(data, weight, None, stride=one.stride)
        padding = one.window // 2 if one.window % 2 else 0
        return F.conv2d(data, weight, None, stride=one.stride, padding=padding, groups=one.groups)

    if not gradient:
        return call
    # of a model's first layer nobody asks for the gradient of its input
    return backward(call(), (weight,) if one.inputs == IMAGE else (data, weight))


def normalizations(bench: Bench, dtype: str, count: int) -> Iterator[Probe]:
    """Batch normalisation in training, backward and inference; group normalisation as well."""

    def sample() -> tuple[int, int, int]:
        channels = [16, 24, 32, 40, 64, 96, 112, 128, 192, 256, 320, 512, 1024, 2048]
        return (
            bench.some(BATCHES),
            bench.some(channels),
            bench.some([7, 8, 14, 16, 28, 32, 56, 64, 80, 112, 128, 160]),
        )

    def fits(drawn: tuple[int, int, int]) -> bool:
        return drawn[0] * drawn[1] * drawn[2] ** 2 <= bench.elements / 2

    for number, drawn in enumerate(bench.draw(count, sample, fits)):
        kind = "group" if number % 4 == 3 else "batch"
        for form in ("training", "backward", "inference")[: 2 if kind == "group" else 3]:
            yield Probe("normalization", partial(_normalization, bench, dtype, drawn, kind, form))


def _normalization(bench: Bench, dtype: str, drawn: tuple[int, int, int], kind: str, form: str) -> Work:
    batch, channels, side = drawn
    gradient = form != "inference"
    data = bench.tensor(batch, channels, side, side, dtype=dtype, grad=gradient)
    weight, bias = (bench.tensor(channels, dtype=dtype, grad=gradient) for _ in range(2))
    mean, variance = bench.tensor(channels, dtype=dtype), bench.tensor(channels, dtype=dtype).abs_()

    def call() -> torch.Tensor:
        if kind == "group":
            return F.group_norm(data, 8, weight, bias)
        return F.batch_norm(data, mean, variance, weight, bias, form != "inference")

    if form == "backward":
        return backward(call(), (data, weight, bias))
    return without_gradients(call) if form == "inference" else call


def poolings(bench: Bench, dtype: str, elements: int) -> Iterator[Probe]:
    """Pooling and resampling of maps with about so many elements, forward and backward."""
    side, channels = bench.some([7, 8, 14, 16, 28, 32, 56, 64, 112]), bench.some([16, 64, 128, 256])
    batch = max(1, elements // (side**2 * channels))
    calls = {
        "max 3": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max 2": lambda x: F.max_pool2d(x, 2),
        "mean": lambda x: F.adaptive_avg_pool2d(x, 1),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
        "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    }

    def make(name: str, gradient: bool) -> Work:
        data = bench.tensor(batch, channels, side, side, dtype=dtype, grad=gradient)
        call = calls[name]
        return backward(call(data), (data,)) if gradient else lambda: call(data)

    for name in calls:
        for gradient in (False, True):
            yield Probe("pooling", partial(make, name, gradient))
