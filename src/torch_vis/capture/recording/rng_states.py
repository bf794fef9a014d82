"""The states of random generators that a replay needs: those that are not what the last random operation left."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch

from torch_vis.capture.kept_tensors import Seed
from torch_vis.capture.recording.recorder import Recorder


class Found(NamedTuple):
    """A generator that an operation is about to draw from, and how it was found."""

    generator: Any
    device: str
    state: torch.Tensor
    content: bytes


def drawn_from(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found | None:
    """The generator that a random operation is about to draw from; None on a device whose generator is not known."""
    generator = kwargs.get("generator")
    device = "cpu"
    if generator is None:
        found = kwargs.get("device")
        if found is None:
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            found = tensors[0].device if tensors else torch.device("cpu")
        found = torch.device(found)
        if found.type == "cuda":
            index = torch.cuda.current_device() if found.index is None else found.index
            generator = torch.cuda.default_generators[index]
            device = f"cuda:{index}"
        elif found.type == "cpu":
            generator = torch.default_generator
        else:
            return None
    state = generator.get_state()
    return Found(generator, device, state, _bytes(state))


def keep_state(rec: Recorder, found: Found, node: int) -> None:
    """After an operation has drawn: keep the state that it found, where that was not left by the one before."""
    generator, device, state, content = found
    if rec.random_states.get(generator) != content:
        default = generator is torch.default_generator or device != "cpu"
        rec.held.seeds[node] = Seed(None if default else generator, device, state)
    rec.random_states[generator] = _bytes(generator.get_state())


def _bytes(state: torch.Tensor) -> bytes:
    """A generator's state, read without an operation."""
    return ctypes.string_at(state.data_ptr(), state.numel())
