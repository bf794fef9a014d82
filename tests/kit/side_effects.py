"""Everything a user could notice of a run and of what it left behind in torch, as plain data to compare."""

from __future__ import annotations

import gc
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_file
from torch.optim import optimizer as optimizer_file
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tests.zoo import Case, floating_sum, leaves

HOOKS = (
    "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks _state_dict_hooks "
    "_forward_hooks_with_kwargs _forward_pre_hooks_with_kwargs _forward_hooks_always_called"
).split()
PATCHABLE = "numpy tolist __array__ __dlpack__ item __float__ backward __torch_function__".split()
MISSING = "not there"


def torch_globals() -> dict[str, Any]:
    """The settings, hooks and methods of torch and Python that a tracer could leave changed."""
    return {
        "module call": nn.Module.__call__,
        "tensor methods": {name: torch.Tensor.__dict__.get(name, MISSING) for name in PATCHABLE},
        "optimizer hooks": [
            list(optimizer_file._global_optimizer_pre_hooks),
            list(optimizer_file._global_optimizer_post_hooks),
        ],
        "module hooks": {
            name: list(hooks)
            for name, hooks in vars(module_file).items()
            if name.startswith("_global_") and name.endswith("hooks")
        },
        "modes": [_get_current_dispatch_mode_stack(), _get_current_function_mode_stack()],
        "grad": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()],
        "multithreading": torch.autograd._is_multithreading_enabled()
        if hasattr(torch.autograd, "_is_multithreading_enabled")
        else None,
        "autocast": [
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ],
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "gc": [gc.isenabled(), gc.get_threshold(), list(gc.callbacks)],
        "compiled code": compiled_boundary(),
        "warning filters": list(warnings.filters),
    }


def lasting_globals() -> dict[str, Any]:
    """Settings, hooks and modes that tracking must leave; torch adds filters of warnings when it first loads parts."""
    return {name: item for name, item in torch_globals().items() if name != "warning filters"}


def compiled_boundary() -> list[str]:
    """What of ours stands in Inductor's and Dynamo's way; nothing, whether or not they are loaded yet."""
    output_code = sys.modules.get("torch._inductor.output_code")
    callbacks = sys.modules.get("torch._dynamo.callback")
    found = [output_code.CompiledFxGraph.__call__] if output_code else []
    found += callbacks.callback_handler.end_callbacks if callbacks else []
    return [item.__module__ for item in found if item.__module__.startswith("torch_vis")]


def random_states() -> list[Any]:
    return [torch.get_rng_state(), repr(random.getstate()), repr(np.random.get_state())]


def module_state(model: Any) -> dict[str, Any]:
    """Flags, hooks and attributes of every module."""
    if not isinstance(model, nn.Module):
        return {}
    return {
        "training": [part.training for part in model.modules()],
        "hooks": [[hook_names(part, name) for name in HOOKS] for part in model.modules()],
        "attributes": [sorted(part.__dict__) for part in model.modules()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "state": list(model.state_dict().values()) if hasattr(model, "state_dict") else [],
    }


def hook_names(module: nn.Module, name: str) -> list[str]:
    """The hooks in one of a module's dictionaries; their numbers come from a counter that every hook moves on."""
    hooks = getattr(module, name, None) or {}
    return [getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks.values()]


def plain_run(case: Case, **options: Any) -> dict[str, Any]:
    """What one run of a case gives, backward included, without tracing."""

    def call(model: Any, args: Any, kwargs: Any) -> Any:
        output = model(*args, **kwargs)
        if case.backward:
            floating_sum(output).backward()
        return output

    return observe(case, call, **options)


def observe(case: Case, call: Callable[[Any, Any, Any], Any], **options: Any) -> dict[str, Any]:
    """Build a case, run it by `call`, and note everything that it gave and changed."""
    model, args, kwargs = case.make(**options)
    inputs = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    leaf_tensors = [*inputs, *(model.parameters() if isinstance(model, nn.Module) else ())]
    leaf_tensors = [tensor for tensor in leaf_tensors if tensor.is_leaf]
    before = [tensor.grad for tensor in leaf_tensors]
    versions = [-1 if tensor.is_inference() else tensor._version for tensor in leaf_tensors]
    output = call(model, args, kwargs)
    return {
        "output": output,
        "inputs": inputs,
        "modules": module_state(model),
        "gradients": [tensor.grad for tensor in leaf_tensors],
        "accumulated in place": [
            old is not None and old is tensor.grad for old, tensor in zip(before, leaf_tensors, strict=True)
        ],
        "writes": [
            -1 if tensor.is_inference() else tensor._version - version
            for tensor, version in zip(leaf_tensors, versions, strict=True)
        ],
        "random": random_states(),
    }
