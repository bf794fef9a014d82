"""Every command but ``run``: what it prints, what it writes, its exit code, and one line for what cannot work."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torch_vis as tv
from tests.kit.forking import Server, cold, environment
from torch_vis.cli.command_table import COMMANDS, load
from torch_vis.cli.main import main
from torch_vis.cli.output import in_flags
from torch_vis.formats import FORMATS

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = [(name, line) for name in COMMANDS for _, line in load(name).EXAMPLES]


# ---------------------------------------------------------------- help


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_examples_of_the_help_work(cli: Server, name: str, line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "torch-vis" and words[0] == name
    if name in ("show", "demo") and "--no-browser" not in words:
        words.append("--no-browser")
    if name == "captures":
        words += ["--capture", "fx"]  # all of them, ONNX and StableHLO too, take half a minute
    done = cli(*words)
    if done.code == 2:
        assert name == "explore" and "needs a terminal" in done.err  # which a test of its own gives it
        assert "torch-vis summary" in done.err
    else:
        finds = "Breaking" in line or (name == "compare" and "--only-numbers" not in line)
        assert done.code == int(finds), done.err
        assert done.out or "-o" in words or name in ("run",)


def test_help_teaches_and_needs_no_torch(folder: Path) -> None:
    code = (
        "import sys\nfrom torch_vis.cli.main import main\n"
        f"helps = [[name, '--help'] for name in {list(COMMANDS)}]\n"
        "for words in [[], ['--help'], ['--version'], ['completion', 'zsh'], *helps]:\n"
        "    try:\n        main(words)\n    except SystemExit as end:\n        assert not end.code\n"
        "heavy = {'torch', 'numpy', 'rich', 'textual'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for name, command in COMMANDS.items():
        assert command.summary in done.stdout
        assert f"usage: torch-vis {name}" in done.stdout
        assert 2 <= len(load(name).EXAMPLES) <= 3


def test_the_page_about_the_commands_is_up_to_date() -> None:
    """docs/cli.md names every command with its line and its examples, and the exit codes."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, command in COMMANDS.items():
        assert f"## {name}\n\n{command.summary.capitalize()}." in text, f"docs/cli.md: {name}"
        for what, line in load(name).EXAMPLES:
            assert f"# {what}\n{line}\n" in text, f"docs/cli.md: {line}"
    assert re.findall(r"^## (\S+)", text, re.MULTILINE) == [*COMMANDS, "Exit"]


# ---------------------------------------------------------------- models


def test_trace_writes_what_python_would(cli: Server, folder: Path) -> None:
    done = cli(
        "trace",
        "net.py:make_model",
        "-i",
        "2x8",
        "--loss",
        "net:loss",
        "-o",
        "t.tvz",
        "-o",
        "t.svg",
        "--json",
    )
    assert done.code == 0, done.err
    found, trace = json.loads(done.out), tv.load(folder / "t.tvz")
    assert found["operations"] == len(trace.graph) and found["parameters"] == 212
    assert found["files"] == ["t.tvz", "t.svg"] and (folder / "t.svg").read_text().startswith("<svg")
    assert found["inputs"] == [{"name": "x", "type": "f32[2, 8]"}]
    assert trace.graph.find(op="pow", phase="forward") and trace.graph.find(op="addmm", phase="forward")
    table = cli("trace", "net.py:make_both")  # a factory that brings its inputs
    assert "f32[3, 4]" in table.out and "Linear" in table.out


def test_a_function_of_the_inputs_is_traced_as_it_is(cli: Server) -> None:
    done = cli("trace", "net.py:doubled", "-i", "2x8", "-i", "y:=3", "--json")
    assert done.code == 0 and json.loads(done.out)["operations"] == 3, done.err
    done = cli("trace", "net.py:doubled")
    assert done.code == 2 and "or give what it takes: --input x=2x8" in done.err
    done = cli("trace", "net.py:Sized", "-i", "2x8")
    assert done.code == 2 and "cannot be called without arguments: it takes size" in done.err


def test_repeated_runs_give_medians(cli: Server) -> None:
    done = cli("report", "time", "net.py:make_model", "-i", "2x8", "--repeat", "3")
    assert done.code == 0 and "the median of 3 runs" in done.out, done
    assert "a number from 1 up" in cli("trace", "net.py:make_model", "-i", "2x8", "--repeat", "none").err
    assert "--repeat is for models" in cli("summary", "net.tvz", "--repeat", "3").err


