"""AOT on the zoo: what it captures runs again to what the model gives, and its operations of weight are the model's.

Captures through fx, export and Dynamo are held bit for bit in `test_via.py`.
``python -m tests.capture.compilers.test_via_zoo export``
takes every case through one front-end and prints the figures: how many it takes, why it refuses others, what differs.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
import torch

import torch_vis as tv
from tests.zoo import ZOO, Case, close_process_group, first_difference, tensors
from torch_vis.errors import CaptureFailed, TensorsMissing

# Captures that take seconds; the figures over all of them are printed by this file as a program.
HEAVY = frozenset(
    "bert bert_train compile_aot_eager_backend compile_inductor_backend deep_nesting detr disjoint_view_writes "
    "double_backward flex_attention_eager func_jvp gpt2 gpt2_generate gpt2_generate_method gpt2_generate_static "
    "id_reuse_loop item_control_flow kv_buffer llama long_chain lstm_cell_loop mamba mixtral resnet50 resnet50_train "
    "swin t5 transformer_train unet vit whisper wide_fan_out yolo_like".split()
)
REFUSED = {  # what torch says where AOT itself cannot take a case
    "parameter_data_assignment": "AssertionError",
    "custom_operator": "no fake impl registered",
    "complex_view_writes": "RuntimeError",
    "nested_jagged": "_local_scalar_dense",
    "function_subclass": "Multiple dispatch failed",
    "raises_half_way": "fake tensor call",
    "gradient_in_forward": "does not currently support double backward",
    "double_backward": "",
    "deep_nesting": "RecursionError",
}
FAST_PATH = "the fused fast path is not taken"
OTHERWISE = {  # other outputs, or other operations of weight, and why
    "multihead_attention_fast_path": FAST_PATH,
    "encoder_layer_fast_path": FAST_PATH,
    "encoder_nested_fast_path": FAST_PATH,
    "compile_inductor_backend": "the eager run is compiled by Inductor",
    "under_inference_mode": "linear is one operator in inference mode",
    "dtensor_world_of_one": "the eager run finds placements by running operators on shapes as well",
    "func_grad": "the gradient is a part of the forward graph",
}
WEIGHT = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "embedding",
    "native_layer_norm",
    "native_group_norm",
)


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def captured(case: Case, via: str) -> tuple[tv.Trace, tv.Trace]:
    """The case as it runs, and through a front-end."""
    model, args, kwargs = case.make()
    eager = tv.trace(model, *args, kwargs=kwargs, backward=case.backward, hold=False)
    close_process_group()
    model, args, kwargs = case.make()
    return eager, tv.trace(model, *args, kwargs=kwargs, backward=case.backward, via=via)


def forward_operations(trace: tv.Trace) -> Counter[str]:
    return Counter(node.name for node in trace.graph.nodes if node.phase == "forward")


def furthest(wanted: Any, found: Any) -> float:
    """The largest difference of two outputs, relative to the largest number in each tensor."""
    worst = 0.0
    for one, two in zip(tensors(wanted), tensors(found), strict=True):
        if one.is_floating_point() and one.layout is torch.strided and one.numel() and not one.is_nested:
            most = float(one.detach().abs().nan_to_num().max()) or 1.0
            worst = max(worst, float((one - two).detach().abs().nan_to_num().max()) / most)
    return worst


@pytest.mark.parametrize("name", [name for name in ZOO if name not in HEAVY])
def test_aot_gives_what_the_model_gives(name: str) -> None:
    case = ZOO[name]
    if name in REFUSED:
        with pytest.raises((CaptureFailed, RuntimeError), match=REFUSED[name]):
            captured(case, "aot")
        return
    eager, found = captured(case, "aot")
    if "fake" not in case.tags and name not in OTHERWISE:
        assert furthest(eager.output, found.output) <= 1e-5
        before, after = forward_operations(eager), forward_operations(found)
        assert {op: before[op] for op in WEIGHT if before[op]} == {
            op: after[op] for op in WEIGHT if after[op]
        }
    try:
        found.check(shuffles=1)
    except TensorsMissing:
        assert case.tags & {"fake"}


def main(via: str) -> None:
    """Print the figures of one front-end on the whole zoo."""
    taken, refused, other = 0, Counter[str](), []
    for name, case in ZOO.items():
        torch._dynamo.reset()
        try:
            eager, found = captured(case, via)
        except CaptureFailed as failure:
            refused[f"{type(failure.__cause__).__name__}: {failure.reason[:70]}"] += 1
            continue
        except Exception as error:
            refused[f"{type(error).__name__} while it runs: {str(error).splitlines()[0][:70]}"] += 1
            continue
        finally:
            close_process_group()
        taken += 1
        before, after = forward_operations(eager), forward_operations(found)
        less, more = dict(before - after), dict(after - before)
        where = None if case.tags & {"fake"} else first_difference(eager.output, found.output)
        if where is not None or less or more:
            other.append(
                f"{name}: output {'the same' if where is None else 'differs at ' + where}; {less} → {more}"
            )
    print(
        f"{via}: {taken} of {len(ZOO)} taken, {taken - len(other)} the same in every operation and bit",
        *other,
        sep="\n  ",
    )
    print(
        f"{sum(refused.values())} refused:",
        *(f"{n} × {cause}" for cause, n in refused.most_common()),
        sep="\n  ",
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "aot")
