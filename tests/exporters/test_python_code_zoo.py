"""Every zoo model that export can take, run from the Python file it was saved as: its outputs, bit for bit."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import torch_vis as tv
from tests.kit.frontends import OTHERWISE
from tests.zoo import ZOO, close_process_group, same_bits, tensors
from torch_vis.errors import CaptureFailed, TensorsMissing, UsageError
from torch_vis.interfaces.dynamo import save_graph_to_file
from torch_vis.replay import replay

# What has no form in a file of plain tensors; the error says so.
REFUSED = {"fake_tensor_input": "FakeTensor", "meta_tensor_input": "meta device"}
# What export itself leaves out; the file gives what the exported program gives.
OTHERWISE_EXPORTED = {*OTHERWISE["export"], "seeds_inside_forward"}


pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.parametrize("name", ZOO)
def test_the_file_gives_what_the_model_gives(name: str, tmp_path: Path) -> None:
    model, args, kwargs = ZOO[name].make()
    if name == "raises_half_way":
        pytest.skip("the model raises")
    try:
        t = tv.trace(model, *args, kwargs=kwargs, via="export", hold=False)
    except CaptureFailed as failure:
        pytest.skip(f"export cannot take it: {str(failure)[:80]}")
    path = tmp_path / "saved.py"
    try:
        save_graph_to_file(t, path)
    except UsageError as refusal:
        assert name in REFUSED and REFUSED[name] in str(refusal), refusal
        return
    assert name not in REFUSED
    run = runpy.run_path(str(path))["load"]()
    close_process_group()
    _, args, kwargs = ZOO[name].make()
    wanted = (t.program.exported.module() if name in OTHERWISE_EXPORTED else model)(*args, **kwargs)
    _, args, kwargs = ZOO[name].make()
    found = run(*args, **kwargs)
    left, right = list(tensors(wanted)), list(tensors(found))
    assert len(left) == len(right)
    assert all(same_bits(one, two) for one, two in zip(left, right))


# Recorded runs that have no form in Python, with a part of what the error says; every other one must have one.
NO_FORM = {
    "compile_inductor_backend": "could not be looked into",
    "lstm": "could not be looked into",  # memory that code outside of the dispatcher filled
    "gru": "could not be looked into",
    "zero_size": "could not be looked into",
    "quantized_linear": "cannot be written as Python",
    "dynamic_quantization": "cannot be written as Python",
    "collectives": "cannot be written as Python",
    "dataclass_in_and_out": "cannot be written as Python",
    "explicit_generator": "cannot be written as Python",
    "fake_tensor_input": "meta or fake",
    "meta_tensor_input": "meta or fake",
}
# What reads its values in Python, is seeded inside, or changes its own state: a second run is another one.
NOT_AGAIN = {"numpy_write", "seeds_inside_forward"}


@pytest.mark.parametrize("name", ZOO)
def test_a_recorded_run_gives_the_same_from_its_file(name: str, tmp_path: Path) -> None:
    if name == "raises_half_way":
        pytest.skip("the model raises")
    model, args, kwargs = ZOO[name].make()
    state = torch.get_rng_state()
    t = tv.trace(model, *args, kwargs=kwargs)
    if t.kept is not None:
        # as it was before the run
        for number, original in t.kept.originals.items():
            t.kept.storages[number].copy_(original)
    path = tmp_path / "saved.py"
    try:
        save_graph_to_file(t, path)
    except (UsageError, TensorsMissing) as refusal:
        assert NO_FORM.get(name, "a form") in str(refusal), refusal
        return
    assert name not in NO_FORM
    run = runpy.run_path(str(path))["load"]()
    torch.set_rng_state(state)
    found = run(*args, **kwargs)
    left, right = list(tensors(t.output)), list(tensors(found))
    assert len(left) == len(right)
    if name not in NOT_AGAIN:
        assert all(replay.same_bits(one, two) for one, two in zip(left, right))