def test_shapes_alone_have_no_times(cli: Server) -> None:
    for via in ([], ["--via", "export"]):
        done = cli("report", "time", "net.py:make_model", "-i", "2x8", "--fake", *via)
        assert done.code == 2 and "needs a run with numbers" in done.err, done.out
    real, fake = (
        json.loads(cli("trace", "net.py:make_model", "-i", "2x8", "--backward", "--json", *more).out)[
            "peak_bytes"
        ]
        for more in ([], ["--fake"])
    )
    assert real == fake


def test_inputs_are_made_as_written(cli: Server, folder: Path) -> None:
    words = ["-i", "ids=2x16:int64:90..100", "-i", "mask=2x4:float64"]
    done = cli("trace", "net.py:Embedder", *words, "--json")
    assert [row["type"] for row in json.loads(done.out)["inputs"]] == ["i64[2, 16]", "f64[2, 4]"]
    assert (
        cli("trace", "net.py:Embedder", "-i", "ids=2x16:int64", "-q").code == 0
    )  # below the number of embeddings
    failed = cli("trace", "net.py:Embedder", "-i", "ids=2x16:int64:200..300")
    assert (
        failed.code == 2
        and "IndexError" in failed.err
        and "(net.py:" in failed.err
        and len(failed.lines) == 1
    )


@pytest.mark.parametrize(
    ("words", "parameters"),
    [
        (["--torchvision", "resnet18", "--fake"], 11_689_512),
        (["--timm", "vit_tiny_patch16_224", "--fake"], 5_717_416),
        (["--hf", "config"], 25_952),
        (["--hf", "gpt2", "--fake", "--backward", "--hf-class", "GPT2LMHeadModel"], 124_439_808),
    ],
    ids=["torchvision", "timm", "folder", "type"],
)
def test_models_of_libraries(cli: Server, words: list[str], parameters: int) -> None:
    library = {"--hf": "transformers"}.get(words[0], words[0][2:])
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = cli("trace", *words, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["parameters"] == parameters
    assert any("shapes only" in sentence for sentence in found["limits"]) is ("--fake" in words)


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("whisper", ["f32[1, 80, 3000]", "i64[1, 16]"]),
        ("speech_to_text", ["f32[1, 100, 80]", "i64[1, 16]"]),
        ("clip", ["i64[1, 16]", "f32[1, 3, 224, 224]"]),
        ("videomae", ["f32[1, 16, 3, 224, 224]"]),
        ("audio-spectrogram-transformer", ["f32[1, 1024, 128]"]),
        ("t5", ["i64[1, 16]", "i64[1, 16]"]),
    ],
)
def test_models_of_every_sense_get_the_inputs_they_need(cli: Server, kind: str, inputs: list[str]) -> None:
    done = cli("trace", "--hf", kind, "--fake", "--json")
    assert done.code == 0, done.err
    assert sorted(row["type"] for row in json.loads(done.out)["inputs"]) == sorted(inputs)


def test_inputs_that_cannot_be_made_up_are_named(cli: Server) -> None:
    done = cli("trace", "--hf", "patchtst", "--fake")
    assert done.code == 2 and "past_values" in done.err and "--input past_values=" in done.err, done.err


