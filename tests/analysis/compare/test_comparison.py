"""Two traces laid over one another: what was added, removed, changed and moved, in figures, words and a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.traced import NAMES, traced
from torch_vis.analysis.compare.sequence_diff import common
from torch_vis.errors import TensorsMissing, UsageError

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(nn.Module):
    def __init__(self, width: int = 4, norm: bool = False, name: str = "body") -> None:
        super().__init__()
        self.stem = nn.Linear(4, width)
        setattr(self, name, nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)))
        self.norm = nn.LayerNorm(4) if norm else None
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        x = getattr(self, self.name)(self.stem(x)) + 1
        return x if self.norm is None else self.norm(x)


def compared(one: nn.Module, two: nn.Module, backward: bool = False) -> tv.Comparison:
    return tv.compare(tv.trace(one, X, backward=backward), tv.trace(two, X, backward=backward))


@pytest.mark.parametrize("name", NAMES[::4])
def test_a_trace_is_the_same_as_itself(name: str) -> None:
    found = tv.compare(traced(name), traced(name))
    assert found.same and found.alignment.to_b.tolist() == list(range(len(traced(name).graph)))
    assert found.moved_modules == []


def test_what_was_added_is_found_and_nothing_else() -> None:
    found = compared(Net(), Net(norm=True))
    assert [node.name for node in found.added] == ["native_layer_norm"]
    assert len(found.removed) == 0 and found.changed == [] and not found.same
    assert [scope.path for scope in found.added_modules] == ["norm"]
    back = compared(Net(norm=True), Net())
    assert [node.name for node in back.removed] == ["native_layer_norm"] and len(back.added) == 0


def test_a_changed_width_says_which_shapes() -> None:
    found = compared(Net(), Net(width=6))
    assert len(found.added) == len(found.removed) == 0
    stem = next(row for row in found.changed if row.after.path == "stem" and row.after.name == "addmm")
    assert stem.what == ("f32[2, 4] → f32[2, 6]",)
    assert found.figures["FLOPs"][1] > found.figures["FLOPs"][0]  # type: ignore[operator]
    assert found.figure().layout.xaxis.title.text == "B − A, in % of A"


def test_a_renamed_module_is_the_same_module() -> None:
    found = compared(Net(), Net(name="trunk"), backward=True)
    assert len(found.added) == len(found.removed) == 0 and found.changed == []
    assert ("body", "trunk") in {(one.path, two.path) for one, two in found.moved_modules}
    assert "modules under another path, and what is inside them (4)\n  body → trunk\n" in str(found)


def test_an_operation_in_the_middle_moves_no_other() -> None:
    one = tv.trace(lambda x: (x * 2).relu().sum(), X)
    two = tv.trace(lambda x: (x * 2).tanh().relu().sum(), X)
    found = tv.compare(one, two)
    assert [node.name for node in found.added] == ["tanh"] and len(found.removed) == 0
    scaled = tv.compare(one, tv.trace(lambda x: (x * 3).relu().sum(), X))
    assert [row.what for row in scaled.changed] == [("mul(%0, 2) → mul(%0, 3)",)]


def test_eager_against_export_is_the_same_but_for_scopes() -> None:
    found = tv.compare(tv.trace(Net(), X), tv.trace(Net(), X, via="fx"))
    assert found.same


def test_dtypes_are_told() -> None:
    model = nn.Linear(4, 4)
    found = tv.compare(tv.trace(model, X), tv.trace(model.double(), X.double()))
    assert any("f32[2, 4] → f64[2, 4]" in row.what for row in found.changed)


def test_as_words_as_data_and_as_a_page(tmp_path: Path) -> None:
    found = compared(Net(), Net(width=6, norm=True), backward=True)
    text = str(found)
    assert "only in B" in text and "native_layer_norm in norm" in text and "B − A" in text and "FLOPs" in text
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["same"] is False and plain["added_modules"] == ["norm"]
    found.save(tmp_path / "diff.html")
    assert "<script" in (tmp_path / "diff.html").read_text()
    with pytest.raises(UsageError, match=r"ends in \.html"):
        found.save(tmp_path / "diff.onnx")
    with pytest.raises(UsageError, match="takes two traces"):
        tv.compare(found.a, 3)  # type: ignore[arg-type]


def test_long_sequences_stay_linear() -> None:
    one = [f"op{place % 7}" for place in range(50_000)]
    two = [*one[:25_000], "new", *one[25_000:]]
    pairs = common(one, two)
    assert len(pairs) == 50_000 and pairs[25_000] == (25_000, 25_001)
    unlike = common(["a"] * 30_000 + ["x"] + ["b"] * 30_000, ["c"] * 30_000 + ["x"] + ["d"] * 30_000)
    assert unlike == [(30_000, 30_000)]


def test_a_layer_is_known_by_its_shapes_though_its_number_changed():
    x = torch.randn(1, 8)
    one = tv.trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), x)
    more = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 2), nn.Linear(2, 2))
    found = tv.compare(one, tv.trace(more, x))
    assert {node.path for node in found.added} == {"4"} and not found.changed
    assert [(before.path, after.path) for before, after in found.moved_modules] == [("2", "3")]


class Named(nn.Module):
    def __init__(self, names: str) -> None:
        super().__init__()
        self.names = names
        for name, layer in zip(names, (nn.Linear(8, 5), nn.Linear(5, 6), nn.Linear(6, 2))):
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names:
            x = getattr(self, name)(x)
        return x


class Renamed(Named):
    pass


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 6), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("other", [lambda: Renamed("pqr"), Wrapped], ids=["renamed", "wrapped"])
def test_a_refactor_is_seen_through(other):
    x = torch.randn(1, 8)
    found = tv.compare(tv.trace(Named("abc"), x), tv.trace(other(), x))
    assert not len(found.added) and not len(found.removed) and not found.changed
    assert [before.path for before, _ in found.moved_modules] == ["a", "b", "c"]


def test_another_order_is_a_difference():
    class Ordered(nn.Module):
        def __init__(self, order: str) -> None:
            super().__init__()
            self.a, self.b, self.c, self.order = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), order

        def forward(self, x: Tensor) -> Tensor:
            for name in self.order:
                x = getattr(self, name)(x)
            return x

    x = torch.randn(1, 8)
    found = tv.compare(tv.trace(Ordered("abc"), x), tv.trace(Ordered("bac"), x))
    assert not found.same and [one.path for one, _ in found.reordered_modules] in (["a"], ["b"])
    assert "another order" in str(found)


@pytest.mark.parametrize("via", ["export", "fx", "aot"])
def test_an_operator_is_not_shown_as_its_own_module(via):
    class Before(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x)

    class After(Before):
        def forward(self, x):
            return self.inner(x) * x.new_ones(4) + torch.arange(4)

    x = torch.randn(2, 4)
    found = tv.compare(tv.trace(Before(), x), tv.trace(After(), x, via=via))
    assert {"mul", "new_ones", "add"} <= {node.name for node in found.added}
    for node in found.added:
        assert f"{node.name} in {node.name}" not in str(found)
    assert {row["module"] for row in found.to_dict()["added"]} <= {"", "After"}
    assert {row["module"] for row in found.to_dict()["removed"]} <= {"", "inner"}


def test_a_layer_that_was_wrapped_is_the_same_layer():
    x = torch.randn(2, 4)
    layer = nn.Linear(4, 4)
    found = tv.compare(tv.trace(nn.Sequential(layer), x), tv.trace(nn.Sequential(nn.Sequential(layer)), x))
    assert found.same and [(one.path, two.path) for one, two in found.moved_modules] == [("0", "0.0")]
    back = tv.compare(found.b, found.a)
    assert back.same and back.alignment.scope_to_b.tolist() == [0, 1, -1, 2]


class Layers(nn.Module):
    """Blocks that are all alike, called in an order, some of them by way of something else."""

    def __init__(self, order: str = "0123", call=lambda layer, x: layer(x)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        self.order, self.call = order, call

    def forward(self, x: Tensor) -> Tensor:
        for name in self.order:
            x = self.call(self.layers[int(name)], x)
        return x


class Others(Layers):
    """The same as another class."""


def same_weights(one: nn.Module, other: nn.Module) -> None:
    other.load_state_dict(one.state_dict())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_calls_are_those_of_forward(reentrant: bool) -> None:
    one = Layers()
    two = Others(call=lambda layer, x: checkpoint(layer, x, use_reentrant=reentrant))
    same_weights(one, two)
    x = torch.randn(2, 8, requires_grad=True)
    found = tv.compare(
        tv.trace(one, x, backward=True), tv.trace(two, x.detach().requires_grad_(), backward=True)
    )
    assert not found.moved_modules and not found.added_modules and not found.removed_modules
    assert not [node for node in found.removed if node.name in ("addmm", "tanh", "mm", "tanh_backward")]
    differences = found.differences()
    assert not differences.rows and all(gap.relative == 0 for _, gap in differences.results.values())


def test_layers_that_are_alike_keep_their_names_in_another_order() -> None:
    one, two = Layers(), Layers("3210")
    same_weights(one, two)
    x = torch.randn(2, 8)
    found = tv.compare(tv.trace(one, x, backward=True), tv.trace(two, x, backward=True))
    assert not found.same and not found.moved_modules
    assert len(found.reordered_modules) == 3  # the fewest, and not what is inside them
    pairs = [(here.name, there.name) for here, there in found.differences().matched.pairs]
    assert len(pairs) == 9 and all(here == there for here, there in pairs)


def test_a_container_of_layers_from_elsewhere_is_no_layer() -> None:
    one = Layers()

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rest = nn.Sequential(*one.layers[1:])

        def forward(self, x: Tensor) -> Tensor:
            return self.rest(x)

    x = torch.randn(2, 8)
    found = tv.compare(tv.trace(one, x), tv.trace(Dropped(), x))
    assert [scope.path for scope in found.added_modules] == ["rest"]
    assert [scope.path for scope in found.removed_modules] == ["layers.0", "layers.0.0", "layers.0.1"]
    assert "modules only in A (3)\n  layers.0 (Sequential) and 2 inside it\n" in str(found)
    assert (
        "modules under another path, and what is inside them (9)\n  layers.1 → rest.0\n  layers.2 → rest.1\n"
        in str(found)
    )
    assert "modules only in B (1)\n  rest (Sequential)" in str(found)


def test_the_backward_that_a_compiler_captured_is_that_of_the_modules() -> None:
    model, x = Layers(), torch.randn(2, 8)
    one = tv.trace(model, x, backward=True)
    model.zero_grad()
    two = tv.trace(model, x, backward=True, via="aot")
    assert not len(two.graph.find(flag="recompute"))
    found = tv.compare(one, two)
    assert not found.added_modules and not found.removed_modules
    assert not [
        node for node in found.removed if node.name in ("addmm", "tanh", "mm", "sum", "tanh_backward")
    ]


def test_sums_that_leave_operations_out_are_not_compared() -> None:
    with torch.library._scoped_library("compared", "FRAGMENT") as library:
        library.define("own(Tensor x) -> Tensor")
        library.impl("own", lambda x: x.clone(), "CompositeExplicitAutograd")
        x = torch.randn(2, 8)
        layer = nn.Linear(8, 8)
        one = tv.trace(layer, x)
        two = tv.trace(lambda x: torch.ops.compared.own(layer(x)), x)
    found = tv.compare(one, two)
    assert found.incomplete == {"FLOPs": (False, True), "bytes accessed": (False, True)}
    row = next(line for line in str(found).splitlines() if line.startswith("FLOPs"))
    assert row.split() == ["FLOPs", "272", "≥", "272"]
    assert found.to_dict()["incomplete"]["FLOPs"] == {"a": False, "b": True}
    assert len(found.figure().data[0].x) == len(found.figures) - 2


def test_a_run_by_shapes_took_no_time() -> None:
    x, model = torch.randn(2, 8), nn.Linear(8, 8)
    found = tv.compare(tv.trace(model, x), tv.trace(model, x, fake=True))
    assert found.figures["time"][1] is None and "B was not run (fake=True)" in str(found)
    with pytest.raises(TensorsMissing, match="B was traced with fake=True"):
        found.differences()


def test_equal_lines_are_one_line() -> None:
    x = torch.randn(2, 8)
    found = tv.compare(tv.trace(lambda x: x.exp(), x), tv.trace(lambda x: x.exp().sin().sin().sin(), x))
    assert "only in B (3)\n  sin in the run × 3" in str(found)


def test_another_memory_format_is_a_change() -> None:
    layer, x = nn.Conv2d(3, 4, 1), torch.randn(2, 3, 5, 5)
    one = tv.trace(layer, x)
    two = tv.trace(layer, x.to(memory_format=torch.channels_last))
    found = tv.compare(one, two)
    assert [row.what for row in found.changed] == [("strides (100, 25, 5, 1) → (100, 1, 20, 4)",)]
    assert tv.compare(two, two).same


def test_a_wrapped_model_is_named_and_not_all_that_is_in_it() -> None:
    class Wrapped(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model, self.last = model, nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.model(x))

    inner = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)])
    x = torch.ones(1, 4)
    told = str(tv.compare(tv.trace(inner, x), tv.trace(Wrapped(inner), x)))
    assert "under another path, and what is inside them (10)\n  (root) → model\n\n" in told


def test_lines_of_added_layers_name_the_layers_that_were_added() -> None:
    """Stages that grew by different layers are not one pattern that would name them all."""

    class Stages(nn.Module):
        def __init__(self, *sizes: int) -> None:
            super().__init__()
            for number, size in enumerate(sizes, 1):
                blocks = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(size)]
                setattr(self, f"layer{number}", nn.Sequential(*blocks))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for stage in self.children():
                x = stage(x)
            return x

    x = torch.ones(2, 4)
    difference = tv.compare(tv.trace(Stages(2, 2, 2, 2), x), tv.trace(Stages(3, 4, 6, 3), x))
    assert [line.path for line in difference.lines] == ["layer1.2", "layer2.2-3", "layer3.2-5", "layer4.2"]
