"""The modules torch tests itself with, `module_db`, in train and in eval mode."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tools.corpus.expecttest_stub import allow_torch_testing
from tools.corpus.subject import Maker, Subject

MOST_INPUTS = 6  # of each module and mode


def prepare() -> None:
    """Import torch's own list of modules."""
    allow_torch_testing()
    import torch.testing._internal.common_modules  # noqa: F401


def names() -> list[str]:
    """One case a module class."""
    return list(_infos())


def makers(name: str) -> list[Maker]:
    """The first inputs of the module in train mode and in eval mode."""
    return [
        lambda position=position, training=training: _subject(name, position, training)
        for training in (True, False)
        for position in range(min(MOST_INPUTS, sum(1 for _ in _inputs(name, training))))
    ]


def _infos() -> dict[str, object]:
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def _inputs(name: str, training: bool) -> Iterator[object]:
    info = _infos()[name]
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    yield from (one for one in inputs if one.forward_input is not None)


def _subject(name: str, position: int, training: bool) -> Subject:
    chosen = list(_inputs(name, training))[position]
    made = chosen.constructor_input
    module = _infos()[name].module_cls(*made.args, **made.kwargs).to(torch.float32).train(training)
    given = chosen.forward_input
    return Subject(module, tuple(given.args), dict(given.kwargs))
