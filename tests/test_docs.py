"""The documentation names what is there: paths, modules, links and public names."""

from __future__ import annotations

import email
import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import lru_cache, reduce
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import torch_vis as tv
from torch_vis import interfaces
from torch_vis._reports import EXPLANATIONS, REPORTS
from torch_vis.cli.command_table import COMMANDS
from torch_vis.cli.parser import parser_of
from torch_vis.cli.task_table import MORE_TASKS, TASKS, Task, markdown, tasks
from torch_vis.errors import NoMatch, UsageError
from torch_vis.formats import FORMATS, RENDERERS
from torch_vis.graph import schema
from torch_vis.graph.run import LIMIT_KINDS

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ("reference", "gallery_pages")  # folders that are made when the site is built
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    page for page in sorted((ROOT / "docs").rglob("*.md")) if not {*page.relative_to(ROOT).parts} & {*WRITTEN}
]
NEAR = (ROOT, ROOT / "src" / "torch_vis", ROOT / "tests")
PATH = re.compile(r"(?:[\w.-]+/)+(?:[\w.-]+\.(?:py|md|ts|toml|json))?")
DOTTED = re.compile(r"torch_vis(?:\.[A-Za-z_]\w*)+")
PUBLIC = re.compile(r"\btv\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
LINK = re.compile(r"\]\(([^)#:]+)(?:#([^)]*))?\)")
# Paths of the reader's own, in examples.
EXAMPLES = frozenset({"path/to/file.py"})


def id_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@lru_cache
def reference() -> ModuleType:
    """What writes the reference of the site; its tables are asked, and nothing is written."""
    spec = spec_from_file_location("docs_reference", ROOT / "docs" / "extension" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@lru_cache
def written_pages() -> dict[str, str]:
    """The text of the pages of the reference, by name."""
    return {**reference().pages(), "index": ""}


def in_backticks(page: Path) -> list[str]:
    """What stands in single backticks, fenced blocks left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", text)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def paths_in(words: list[str]) -> set[str]:
    """The words that are paths of the repository: with a slash, and a known ending or a slash at the end."""
    return {word for word in words if PATH.fullmatch(word) and word not in EXAMPLES}


def attribute(name: str) -> object:
    """What a dotted name stands for: the longest part that is a module, then its attributes."""
    parts = name.split(".")
    count = 1
    while count < len(parts) and find_spec(".".join(parts[: count + 1])) is not None:
        count += 1
        if not hasattr(import_module(".".join(parts[:count])), "__path__"):
            break
    return reduce(getattr, parts[count:], import_module(".".join(parts[:count])))


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_paths_exist(page: Path) -> None:
    missing = [
        path
        for path in paths_in(in_backticks(page))
        if not any(
            (folder / path).is_dir() if path.endswith("/") else (folder / path).is_file() for folder in NEAR
        )
    ]
    assert not missing


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"], ids=id_of)
def test_files_that_are_named_alone_exist(page: Path) -> None:
    names = {word for word in in_backticks(page) if re.fullmatch(r"\w+\.py", word)}
    assert names, "or the pattern is wrong"
    assert names <= {path.name for path in (ROOT / "src").rglob("*.py")}


def leads_nowhere(page: Path, link: str, anchor: str = "") -> bool:
    """Whether a link of a page has no target: a file that is there, or a page of the reference that will be written."""
    target = (page.parent / link).resolve()
    written = ROOT / "docs" / "reference"
    if target.parent != written or ROOT / "docs" not in page.parents:
        return not target.is_file()
    text = written_pages().get(target.stem) if target.suffix == ".md" else None
    return text is None or bool(anchor and anchor not in anchors(text))


def anchors(text: str) -> set[str]:
    """What a link into a page of the reference can name: its headings, and the names that have an entry."""
    headings = re.findall(r"^#+ (.*)", text, re.M)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^\.\. auto\w+:: (\S+)", text, re.M))


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        link
        for link, anchor in LINK.findall(page.read_text(encoding="utf-8"))
        if leads_nowhere(page, link, anchor)
    ]
    assert not missing


def test_a_link_into_the_reference_that_leads_nowhere_would_be_noticed() -> None:
    index = ROOT / "docs" / "index.md"
    assert not leads_nowhere(index, "reference/index.md")
    assert not leads_nowhere(index, "reference/commands.md", "torch-vis-run")
    assert not leads_nowhere(index, "reference/trace.md", "torch_vis.Trace")
    assert leads_nowhere(index, "reference/gone.md")
    assert leads_nowhere(index, "reference/commands.md", "torch-vis-gone")
    assert leads_nowhere(index, "gone.md")


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_dotted_names_can_be_imported(page: Path) -> None:
    text = " ".join([*in_backticks(page), *blocks(page, "python")])
    for name in sorted(set(DOTTED.findall(text))):
        assert attribute(name) is not None, name


@pytest.mark.parametrize("page", PAGES, ids=id_of)
@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_public_names_are_the_ones_of_today(page: Path) -> None:
    text = " ".join([*in_backticks(page), *blocks(page, "python")])
    for name in sorted(set(PUBLIC.findall(text))):
        assert attribute(f"torch_vis.{name}") is not None, name


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_what_pages_ask_of_a_trace_is_there() -> None:
    text = "\n".join(block for page in PAGES for block in blocks(page, "python"))
    names = set(re.findall(r"(?:^|[\s(;])t\.([a-z_]\w*)", text))
    assert {"check", "save", "limits"} <= names
    instance = tv.Trace.__annotations__ | tv.types.Run.__annotations__ | tv.Trace.__mro__[1].__annotations__
    missing = {name for name in names if not hasattr(tv.Trace, name) and name not in instance}
    assert not missing


def test_the_tree_of_folders_is_the_one_that_is_there() -> None:
    """Every package of the source stands in the tree of docs/architecture.md, and in it nothing else."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.partition("    src/torch_vis/\n")[2].partition("    viewer/")[0]
    named = set(re.findall(r"\b([a-z_]+)/(?=\s|$)", tree, re.M))
    package = ROOT / "src" / "torch_vis"
    top = {path.parent.name for path in package.glob("*/__init__.py")}
    below = {path.parent.name for path in package.glob("*/*/__init__.py")}
    assert top <= named, "folders that the tree does not have"
    assert named <= top | below | {"numeric"}, "folders of the tree that do not exist"


def test_a_name_that_is_gone_would_be_noticed() -> None:
    assert paths_in(["graph/gone.py", "graph/", "a/b", "x.py", "tests/kit/traced.py"]) == {
        "graph/gone.py",
        "graph/",
        "tests/kit/traced.py",
    }
    with pytest.raises(AttributeError):
        attribute("torch_vis.graph.gone")
    assert attribute("torch_vis.advise.pruning") is tv.advise.pruning


def instances() -> list[Any]:
    """A trace, a comparison and a report of every kind that a small model can have."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x = torch.ones(2, 4)
    t = tv.trace(model, x, backward=True)
    compared = tv.compare(t, tv.trace(model, x, backward=True))
    options = {"roofline": {"hardware": "A100"}, "latency": {"hardware": "A100"}}
    asked = [getattr(t, name)(**options.get(name, {})) for name in REPORTS]
    asked += [t.memory().checkpoint("0"), compared.differences(), t.select("0")]
    asked += [t.sweep("0", tv.edit.zero(), measure=lambda output: output.sum())]
    asked += [t.attribute("saliency"), t.relevance(), t.logit_lens("0 | 1")]
    asked += [t.attribute_edges(lambda output: output.sum(), x + 1)]
    asked += [
        tv.trace(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.ones(1, 3, 8)).attention()
    ]
    asked += [
        tv.advise.checkpointing(model, x),
        tv.advise.pruning(model, x),
        tv.advise.quantization(model, x),
    ]
    asked += [tv.advise.batch_size(model, x, memory="1 MiB", measured=False)]
    return [t, t.graph, t.metrics, compared, *asked]


def test_every_report_gives_its_numbers_by_the_same_names() -> None:
    """``facts`` as numbers, ``text`` as printed, ``notes``: whichever report it is, and as JSON."""
    reports = [item for item in instances() if isinstance(item, tv.types.Report)]
    assert len(reports) > 20
    for report in reports:
        data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
        assert {"facts", "text", "notes"} <= data.keys(), type(report).__name__
        assert all(type(number) in (int, float, bool, type(None)) for number in data["facts"].values())
        assert data["text"] == {name: str(fact) for name, fact in report.facts().items()}
        # and print ends with how to get them
        end = " ".join(str(report).split("\n\n")[-1].split())
        assert "to_dict() has all" in end, type(report).__name__
        assert ("to_pandas() the rows" in end) == bool(report.listings()), type(report).__name__


def test_the_reference_has_every_public_name() -> None:
    """Names, attributes, commands, errors and formats of the package as it is, against what the reference lists."""
    entries = reference().entries()
    public = {name for name in tv.__all__ if not isinstance(getattr(tv, name), ModuleType)}
    modules = [name for name in tv.__all__ if isinstance(getattr(tv, name), ModuleType)]
    public |= {f"{name}.{item}" for name in modules for item in getattr(getattr(tv, name), "__all__", ())}
    public |= set(interfaces.__all__) | {f"torch-vis {name}" for name in COMMANDS}
    public |= {f"format {name}" for name in FORMATS} | {f"renderer {name}" for name in RENDERERS}
    tree = (tv.errors.__doc__ or "").partition("::")[2].partition("A model's")[0]
    public |= set(re.findall(r"(\w+)(?: \(\w+\))?(?:  |$)", re.sub("[│├└─]", "", tree), re.M)) & {
        *vars(tv.errors)
    }
    assert "errors" in modules and "NewerFile" in public, "or the tree is not read"
    assert not public - entries


def test_the_reference_has_every_attribute() -> None:
    """What real objects have, stored or computed, against what the reference says of their classes."""
    entries, missing = reference().entries(), set()
    for item in instances():
        names = {name for name in dir(item) if not name.startswith("_")}
        inherited = {
            name
            for base in type(item).__mro__
            if not base.__module__.startswith("torch_vis")
            for name in dir(base)
        }
        missing |= {f"{type(item).__name__}.{name}" for name in names - inherited} - entries
    # and of reports that take long to make, what their classes store
    for cls in (*reference().reports(), tv.World):
        missing |= {
            f"{cls.__name__}.{name}" for name, text in reference().attributes(cls).items() if not text
        }
    assert not missing


def test_what_the_reference_lists_is_on_its_pages() -> None:
    text = "\n".join(written_pages().values())
    lines = set(re.findall(r"^\.\. auto\w+:: (\S+)", text, re.M))
    for entry in reference().public_names():
        assert reference().path_of(entry.target) in lines, entry.name
        if callable(entry.target):
            said = (
                vars(entry.target).get("__doc__") if isinstance(entry.target, type) else entry.target.__doc__
            )
            signature = f"{getattr(entry.target, '__name__', '')}("  # all that a NamedTuple says of itself
            assert said and not said.startswith(signature), f"nothing is said of {entry.name}"
    for cls in (*reference().reports(), *reference().errors()):
        assert reference().path_of(cls) in lines, cls
    for name in COMMANDS:
        assert f"## torch-vis {name}\n" in text
    for name in (*FORMATS, *RENDERERS):
        assert f"| {name} |" in text


def small_transformer() -> Any:
    """A model whose parts have the names that the pages use."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads, self.qkv, self.proj = 4, nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4)
            z = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.proj(z.transpose(1, 2).reshape(x.shape))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.mlp = Attention(), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mlp(x + self.attn(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(Block() for _ in range(6)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    return Net().eval()


def test_the_workbench_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code, in order."""
    import torch

    names = {
        "model": small_transformer(),
        "batches": [torch.randn(rows, 5, 16) for rows in (2, 2, 1)],
        "x": torch.randn(2, 5, 16),
        "x2": torch.randn(2, 5, 16),
        "vector": torch.randn(16),
        "dataset": torch.randn(50, 5, 16),
    }
    found = blocks(ROOT / "docs" / "workbench.md", "python")
    assert len(found) == 6
    monkeypatch.chdir(tmp_path)
    for block in found:
        exec(block, names)
    t: Any = names["t"]
    assert t.receptive_field("layers.3[0, 2]").box == ((0, 1), (0, 5), (0, 16))
    assert t.loops().turns_of(t.graph.nodes[40]) == ((0, 2),)


@pytest.fixture(scope="module")
def readers_names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a reader has who tries the calls of the tables: a model, a step, two runs and some files."""
    import torch

    folder = tmp_path_factory.mktemp("reader")
    model, trained, x = small_transformer(), small_transformer(), torch.randn(2, 5, 16)
    optimizer = torch.optim.SGD(trained.parameters(), 0.01)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = trained(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def sharded(mesh: Any) -> Any:
        from torch.distributed.fsdp import fully_shard

        layer = fully_shard(torch.nn.Linear(16, 16), mesh=mesh["dp"])
        return lambda batch: layer(batch).sum().backward()

    t = tv.trace(model, x, backward=True)
    t.save(folder / "train.tvz")
    torch.save(model.state_dict(), folder / "weights.pth")
    names = {
        "tv": tv,
        "torch": torch,
        "model": model,
        "x": x,
        "x2": torch.randn(2, 5, 16),
        "batch": x,
        "loader": [x],
        "step": step,
        "make": sharded,
        "t": t,
        "folder": folder,
    }
    return {**names, "before": tv.trace(model, x), "after": tv.trace(model, x)}


@pytest.fixture
def as_a_reader(
    readers_names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    monkeypatch.chdir(readers_names["folder"])
    monkeypatch.setattr("webbrowser.open", lambda *words, **options: True)
    return dict(readers_names)


@pytest.mark.parametrize("task", [*TASKS, *MORE_TASKS], ids=lambda task: task.want)
def test_every_call_of_the_table_of_tasks_works(task: Task, as_a_reader: dict[str, Any]) -> None:
    # the explorer opens the file and then wants a terminal; batches that are tried are as large as fits
    expected = pytest.raises(UsageError, match="terminal") if "explore" in task.call else nullcontext()
    with expected:
        exec(task.call.replace("16 GiB", "1 MiB"), as_a_reader)


def test_the_readme_is_short_and_its_code_runs(as_a_reader: dict[str, Any]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert markdown() in text, "the table of tasks; torch_vis.cli.task_table.markdown() gives it"
    found = blocks(ROOT / "README.md", "python")
    assert len(found) == text.count("```python")
    for block in found:
        exec(block, as_a_reader)
    assert Path("model.onnx").stat().st_size


def test_the_description_of_the_package_leads_nowhere_that_is_not_there(tmp_path: Path) -> None:
    """What an index of packages shows is the README, far from its files: no picture and no link of the repository."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "src/torch_vis/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    hook = "import setuptools.build_meta as hook; print(hook.prepare_metadata_for_build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", hook], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    file = tmp_path / done.stdout.splitlines()[-1] / "METADATA"
    metadata = email.message_from_string(file.read_text(encoding="utf-8"))
    text = metadata.get_payload()
    assert isinstance(text, str) and metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Author"] and not LINK.findall(text) and "![" not in text and ":\n\n##" not in text
    for task in TASKS:
        assert f"| `{task.call or task.command}` | `docs/{task.page}` |" in text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(block in text for block in re.findall(r"^```.*?^```", readme, re.M | re.S))


def test_the_glossary_has_the_words_of_the_graph() -> None:
    """Its tables, what they run along, and what their codes stand for."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows: dict[str, str] = {}
    for line in re.findall(r"^\| (\*\*.*) \|$", text, re.M):
        rows |= dict.fromkeys(re.findall(r"\*\*(\w[\w ]*)\*\*", line), line)
    tables = {schema.COLUMNS[name].along.removesuffix("+1") for name in schema.COLUMNS} - {"input", "output"}
    tables -= {"result_input", "comm", "placed", "resize"}
    tables |= {"communication", *(name.removesuffix("s") for name in schema.LATER_TABLES)}
    assert len(tables) >= 8 and not tables - {*rows}
    for word, codes in (("role", schema.Role), ("phase", schema.Phase), ("kind", schema.Kind)):
        assert all(code.name.lower().replace("_", " ") in rows[word] for code in codes), word
    assert not {kind for kind in LIMIT_KINDS if f"`{kind}`" not in rows["limit"]}


def test_every_task_has_its_page() -> None:
    index = ROOT / "docs" / "index.md"
    assert not [task.page for task in (*TASKS, *MORE_TASKS) if leads_nowhere(index, f"{task.page}.md")]


def test_errors_name_the_page_that_explains_them() -> None:
    explained = [cls for cls in reference().errors() if "page" in vars(cls) and cls.page]
    assert {tv.errors.CheckFailed, tv.errors.CaptureFailed} <= {*explained}
    for cls in explained:
        text = (ROOT / "docs" / f"{cls.page}.md").read_text(encoding="utf-8")
        assert f"`{cls.__name__}`" in text, cls
        assert cls("said").__notes__ == [f"docs/{cls.page} explains it"] and str(cls("said")) == "said"
    assert not hasattr(tv.errors.UsageError("said"), "__notes__")


def net_of_the_pages() -> tuple[Any, Any]:
    """The model and the input of the pages for those who come from another tool."""
    import torch

    names: dict[str, Any] = {"torch": torch}
    page = (ROOT / "docs" / "coming_from" / "flop_counters.md").read_text(encoding="utf-8")
    cell = page.partition(":tags: [remove-input]\n")[2].partition("```")[0]
    exec(cell, names)
    return names["model"], names["x"]


def test_flops_are_those_of_torchs_own_counter_where_it_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, x = net_of_the_pages()
    for backward in (False, True):
        with FlopCounterMode(display=False) as counter:
            output = model(x)
            _ = output.sum().backward() if backward else None
        summary = tv.trace(model, x, backward=backward).summary()
        assert summary.macs and summary.flops
        assert counter.get_total_flops() == 2 * summary.macs < summary.flops


def test_attributions_are_captums() -> None:
    """The calls of the table, theirs beside ours."""
    captum = pytest.importorskip("captum.attr", reason="captum is not installed")
    import torch

    model, x = net_of_the_pages()
    t = tv.trace(model, x)
    pairs = {
        "IntegratedGradients(model).attribute(x, target=3)": (
            captum.IntegratedGradients(model).attribute(x, target=3),
            t.attribute("integrated_gradients", target=3)["input"],
        ),
        "Occlusion(model).attribute(x, sliding_window_shapes=(3, 8, 8), strides=(3, 4, 4), target=3)": (
            captum.Occlusion(model).attribute(
                x, sliding_window_shapes=(3, 8, 8), strides=(3, 4, 4), target=3
            ),
            t.attribute("occlusion", window=(3, 8, 8), stride=(3, 4, 4), target=3)["input"],
        ),
        "LayerGradCam(model, model[0]).attribute(x, target=3, relu_attributions=True)": (
            captum.LayerGradCam(model, model[0]).attribute(x, target=3, relu_attributions=True),
            t.attribute("grad_cam", at="0", target=3)["0"],
        ),
        "LayerConductance(model, model[0]).attribute(x, target=3)": (
            captum.LayerConductance(model, model[0]).attribute(x, target=3),
            t.attribute("conductance", at="0", target=3)["0"],
        ),
    }
    page = (ROOT / "docs" / "coming_from" / "captum.md").read_text(encoding="utf-8")
    for call, (theirs, ours) in pairs.items():
        assert f"| `{call}` |" in page
        torch.testing.assert_close(ours, theirs.to(ours.dtype), msg=call)


def test_activations_are_torchlenss() -> None:
    torchlens = pytest.importorskip("torchlens", reason="torchlens is not installed")
    import torch

    model, x = net_of_the_pages()
    page = (ROOT / "docs" / "coming_from" / "torchlens.md").read_text(encoding="utf-8")
    assert '| `log["conv2d_1_1"].out` (older: `.activation`) | `t.run(keep=["0"]).kept["0"]` |' in page
    wrappers = import_module("torchlens.backends.torch.wrappers")
    try:
        theirs = torchlens.trace(model, x)["conv2d_1_1"].out
    finally:
        # or functions of torch stay wrapped, for tests that come later
        wrappers.unwrap_torch()
    assert torch.equal(theirs, tv.trace(model, x).run(keep=["0"]).kept["0"])


@pytest.mark.parametrize("name", [*REPORTS, *EXPLANATIONS])
def test_help_knows_every_report(name: str) -> None:
    assert tasks(name.replace("_", " "))


def test_help_knows_tasks_by_the_words_people_use() -> None:
    words = {
        "oom": "guides/out_of_memory",
        "out of memory": "guides/out_of_memory",
        "profile": "guides/slow_step",
        "distributed": "guides/many_ranks",
        "hooks": "guides/activations_of_a_data_set",
        "jupyter": "start/notebook",
        "vanishing": "guides/where_is_the_nan_born",
        "huggingface": "guides/trainer_script",
        "captum": "guides/attribution",
        "latex": "guides/figure_for_a_paper",
        "meta": "guides/bigger_than_the_machine",
    }
    for word, page in words.items():
        assert page in {task.page for task in tasks(word)}, word
    # what a task says of itself goes first
    assert [task.want for task in tasks("slow")] == ["why my step is slow"]
    with pytest.raises(NoMatch, match="no task about 'profle'; did you mean 'profile'"):
        tasks("profle")


def test_every_command_of_the_table_of_tasks_has_its_options() -> None:
    for task in (*TASKS, *MORE_TASKS):
        program, name, *words = task.command.split() or ("torch-vis", "doctor")
        assert program == "torch-vis"
        if name != "run":
            parser_of(name).parse_args(words)