def test_fake_models_need_no_memory(cli: Server, folder: Path) -> None:
    """Four hundred billion parameters, forward and backward."""
    big = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 65536, "num_hidden_layers": 6,
           "intermediate_size": 262144, "num_attention_heads": 64, "vocab_size": 128256}  # fmt: skip
    (folder / "big.json").write_text(json.dumps(big))
    pytest.importorskip("transformers")
    done = cli(
        "trace", "--hf", "big.json", "--fake", "--backward", "--input", "input_ids=1x128:int64", "--json"
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["parameters"] > 400e9 and found["operations_by_phase"]["backward"] > 500


@pytest.mark.parametrize("via", ["fx", "export", "dynamo", "aot"])
def test_captures_of_compilers(cli: Server, via: str) -> None:
    done = cli("trace", "net.py:make_model", "-i", "2x8", "--via", via, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["operations"] >= 3


# ---------------------------------------------------------------- the other commands


def test_summary_of_a_file_and_of_a_model(cli: Server, folder: Path) -> None:
    trace = tv.load(folder / "net.tvz")
    assert cli("summary", "net.tvz", "--width", "100").out == in_flags(trace.table(width=100)) + "\n"
    found = json.loads(cli("summary", "net.tvz", "--json").out)
    modules = {row["path"]: row for row in found["modules"]}
    assert modules["a"]["parameters"] == 144 and modules["b"]["ops"] == 2 and modules["a"]["type"] == "Linear"
    assert found["operations_by_phase"]["backward"] == sum(
        node.phase == "backward" for node in trace.graph.nodes
    )


def test_files_of_weights_in_every_command(cli: Server, folder: Path) -> None:
    """summary prints and gives them as data, compare compares them, and what needs a run says so in a line."""
    table = cli("summary", "net.pth")
    assert table.code == 0 and "4 tensors · 212 elements" in table.out
    assert any(line.split()[:3] == ["weight", "Tensor", "128"] for line in table.out.splitlines())
    for command in ("summary", "explore"):
        found = json.loads(cli(command, "net.pth", "--json").out)
        rows = {row["path"]: row for row in found["rows"]}
        assert found["elements"] == 212 and rows["a.weight"]["tensors"][0]["shape"] == [16, 8]
    assert json.loads(cli("explore", "net.tvz", "--json").out)["operations"] > 0
    for words in (["show"], ["check"], ["export", "-o", "x.svg"], ["compare", "net.tvz"]):
        done = cli(*words, "net.pth")
        assert done.code == 2 and len(done.lines) == 1 and "needs a run" in done.err, done.err
    for name, words in (("a.onnx", "is a graph for ONNX"), ("a.pt2", "is an exported program")):
        (folder / name).write_bytes(b"")
        done = cli("show", name)
        assert done.code == 2 and words in done.err and "weights alone" not in done.err, done.err
        assert f"torch-vis summary {name}" in done.err


def test_compare_a_saved_trace_with_a_model(cli: Server) -> None:
    """The options of a model are those of the one that is none; of two traces they still are a mistake."""
    words = ("--input", "2x8")
    assert cli("compare", "net.tvz", "net.py:make_model", *words, "--backward").code == 0
    changed = cli("compare", "net.tvz", "net.py:make_wide", *words, "--backward")
    assert changed.code == 1 and "Linear(8, 16) → Linear(8, 32)" in changed.out, changed
    refused = cli("compare", "net.tvz", "wide.tvz", *words)
    assert refused.code == 2 and "a trace that was made already; --input is for models" in refused.err


def test_compare_files_of_weights(cli: Server, folder: Path) -> None:
    import torch

    assert cli("compare", "net.pth", "net.pth").code == 0
    state = torch.load(folder / "net.pth", weights_only=True)
    state["a.weight"][0, 0] += 0.5
    state["c"] = state.pop("b.bias")
    torch.save(state, folder / "changed.pth")
    done = cli("compare", "net.pth", "changed.pth", "--json")
    found = {row["name"]: row for row in json.loads(done.out)["differences"]}
    assert done.code == 1 and found.keys() == {"a.weight", "b.bias", "c"}
    assert abs(found["a.weight"]["largest"] - 0.5) < 1e-6 and found["a.weight"]["change"] == "values"
    assert (found["b.bias"]["change"], found["c"]["change"]) == ("only left", "only right")
    assert "3 with other shapes" in cli("compare", "net.pth", "wide.pth").out


def test_a_pickle_needs_trust(cli: Server, folder: Path) -> None:
    import torch

    torch.save(torch.nn.Linear(2, 2), folder / "whole.pt")
    done = cli("summary", "whole.pt")
    assert done.code == 2 and done.err.rstrip().endswith("add --trust") and "trust=True" not in done.err
    assert "Linear" in cli("summary", "whole.pt", "--trust").out


def test_a_file_that_is_none_is_one_line(folder: Path) -> None:
    """Torch has a log of its own about it, which stays away."""
    import zipfile

    (folder / "junk.pt2").write_text("junk")
    with zipfile.ZipFile(folder / "zipped.pt2", "w") as archive:
        archive.writestr("a", "b")
    for name in ("junk.pt2", "zipped.pt2"):
        done = cold(folder, "summary", name)
        assert done.code == 2 and len(done.lines) == 1 and "no exported program" in done.err, done.err


def test_inputs_from_numpy_and_plain_values(cli: Server, folder: Path) -> None:
    import numpy as np

    np.save(folder / "x.npy", np.ones((2, 8), dtype=np.float32))
    done = cli("trace", "net.py:make_model", "-i", "x=@x.npy", "--json")
    assert json.loads(done.out)["inputs"] == [{"name": "x", "type": "f32[2, 8]"}]
    (folder / "scaled.py").write_text(
        "import torch\nclass Scaled(torch.nn.Module):\n"
        "    def forward(self, x, scale, flip=False):\n        return -x * scale if flip else x * scale\n"
    )
    done = cli(
        "trace", "scaled.py:Scaled", "-i", "2x3", "-i", "scale:=3", "-i", "flip:=true", "-o", "s.tvz", "-q"
    )
    assert done.code == 0, done.err
    assert [node.name for node in tv.load(folder / "s.tvz").graph.nodes] == ["neg", "mul"]


def test_the_version_as_data(cli: Server) -> None:
    assert json.loads(cli("--version", "--json").out) == {"version": tv.__version__}


def test_check_proves_or_says_what_a_file_cannot(cli: Server) -> None:
    proved = cli("check", "net.py:make_model", "-i", "2x8", "--backward", "--json")
    assert proved.code == 0 and "equal bit for bit" in json.loads(proved.out)["said"]
    assert "a replay needs the model" in cli("check", "net.tvz").out
    assert cli("check", "net.py:make_model", "-i", "2x8", "--fake").code == 2


def test_export_writes_every_format_by_its_ending(cli: Server, folder: Path) -> None:
    light = [row.endings[0] for name, row in FORMATS.items() if name not in ("png", "pdf")]
    words = [word for ending in light for word in ("-o", f"export{ending}")]
    done = cli("export", "net.tvz", *words, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["files"] == [f"export{ending}" for ending in light]
    assert all((folder / f"export{ending}").stat().st_size for ending in light)


def test_breaks_are_findings(cli: Server, folder: Path) -> None:
    done = cli("breaks", "net.py:Breaking", "-i", "2x8", "--json")
    assert done.code == 1, done.err
    rows = json.loads(done.out)["breaks"]  # although the model prints
    lines = (folder / "net.py").read_text().splitlines()
    assert any(".item()" in lines[row["line"] - 1] for row in rows)
    assert cli("breaks", "net.py:make_model", "-i", "2x8").out == "net.py:make_model: no graph breaks\n"


def test_doctor_knows_what_is_missing(cli: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(cli("doctor", "--json").out)
    assert (
        found["ok"] and found["torch_vis"] == tv.__version__ and found["torch"] and "cpu" in found["devices"]
    )
    assert not any(row["broken"] for row in found["extras"].values()), found["extras"]
    from torch_vis.cli.commands import doctor

    assert tv.doctor is doctor.doctor
    have = doctor.version
    monkeypatch.setattr(doctor, "imported", lambda names: ({}, ["cpu"]))
    monkeypatch.setattr(doctor, "version", lambda name: None if name in ("plotly", "onnx") else have(name))
    poorer = tv.doctor()
    assert poorer["ok"] and set(re.findall(r"[\w-]+", poorer["pip"])) >= {"plotly", "onnx"}
    assert "missing: plotly" in doctor._text(poorer)
    monkeypatch.setattr(doctor, "version", lambda name: {"torch": "2.9.1+cpu"}.get(name, have(name)))
    assert "torch 2.9.1+cpu is older than 2.11" in doctor.examine()["faults"][0]


# long enough for what is sound, on a machine that does much else
PATIENCE_S = 15
BROKEN = {
    # what a package does when it is imported, and what the doctor says of it
    "plotly": (
        "raise RuntimeError('operator nms does not exist\\nmore')",
        "RuntimeError: operator nms does not exist",
    ),
    "pandas": ("import ctypes; ctypes.string_at(0)", "the process crashed (SIGSEGV)"),
    "rich": (
        "import time; print('one moment'); time.sleep(100)",
        f"it was not imported within {PATIENCE_S} s",
    ),
    "graphviz": ("import os; os._exit(3)", "the process ended with code 3"),
    "matplotlib": ("raise SystemExit", "SystemExit"),
}


def test_doctor_imports_what_it_ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed and cannot be imported has no tick, whatever the import does; the rest is still looked at."""
    from torch_vis.cli.commands import doctor

    for name, (code, _) in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "LIMIT_S", PATIENCE_S)
    monkeypatch.setattr(doctor, "NEEDED", {"numpy": ""})
    monkeypatch.setattr(doctor, "LIBRARIES", {})
    kept = {name: doctor.EXTRAS[name] for name in (*BROKEN, "networkx")}
    monkeypatch.setattr(doctor, "EXTRAS", kept)
    found = doctor.examine()
    assert {name: row["broken"].get(name) for name, row in found["extras"].items()} == {
        **{name: error for name, (_, error) in BROKEN.items()},
        "networkx": None,
    }
    text = doctor._text(found | {"torch": "2.13"})
    assert found["ok"] and "✓ networkx" in text and "✗ pandas" in text
    assert "plotly cannot be imported: RuntimeError: operator nms does not exist\n" in text
    monkeypatch.setattr(doctor, "NEEDED", {"plotly": ""})
    assert doctor.examine()["faults"] == [
        f"plotly {doctor.version('plotly')} cannot be imported: {BROKEN['plotly'][1]}"
    ]


def test_doctor_looks_at_every_extra() -> None:
    from torch_vis.cli.commands.doctor import EXTRAS

    text = (ROOT / "pyproject.toml").read_text()
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^([\w-]+) = \[(.*)\]", section, re.MULTILINE))
    assert EXTRAS.keys() == rows.keys() - {"all", "dev", "bench", "loops", "docs"}
    for name, (packages, _) in EXTRAS.items():
        assert list(packages) == re.findall(r'"([\w-]+)', rows[name])


def test_demo_leaves_two_pages_and_says_last_where_they_are(cli: Server, folder: Path) -> None:
    for _ in range(2):  # the second one writes over the first
        done = cli("demo", "--folder", "tour", "--no-browser")
        assert done.code == 0, done.err
        *_, heading, first, last = done.out.splitlines()
        assert heading == "open in a browser"
        for line, name in ((first, "vision"), (last, "transformer")):
            page = folder / "tour" / f"{name}.html"
            assert line.strip() == page.as_uri() and page.read_text().startswith("<!doctype html>")
    assert "Conv2d" in done.out and "self_attn" in done.out and done.out.count("proof: ") == 2


def test_a_missing_extra_is_said_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for package, name in (("onnx", "x.onnx"), ("matplotlib", "x.png")):
        monkeypatch.setitem(sys.modules, package, None)
        assert main(["trace", "net.py:no_such_model", "-o", name]) == 2
        assert f"pip install 'torch-vis[{package}]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "textual", None)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert main(["explore", "net.py:no_such_model"]) == 2
    assert "pip install 'torch-vis[tui]'" in capsys.readouterr().err


def test_explore_in_a_terminal(folder: Path, cli: Server) -> None:
    """The explorer opens on a pseudo-terminal, shows the model, and ``q`` ends it well."""
    pexpect = pytest.importorskip("pexpect")
    if importlib.util.find_spec("textual") is None:
        pytest.skip("textual is not installed; it comes with pip install 'torch-vis[tui]'")
    words = ["-m", "torch_vis", "explore", "net.py:make_model", "--input", "2x8"]
    child = pexpect.spawn(
        sys.executable, words, cwd=str(folder), env={**environment(), "TERM": "xterm-256color"}, timeout=120,
        dimensions=(40, 120),
    )  # fmt: skip
    child.expect("Linear")
    child.send("q")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("torch-vis tr", {"trace"}),
        ("torch-vis trace --b", {"--backward"}),
        ("torch-vis trace --via e", {"export"}),
        ("torch-vis completion ", {"bash", "zsh", "fish"}),
        ("torch-vis summary wr", {"wrong.py"}),
        ("torch-vis run --st", {"--step", "--steps", "--stop"}),
        ("torch-vis run train.py --", set()),
        ("torch-vis run --step ", set()),
        ("torch-vis trace net.py:make_m", {"net.py:make_model"}),
        ("torch-vis trace net.py : make_w", {"make_wide"}),
        ("torch-vis trace --timm vit_tiny_patch16_2", {"vit_tiny_patch16_224"}),
        ("torch-vis trace --torchvision resnet1", {"resnet18", "resnet101", "resnet152"}),
    ],
)
def test_completion_in_bash(cli: Server, folder: Path, words: str, offered: set[str]) -> None:
    for library in ("timm", "torchvision"):
        if library in words and importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    script = f'torch-vis() {{ {sys.executable} -m torch_vis "$@"; }}\n' + cli("completion", "bash").out
    asked = words.split(" ")
    listed = " ".join(map(shlex.quote, asked))
    ask = f'\nCOMP_WORDS=({listed}); COMP_CWORD={len(asked) - 1}; _torch_vis; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-c", script + ask],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert set(done.stdout.split()) == offered
    for shell in ("zsh", "fish"):
        if shutil.which(shell):
            subprocess.run([shell, "-n", "-c", cli("completion", shell).out], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_completion_of_names_with_blanks(cli: Server, folder: Path) -> None:
    (folder / "my file.py").write_text("")
    ask = '\nCOMP_WORDS=(torch-vis run my); COMP_CWORD=2; _torch_vis; printf "<%s>" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", cli("completion", "bash").out + ask],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "<my file.py>"


def test_completion_in_zsh_keeps_colons_and_offers_files_for_files(cli: Server) -> None:
    script = cli("completion", "zsh").out
    assert r"1x3x224x224\:float32" in script and "1x3x224x224float32" not in script
    step = next(part for part in script.split("'") if part.startswith("*--step["))
    assert not step.endswith("_files") and step.endswith(": ")
    assert any(part.startswith("*--output[") and part.endswith("_files") for part in script.split("'"))


# ---------------------------------------------------------------- what cannot work


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sumary", "net.tvz"], "no command 'sumary'; did you mean 'summary'?"),
        (["--jsn"], "no option '--jsn' before the command"),
        (["trace", "net.py:make_model", "--inptu", "2x8"], "no option '--inptu'; did you mean '--input'?"),
        (["trace", "net.py:make_model", "--via", "onnx"], "--via: invalid choice: 'onnx'"),
        (["trace"], "which model?"),
        (["trace", "net.py"], "'net.py' names no model: write net.py:NAME; there are Net, make_model"),
        (["trace", "nothing.py:make_model"], "there is no file 'nothing.py'"),
        (["trace", "nothing.here:make_model"], "there is no module 'nothing'"),
        (["trace", "net.py:make_modle", "-i", "2x8"], "no model in net.py 'make_modle'; did you mean 'make_model'"),
        (["trace", "net.py:number", "-i", "2x8"], "net.py:number is no model and makes none: it is int"),
        (["trace", "net.py:Sized"], "it takes size"),
        (["trace", "net.py:make_model"], "net.py:make_model takes x: say what"),
        (["trace", "net.py:make_model", "-i", "2xx8"], "input '2xx8' cannot be read"),
        (["trace", "net.py:make_model", "-i", "2x8:flaot32"], "no dtype 'flaot32'; did you mean 'float32'"),
        (["trace", "net.py:make_model", "-i", "2x8:int64:9..3"], "the range 9..3 is empty"),
        (["trace", "net.py:make_model", "-i", "y=2x8"], "the inputs do not fit net.py:make_model, which takes (x)"),
        (["trace", "net.py:make_model", "-i", "2x9"], "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        (["trace", "net.py:make_model", "-i", "x=@none.pt"], "there is no file 'none.pt'"),
        (["trace", "net.py:make_model", "-i", "x=@train.py"], "from a .pt file that torch.save wrote, or from .npy"),
        (["trace", "net.py:make_model", "-i", "x:=abc"], "'abc' is no value of Python's"),
        (["trace", "net.py:make_model", "-i", "2x8", "--device", "quux"], "'quux' is none of torch's; write cpu, cuda"),
        (["summary", "none.pth"], "there is no file 'none.pth'"),
        (["trace", "net.py:make_model", "-i", "2x8", "-o", "x.tvx"], "no file format '.tvx'; did you mean '.tvz'"),
        (["trace", "net.py:make_model", "-i", "2x8", "--loss", "men"], "loss 'men' is neither"),
        (["trace", "net.py:make_model", "-i", "2x8", "--device", "cuda"], "this torch sees no GPU"),
        (["trace", "wrong.py:make"], "SyntaxError"),
        (["trace", "--torchvision", "resnet49"], "did you mean 'resnet"),
        (["trace", "--hf", "bert-base-uncased"], "--hf bert makes one"),
        (["summary", "nothing.tvz"], "there is no file 'nothing.tvz'"),
        (["summary", "train.py"], "'train.py' names no model"),
        (["summary", "net.tvz", "--depth", "0"], "levels are a number from 1 up"),
        (["summary", "config/config.json"], "config.json"),
        (["export", "net.tvz"], "where to?"),
        (["compare", "net.tvz"], "compare takes two traces or models, not 1"),
        (["compare", "net.tvz", "net.tvz", "--numbers"], "net.tvz is a file, which holds no tensors: name the models"),
        (["compare", "net.pth", "net.pth", "--only-numbers"], "compared by their elements without --only-numbers"),
        (["compare", "net.py:Net", "net.py:Net", "-i", "2x8", "--fake", "--numbers"], "--fake computes no numbers"),
        (["compare", "net.tvz", "net.tvz", "--tolerance", "1e-3"], "add --numbers or --only-numbers"),
        (["compare", "net.tvz", "net.tvz", "--tolerance", "-1"], "--tolerance: a relative difference, 0 or more"),
        (["explore", "net.tvz"], "the explorer needs a terminal"),
        (["completion", "csh"], "invalid choice: 'csh'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_a_code(cli: Server, words: list[str], says: str) -> None:
    if words[1:2] == ["--device"] or "cuda" in words:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
    done = cli(*words)
    assert (done.code, done.out) == (2, "")
    assert len(done.lines) == 1 and says in done.lines[0], done.err


def test_errors_are_documents_as_well_and_tracebacks_are_there_on_request(cli: Server, folder: Path) -> None:
    done = cli("summary", "nothing.tvz", "--json")
    assert (done.code, json.loads(done.out)) == (
        2,
        {"error": "there is no file 'nothing.tvz'", "exit_code": 2},
    )
    long = cli("trace", "net.py:make_model", "-i", "2x9", "--traceback")
    assert long.code == 2 and "Traceback" in long.err and 'net.py", line 11' in long.err
    assert cold(folder, "summary", "nothing.tvz") == (2, "", "torch-vis: there is no file 'nothing.tvz'\n")


TINY = {
    "model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1,
    "intermediate_size": 8, "vocab_size": 20,
}  # fmt: skip


@pytest.mark.parametrize(
    "named", [["pipeline"], ["Trainer"], ["logging"], ["__path__"], [5], "BertModel", 7, {"a": 1}, [[1]]]
)
def test_a_configuration_calls_nothing_but_models(tmp_path: Path, named: Any) -> None:
    """Whatever it calls its architecture, which would be called with the configuration."""
    pytest.importorskip("transformers")
    from torch_vis.cli.model_spec import _transformers

    (tmp_path / "config.json").write_text(json.dumps({**TINY, "architectures": named}))
    assert type(_transformers(str(tmp_path), None)).__name__ == "BertModel"


@pytest.mark.parametrize(
    "fields",
    [
        {"attn_implementation": "stranger/kernel"},
        {"_attn_implementation": "stranger/kernel@main:fn"},
        {"experts_implementation": "stranger/kernel"},
    ],
)
def test_a_configuration_brings_no_code_from_the_hub(tmp_path: Path, fields: dict[str, str]) -> None:
    pytest.importorskip("transformers")
    from torch_vis.cli.model_spec import _transformers

    (tmp_path / "config.json").write_text(json.dumps({**TINY, **fields}))
    with pytest.raises(tv.errors.UsageError, match="kernels of the Hugging Face hub"):
        _transformers(str(tmp_path), None)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"model_type": ["bert"]}', '{"model_type": null}', "7", "\x00"]
)
def test_what_is_no_configuration_says_so(tmp_path: Path, text: str) -> None:
    pytest.importorskip("transformers")
    from torch_vis.cli.model_spec import _transformers

    (tmp_path / "config.json").write_text(text)
    with pytest.raises(tv.errors.UsageError, match=r"model.type"):
        _transformers(str(tmp_path), None)


def test_a_model_of_a_configuration_downloads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    from huggingface_hub import constants

    from torch_vis.cli.model_spec import _transformers

    was, seen = constants.HF_HUB_OFFLINE, []
    made = transformers.AutoModel.from_config
    monkeypatch.setattr(
        transformers.AutoModel, "from_config",
        lambda *args, **kwargs: (seen.append(constants.HF_HUB_OFFLINE), made(*args, **kwargs))[1],
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    _transformers(str(tmp_path), None)
    assert seen == [True] and was == constants.HF_HUB_OFFLINE
