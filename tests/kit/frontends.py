"""Models of the zoo that a compiler's front-end takes another way than an eager run, and why."""

from __future__ import annotations

# What a front-end changes by its nature: it records neither the modes around nor the state that Python code keeps.
OTHERWISE = {
    "fx": {
        "parameter_changed_under_no_grad": "no_grad blocks are not recorded",
        "partly_no_grad": "no_grad blocks are not recorded",
        "parameter_data_assignment": "assignments to .data are run at capture",
        "data_assignment": "assignments to .data are run at capture",
        "autocast_bf16": "autocast is not recorded",
        "under_inference_mode": "inference mode is not recorded",
        "strided_writes": "writes to constants are run at capture",
        "out_writes": "out= writes are run at capture",
        "custom_operator": "operators on no input are run at capture",
        "random_factories": "random factories are run at capture",
        "raises_half_way": "the model raises",
    },
    "export": {
        "seeds_inside_forward": "manual_seed is run at capture",
        "under_inference_mode": "inference mode is not recorded",
        "compile_inductor_backend": "the eager run is compiled by Inductor",
        "checkpoint_reentrant": "reentrant checkpointing is recorded under no_grad",
        "multihead_attention_fast_path": "the fused fast path is not taken",
        "encoder_layer_fast_path": "the fused fast path is not taken",
        "encoder_nested_fast_path": "the fused fast path is not taken",
        "raises_half_way": "the model raises",
    },
    "dynamo": {
        "compile_inductor_backend": "the eager run is compiled by Inductor",
        "multihead_attention_fast_path": "the fused fast path is not taken",
        "encoder_nested_fast_path": "the fused fast path is not taken",
        "raises_half_way": "the model raises",
    },
}
