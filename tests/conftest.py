"""What every test starts from: no network, no deadlines, a known seed, and torch left as it was found."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# Before any test imports transformers or timm: models come from configurations, never from a download.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# And before any imports torch: with tensors this small, threads that wait for each other cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# An operation takes as long as the machine is busy, so no deadline; CI draws the same examples every time.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


# Two tiers: `make test` is what a contributor waits for, `make test-all` is everything. A test that goes over the zoo
# is in the first tier for these cases alone: one of each kind of trouble, and one model of each family.
QUICK_CASES = frozenset(
    """
    disjoint_view_writes kv_buffer write_through_chain_of_views checkpoint_nonreentrant autocast_bf16 func_vmap
    in_place_on_view_with_grad compile_with_graph_break cond_operator sparse_coo quantized_linear bert_train gpt2
    lstm_cell_loop shared_module tied_weights recursive_module empty_model batch_norm_train dropout_train
    adamw_foreach_step item_control_flow raises_half_way unet
    """.split()
)
# Files that start browsers, terminals, compilers or many processes, or that prove by brute force.
SLOW_FILES = frozenset(
    """
    views/terminal/test_app.py test_examples.py exporters/test_netron.py exporters/test_python_code_zoo.py
    cli/test_run.py test_site.py capture/test_ranks.py analysis/fusion/test_compiled_kernels.py
    capture/compilers/test_via_zoo.py
    """.split()
)
SLOW_TESTS = frozenset(
    {"test_with_one_package_missing", "test_an_interrupt_at_any_line_of_entering_and_leaving[fake]"}
)


# Files that take minutes, longest first: they are begun first, so that no worker is left alone with one at the end.
LONG_FILES = """
    test_site.py capture/compilers/test_via.py test_examples.py test_extras.py cli/test_commands.py
    views/terminal/test_app.py exporters/test_python_code_zoo.py cli/test_run_ranks.py
    graph/test_untrusted.py cli/test_run.py
    """.split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and mark what `make test` leaves to `make test-all`."""
    from tests.zoo_models.registry import ZOO

    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        cases = {getattr(value, "name", value) for value in parameters if _is_name(value)}
        outside = any(case in ZOO and case not in QUICK_CASES for case in cases)
        path = item.path.relative_to(item.config.rootpath).as_posix()
        if outside or item.name in SLOW_TESTS or any(path.endswith(name) for name in SLOW_FILES):
            item.add_marker(pytest.mark.slow)
    rank = {f"tests/{name}": number for number, name in enumerate(LONG_FILES)}
    items.sort(
        key=lambda item: rank.get(item.path.relative_to(item.config.rootpath).as_posix(), len(LONG_FILES))
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) or isinstance(getattr(value, "name", None), str)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each file, tell the collector that what is still here stays: torch, transformers and what they cache.

    A process that has run some hundred files holds millions of objects; to go through all of them at every collection
    takes longer than most tests.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was() -> Iterator[None]:
    """Seed torch, and fail a test that leaves a mode, a global hook or a setting of torch behind."""
    if "torch" not in sys.modules:  # tests of graph/ run without it
        yield
        return
    import torch

    torch.manual_seed(0)
    before = torch_settings()
    yield
    after = torch_settings()
    assert after == before, "the test left torch changed"


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled before, and nothing left: not what Dynamo has in its cache, not a case's process group."""
    import torch._dynamo

    from tests.zoo import close_process_group

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    close_process_group()


def torch_settings() -> dict[str, Any]:
    import torch
    from torch.nn.modules import module
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    hooks = [name for name in vars(module) if name.startswith("_global_") and name.endswith("_hooks")]
    return {
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "function modes": _get_current_function_mode_stack(),
        "global module hooks": {name: list(getattr(module, name)) for name in hooks},
        "grad enabled": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
    }


# What does not hold yet, by the beginning of a test's name, and why where it is known. A row goes with its cause.
OPEN: dict[str, str] = {}


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    for name, reason in OPEN.items():
        if item.nodeid.startswith(name):
            item.add_marker(pytest.mark.xfail(reason=reason, run=False))
