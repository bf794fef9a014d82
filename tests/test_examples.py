"""The example programs, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# transformers imports torchvision, whose operators a test machine may have to declare first (see the zoo)
START = (
    "import runpy, sys\n"
    "from tests.zoo_models.torchvision_ops import declare_torchvision_ops\n"
    "declare_torchvision_ops()\n"
    "sys.argv = sys.argv[1:]\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n"
)


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", START, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_dynamo_basics() -> None:
    out = run("examples/dynamo_basics.py", "simple", "control", "loops")
    assert "conv2d" in out and "(4, 16, 32, 32)" in out and "torch.float32" in out
    assert "Graph Partition 2" in out and "if x.mean() > 0:" in out
    assert "5 steps: {'torch.nn.functional.linear': 5" in out


def test_dynamo_basics_compares_captures() -> None:
    rows = [line.split() for line in run("examples/dynamo_basics.py", "compare").splitlines()]
    found = {(row[0], row[1]): row[2] for row in rows if len(row) > 3}
    assert found["Branching", "fx"] == "cannot:" and found["Branching", "dynamo"].isdigit()
    assert found["SimpleCNN", "fx"] == found["SimpleCNN", "dynamo"] == found["SimpleCNN", "eager"]


def test_an_example_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "examples/dynamo_basics.py", "simpel"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "no example 'simpel'" in done.stderr


@pytest.mark.parametrize("model", ["detr", "bert", "vit", "yolo"])
def test_huggingface_models_are_traced_and_their_saved_graphs_give_their_outputs(
    model: str, tmp_path: Path
) -> None:
    path = tmp_path / "out" / "graph.py"
    out = run("examples/huggingface_models.py", "--model", model, "--small", "--save-graph", str(path))
    assert "1 graph partition" in out and "FLOPs: " in out and "not known" not in out
    assert "the file gives the model's outputs: bit for bit" in out
    assert path.exists() and path.with_suffix(".safetensors").exists()


def test_demo_leaves_two_pages_and_says_last_where_they_are(tmp_path: Path) -> None:
    for _ in range(2):  # the second run writes over the first
        out = run("examples/demo.py", "--out", str(tmp_path), "--no-browser")
        pages = [tmp_path / f"{name}.html" for name in ("resnet50", "bert")]
        assert [line.strip() for line in out.splitlines()[-2:]] == [page.as_uri() for page in pages]
        assert all(page.read_text().startswith("<!doctype html>") for page in pages)
