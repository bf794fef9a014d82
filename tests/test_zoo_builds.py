"""Every case of the zoo runs eagerly, and built twice it gives the same bits, gradients included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.zoo import ZOO, Case, cases, close_process_group, first_difference, floating_sum, leaves


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


def run(case: Case) -> dict[str, Any]:
    """What a user could compare after one run: the outputs, the arguments, the state and the gradients."""
    model, args, kwargs = case.make()
    output = model(*args, **kwargs)
    inputs = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    state = list(model.state_dict().values()) if isinstance(model, nn.Module) else []
    held = [*inputs, *(model.parameters() if isinstance(model, nn.Module) else ())]
    if case.backward:
        loss = floating_sum(output)
        assert loss is not None, "declared differentiable, but no floating output carries a gradient"
        loss.backward()
    gradients = [tensor.grad for tensor in held if tensor.is_leaf]
    assert not case.backward or any(gradient is not None for gradient in gradients)
    rng = torch.get_rng_state()
    return {"output": output, "inputs": inputs, "state": state, "gradients": gradients, "rng": rng}


@pytest.mark.parametrize("case", ZOO.values(), ids=ZOO.keys())
def test_runs_the_same_twice(case: Case) -> None:
    assert first_difference(run(case), run(case)) is None


def test_registry_is_whole() -> None:
    assert len(cases("adversarial")) >= 40
    assert {"resnet50", "vit", "swin", "detr", "unet", "yolo_like", "lstm", "gru", "whisper"} <= ZOO.keys()
    assert {
        "bert",
        "gpt2_generate",
        "t5",
        "llama",
        "mixtral",
        "mamba",
        "encoder_layer_fast_path",
    } <= ZOO.keys()
    with pytest.raises(KeyError, match="the tags are"):
        cases("no such tag")
