"""Files from others in the explorer: what opens, what needs trust, what is refused in one sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.screen import drive, go_to, panel, press
from torch_vis.interfaces.explorer.explorer import explore, source_of
from torch_vis.interfaces.explorer.weight_files import as_data, as_text

PATIENCE = 300  # seconds in which a terminal shows what it should, however busy the machine is


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


def paths(path: Path, **options: Any) -> dict[str, int]:
    forest = source_of(path, **options).forest
    column = forest.numbers["elements" if "elements" in forest.numbers else "params"]
    return {one: int(column[row]) for row, one in enumerate(forest.paths)}


def test_a_state_dict_is_a_tree_of_tensors(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "net.pth")
    source = source_of(tmp_path / "net.pth")
    assert (
        "params" not in source.forest.numbers and "7 tensors" in source.facts
    )  # running_mean is no parameter
    found = paths(tmp_path / "net.pth")
    assert found["0"] == 15 and found["0.weight"] == 12 and found["1.num_batches_tracked"] == 1

    async def steps(app: Any, pilot: Any) -> None:
        go_to(app, app.source.forest.row("0.weight"))
        await press(app, pilot, "i")
        assert "3×4" in panel(app) and "std" in panel(app) and "█" in panel(app)

    drive(tmp_path / "net.pth", steps)


def test_a_checkpoint_of_many_things(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    whole = {"epoch": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "note": "hello"}
    torch.save(whole, tmp_path / "last.ckpt")
    source = source_of(tmp_path / "last.ckpt")
    forest = source.forest
    row = forest.row("epoch")
    assert row is not None and ("value", "3") in source.details(row).facts
    assert forest.row("optimizer.state.0.exp_avg") is not None


def test_tied_tensors_of_a_file_are_counted_once(tmp_path: Path) -> None:
    weight = torch.ones(4, 4)
    torch.save({"a.weight": weight, "b.weight": weight}, tmp_path / "tied.pt")
    found = paths(tmp_path / "tied.pt")
    assert found[""] == 16 and found["a"] == found["b"] == 16


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (self.target,)


def test_a_pickle_that_would_run_code_is_refused_until_it_is_trusted(tmp_path: Path) -> None:
    target = tmp_path / "made"
    torch.save({"weights": torch.ones(1), "evil": Evil(str(target))}, tmp_path / "evil.pt")
    with pytest.raises(tv.errors.UsageError, match=r"can run any code while it is read.*trust=True"):
        source_of(tmp_path / "evil.pt")
    assert not target.exists()
    source_of(tmp_path / "evil.pt", trust=True)
    assert target.exists()


def test_a_whole_model_opens_when_it_is_trusted(tmp_path: Path) -> None:
    torch.save(net(), tmp_path / "whole.pt")
    with pytest.raises(tv.errors.UsageError, match="trust=True"):
        source_of(tmp_path / "whole.pt")
    assert source_of(tmp_path / "whole.pt", trust=True).forest.types[0] == "Sequential"


def test_safetensors_read_tensors_only_when_they_are_looked_at(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(net().state_dict(), tmp_path / "net.safetensors", metadata={"format": "pt"})
    source = source_of(tmp_path / "net.safetensors")
    row = source.forest.row("0.weight")
    assert row is not None and int(source.forest.numbers["bytes"][row]) == 48
    assert source.figures(row)[0].figures is not None
    assert any("format: pt" in fact for fact in source.facts)
    assert values(source)["__metadata__.format"] == "'pt'"


def test_exported_programs(tmp_path: Path) -> None:
    program = torch.export.export(net().eval(), (torch.ones(2, 4),))
    torch.export.save(program, tmp_path / "net.pt2")
    source = source_of(tmp_path / "net.pt2")
    assert int(source.forest.numbers["params"][0]) == 21
    assert any("exported program" in fact for fact in source.facts)
    assert source.forest.types == ["Sequential", "Linear", "BatchNorm1d"]
    assert not {"training", "eval"} & set(source.facts)  # which of the two it was is not in the file


def test_scripted_modules_have_the_classes_that_they_had(tmp_path: Path) -> None:
    torch.jit.script(net().eval()).save(tmp_path / "net.pt")
    source = source_of(tmp_path / "net.pt")
    assert source.forest.types == ["Sequential", "Linear", "BatchNorm1d"] and "eval" in source.facts


def test_onnx_of_our_own_and_of_others(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(torch.ones(3, 4).numpy(), "w")
    node = helper.make_node("MatMul", ["w", "x"], ["y"], name="/layer/MatMul")
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 1]) for name in "xy"]
    graph = helper.make_graph([node], "g", sides[:1], sides[1:], [weight])
    onnx.save(helper.make_model(graph), tmp_path / "a.onnx")
    found = paths(tmp_path / "a.onnx")
    assert found["initializers.w"] == 12 and "nodes.layer.MatMul" in found
    tv.trace(net(), torch.ones(2, 4)).save(tmp_path / "b.onnx")
    assert source_of(tmp_path / "b.onnx").facts


@pytest.mark.parametrize("ending", ["tvz", "json"])
def test_traces(tmp_path: Path, ending: str) -> None:
    tv.trace(net(), torch.ones(2, 4), backward=True).save(tmp_path / f"run.{ending}")
    source = source_of(tmp_path / f"run.{ending}")
    assert source.forest.row("0") is not None and "time" in source.forest.numbers


def test_torchscript(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(net()), tmp_path / "net.pt")
    assert int(source_of(tmp_path / "net.pt").forest.numbers["params"][0]) == 21


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.pt", None, "there is no such file"),
        ("a.docx", b"x", "the explorer opens .pt"),
        ("a.pt", b"not a pickle", "cannot read"),
        ("b.pt", b"", "cannot read"),
        ("a.safetensors", b"12345678{", "cannot read"),
        ("a.pt2", b"PK\x03\x04", "cannot read"),
        ("a.onnx", b"\xff\xff\xff", "cannot read"),
        ("a.tvz", b"PK", ""),
        ("folder", "dir", "it is a directory"),
    ],
)
def test_what_cannot_be_opened_is_said_in_one_line(
    tmp_path: Path, name: str, content: Any, message: str
) -> None:
    path = tmp_path / name
    if content == "dir":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(tv.errors.TorchVisError, match=message) as caught:
        source_of(path)
    assert "\n" not in str(caught.value)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(tv.errors.UsageError, match="takes a module, a trace, a state dict or the path"):
        source_of(3)
    with pytest.raises(tv.errors.UsageError, match="config is an ExplorerConfig"):
        explore(net(), config={"max_depth": 1})  # type: ignore[arg-type]
    with pytest.raises(tv.errors.UsageError, match="needs a terminal"):
        explore(net())


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_in_a_real_terminal(tmp_path: Path) -> None:
    """The whole program in a terminal of its own: opened, filtered, a panel, quit, and the shell is back."""
    import sys
    import time

    program = tmp_path / "open.py"
    program.write_text(
        "import torch, torch_vis as tv\n"
        "tv.explore_model(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()))\n"
        "print('left', 'again')\n"
    )
    socket = ["tmux", "-L", f"torch-vis-{os.getpid()}", "-f", os.devnull]

    def tmux(*words: str) -> str:
        done = subprocess.run([*socket, *words], capture_output=True, text=True, check=False)
        return done.stdout

    def wait_for(*words: str) -> str:
        text, end = "", time.monotonic() + PATIENCE
        while time.monotonic() < end:
            text = tmux("capture-pane", "-p", "-t", "s")
            if all(word in text for word in words):
                return text
            time.sleep(0.2)
        raise AssertionError(f"{words} did not come: {text}")

    source = str(Path(tv.__file__).resolve().parent.parent)
    shell = f"PYTHONPATH={source} {sys.executable} {program}; sleep {PATIENCE}"
    tmux("new-session", "-d", "-s", "s", "-x", "120", "-y", "30", shell)
    try:
        first = wait_for("15 parameters", "Linear", "filter")
        assert "ReLU" in first
        tmux("send-keys", "-t", "s", "/")
        wait_for("Enter keeps it")
        tmux("send-keys", "-t", "s", "relu")
        wait_for("1 match", "\n relu")
        tmux("send-keys", "-t", "s", "Enter")
        tmux("send-keys", "-t", "s", "3")
        wait_for("def forward(self, input")
        tmux("send-keys", "-t", "s", "q")
        wait_for("left again")
    finally:
        tmux("kill-session", "-t", "s")


def test_a_saved_trace_opens_without_torch(tmp_path: Path) -> None:
    """Importing torch takes longer than all the rest."""
    tv.trace(net(), torch.ones(2, 4), backward=True).save(tmp_path / "t.tvz")
    code = (
        "import sys, torch_vis as tv\n"
        "from torch_vis.views.terminal import program\n"
        "from torch_vis.interfaces.explorer.trace_source import TraceSource\n"
        f"shown = program(TraceSource(tv.load({str(tmp_path / 't.tvz')!r})))\n"
        "assert len(shown.source.forest) > 3 and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_costs_are_not_known_of_is_said(tmp_path: Path) -> None:
    """With the model beside the trace as without it."""

    @torch.library.custom_op("explorer_files::odd", mutates_args=())
    def odd(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return odd(x)

    model = Odd()
    trace = tv.trace(model, torch.ones(2))
    for source in (source_of(trace), source_of(model, trace=trace)):
        notes = [note for note in source.notes if "FLOPs" in note]
        assert notes == ["FLOPs of 1 operation are not known and count as none"]


# ---------------------------------------------------------------- values


def values(source: Any) -> dict[str, str]:
    """What the rows of a file hold, of those that hold one value."""
    shown = {path: source.forest.texts["value"](row) for row, path in enumerate(source.forest.paths)}
    return {path: text for path, text in shown.items() if text}


def test_a_checkpoint_shows_its_values(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(3):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "best": 0.91,
        "odd": None,
    }
    huge = {
        "words": "w" * 10**6,
        "numbers": [*range(1000)],
        "half": torch.tensor([1.5]).half(),
    }
    torch.save({**state, "args": {"amp": True, "name": "\x1b[31mred", **huge}}, tmp_path / "run.pth")
    source = source_of(tmp_path / "run.pth")
    shown = values(source)
    assert shown["epoch"] == "3" and shown["best"] == "0.91" and shown["odd"] == "None"
    assert shown["model.1.num_batches_tracked"] == "3" and shown["optimizer.state.0.step"] == "3"
    assert shown["optimizer.param_groups.0.lr"] == "0.0003"
    assert shown["optimizer.param_groups.0.betas"] == "(0.9, 0.999)"
    assert shown["args.name"] == r"'\x1b[31mred'" and shown["args.half"] == "1.5"
    assert len(shown["args.words"]) < 40
    assert values(source_of({"digits": 10**5000})) == {"digits": "a number of 16,610 bits"}
    assert shown["args.numbers"] == "[0, 1, 2, 3, 4, 5, … 1,000 in all]"
    assert "model.0.weight" not in shown
    text = as_text(source, depth=None)
    assert re.search(r"num_batches_tracked +Tensor +3 +1 +8 B", text), text
    assert re.search(r"lr +float +0.0003 *\n", text), "what is no tensor has no elements and no size"
    rows = {row["path"]: row for row in as_data(source)["rows"]}
    assert rows["epoch"]["value"] == "3" and rows["model.1.num_batches_tracked"]["value"] == "3"


def test_neighbours_of_other_values_are_not_folded(tmp_path: Path) -> None:
    torch.save(
        [{"step": torch.tensor(number // 2), "m": torch.ones(2)} for number in range(4)], tmp_path / "s.pt"
    )
    text = as_text(source_of(tmp_path / "s.pt"), depth=None)
    assert "0–1 × 2" in text and "2–3 × 2" in text and "0–3" not in text


def test_scalars_of_other_files(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    onnx = pytest.importorskip("onnx")
    from safetensors.torch import save_file

    scalars = {
        "step": torch.tensor(7),
        "scale": torch.tensor([0.5], dtype=torch.bfloat16),
        "w": torch.ones(2),
    }
    save_file(scalars, tmp_path / "a.safetensors", metadata={"epoch": "12", "note": "n"})
    assert values(source_of(tmp_path / "a.safetensors")) == {
        "step": "7", "scale": "0.5", "__metadata__.epoch": "'12'", "__metadata__.note": "'n'",
    }  # fmt: skip
    tensor = onnx.helper.make_tensor("axis", onnx.TensorProto.INT64, [], [2])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [], [], [tensor])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "a.onnx")
    assert values(source_of(tmp_path / "a.onnx")) == {"initializers.axis": "2"}
