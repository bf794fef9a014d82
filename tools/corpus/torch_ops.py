"""The operators torch tests itself with, `op_db`, on the first few samples of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tools.corpus.expecttest_stub import allow_torch_testing
from tools.corpus.subject import Maker, NothingToRun, Subject

MOST_SAMPLES = 4
_DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool)


def prepare() -> None:
    """Import torch's own list of operators."""
    allow_torch_testing()
    import torch.testing._internal.common_methods_invocations  # noqa: F401


def names() -> list[str]:
    """One case an operator and variant."""
    return list(_infos())


def makers(name: str) -> list[Maker]:
    """The first samples of the operator in float32, or in the first type it takes."""
    count = sum(1 for _ in _samples(name))
    return [lambda position=position: _subject(name, position) for position in range(count)]


def _infos() -> dict[str, object]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{info.name}.{info.variant_test_name}".rstrip("."): info for info in op_db}


def _samples(name: str) -> Iterator[object]:
    info = _infos()[name]
    supported = info.supported_dtypes("cpu")
    if not supported:
        raise NothingToRun("takes no type on the CPU")
    dtype = next((one for one in _DTYPES if one in supported), min(supported, key=str))
    grad = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    yield from itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=grad), MOST_SAMPLES)


def _subject(name: str, position: int) -> Subject:
    sample = next(itertools.islice(_samples(name), position, None))
    return Subject(_infos()[name].op, (sample.input, *sample.args), dict(sample.kwargs))
