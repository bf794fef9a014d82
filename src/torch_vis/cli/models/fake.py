"""Models of shapes only: made and run in a ``FakeTensorMode``, so that their size does not matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from torch_vis.cli.models.user_errors import UsersCodeFailed

Made = TypeVar("Made")


def make(world: FakeTensorMode, maker: Callable[[], Made]) -> Made:
    """Make a model in the fake world.

    A constructor that reads numbers (timm's take drop rates from a ``linspace``) cannot run there. It is run with real
    tensors, and each parameter becomes a fake one as soon as it is registered, before anything is written to it.
    """
    try:
        with world:
            return maker()
    except UsersCodeFailed as error:
        if not isinstance(error.__cause__, DataDependentOutputException):
            raise
    with _registered_as_fake(world):
        return maker()


@contextmanager
def _registered_as_fake(world: FakeTensorMode) -> Iterator[None]:
    before = torch.nn.Module.register_parameter

    def register(self: torch.nn.Module, name: str, param: Any) -> None:
        if isinstance(param, torch.nn.Parameter) and not isinstance(param, torch.nn.UninitializedParameter):
            param = torch.nn.Parameter(world.from_tensor(param.detach()), requires_grad=param.requires_grad)
        before(self, name, param)

    torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = before  # type: ignore[method-assign]
