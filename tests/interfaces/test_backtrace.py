"""Model tracing for explanation: the document's examples, what a traced graph says, and runs of it on other inputs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.zoo import ZOO, declare_torchvision_ops
from torch_vis import DLBacktrace
from torch_vis.errors import CaptureFailed, NoMatch, NotTraceable, TensorsMissing, UsageError

declare_torchvision_ops()


class SimpleCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        x = self.relu(x)
        x = self.pool(x)
        x = x.flatten(1)
        return self.fc(x)


class MultiInputModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image_encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.metadata_encoder = nn.Linear(100, 6)
        self.classifier = nn.Linear(10, 2)

    def forward(self, image: torch.Tensor, metadata: torch.Tensor) -> torch.Tensor:
        x = self.image_encoder(image)
        y = self.metadata_encoder(metadata)
        return self.classifier(torch.cat([x, y], dim=1))


@pytest.fixture(scope="module")
def cnn() -> tuple[SimpleCNN, DLBacktrace]:
    model = SimpleCNN()
    model.eval()
    return model, DLBacktrace(model=model, input_for_graph=(torch.randn(1, 3, 224, 224),), device="cpu")


def branching(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return branching(x)


# What the document shows


def test_the_nodes_of_a_small_network(cnn: tuple[SimpleCNN, DLBacktrace]) -> None:
    _model, dlb = cnn
    nodes = [(row.op, row.type) for row in dlb.nodes.values()]
    assert nodes == [
        ("x", "placeholder"),
        ("conv2d", "call_function"),
        ("relu", "call_function"),
        ("adaptive_avg_pool2d", "call_function"),
        ("flatten", "call_function"),
        ("linear", "call_function"),
        ("output", "output"),
    ]
    assert dlb.module_map["conv2d"] == "conv" and dlb.module_map["flatten"] == ""


def test_hyperparameters_are_the_schema_s_with_real_weights(cnn: tuple[SimpleCNN, DLBacktrace]) -> None:
    model, dlb = cnn
    found = dlb.graph.nodes["conv2d"]["hyperparameters"]
    assert found["weight"] is model.conv.weight and found["bias"] is model.conv.bias
    rest = {name: value for name, value in found.items() if name not in ("weight", "bias")}
    assert rest == {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}


def test_the_graph_is_acyclic_and_in_order(cnn: tuple[SimpleCNN, DLBacktrace]) -> None:
    import networkx as nx

    _, dlb = cnn
    assert nx.is_directed_acyclic_graph(dlb.graph)
    order = dlb.topological_order
    assert all(order.index(a) < order.index(b) for a, b in dlb.graph.edges)
    assert dlb.graph.nodes["conv2d"]["type"] == "call_function"


def test_several_inputs() -> None:
    model = MultiInputModel().eval()
    dummy_image, dummy_metadata = torch.randn(1, 3, 224, 224), torch.randn(1, 100)
    dlb = DLBacktrace(model=model, input_for_graph=(dummy_image, dummy_metadata))
    image, metadata = torch.randn(3, 3, 224, 224), torch.randn(3, 100)
    node_io = dlb.predict(image, metadata)
    assert torch.equal(node_io.output, model(image, metadata))
    assert [part.shape[1] for part in node_io["cat"]["input"]] == [4, 6]
    with pytest.raises(
        UsageError, match=r"forward\(image, metadata\): missing a required argument: 'metadata'"
    ):
        dlb.predict(image)


def test_other_sequence_lengths_and_batches() -> None:
    layer = nn.TransformerEncoderLayer(768, 4, dim_feedforward=16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    dlb = DLBacktrace(model=model, input_for_graph=(torch.randn(1, 128, 768),))
    for shape in ((1, 256, 768), (3, 7, 768), (1, 1, 768)):
        real_input = torch.randn(shape)
        torch.testing.assert_close(dlb.predict(real_input).output, model(real_input), rtol=1e-4, atol=1e-5)


def test_traced_once_and_used_on_a_loader(cnn: tuple[SimpleCNN, DLBacktrace]) -> None:
    model, dlb = cnn
    for size in (2, 2, 1):
        batch = torch.randn(size, 3, 224, 224)
        assert torch.equal(dlb.predict(batch).output, model(batch))


# Runs of a graph


@pytest.mark.parametrize("name", ["resnet50", "vit", "bert", "lstm_cell_loop", "unet"])
def test_outputs_of_real_models_are_equal_bit_for_bit(name: str) -> None:
    model, args, kwargs = ZOO[name].make()
    model.eval()
    dlb = DLBacktrace(model=model, input_for_graph=dict(_named(model, args), **kwargs))
    node_io = dlb.predict(*args, kwargs=kwargs)
    expected = pytree.tree_leaves(model(*args, **kwargs))
    made = pytree.tree_leaves(node_io.output)
    assert len(made) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
    assert list(node_io) == dlb.topological_order


def _named(model: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    import inspect

    return dict(zip(inspect.signature(model.forward).parameters, args, strict=False))


def test_what_nodes_took_and_gave_is_what_hooks_see() -> None:
    from torchvision.models.resnet import BasicBlock, ResNet

    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5).eval()
    x = torch.randn(2, 3, 32, 32)
    dlb = DLBacktrace(model=model, input_for_graph=(x,))
    node_io = dlb.predict(x)
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.Linear)):
            module.register_forward_hook(
                lambda _, given, made, name=name: seen.update({name: (given[0].clone(), made.clone())})
            )
    model(x)
    places = {path: node for node, path in dlb.module_map.items() if path in seen}
    assert len(places) == len(seen) >= 20
    for path, (given, made) in seen.items():
        row = node_io[places[path]]
        # the model's ReLUs write in place; a value in the node's record stays what it was
        assert torch.equal(row["input"][0], given) and torch.equal(row["output"], made), path


def test_weights_are_the_model_s_own() -> None:
    model = nn.Sequential(nn.Linear(3, 2)).eval()
    x = torch.randn(2, 3)
    dlb = DLBacktrace(model=model, input_for_graph=(x,))
    with torch.no_grad():
        model[0].weight.zero_()
    assert torch.equal(dlb.predict(x).output, model(x))


def test_keep_bounds_what_is_held(cnn: tuple[SimpleCNN, DLBacktrace]) -> None:
    model, dlb = cnn
    x = torch.randn(1, 3, 224, 224)
    some = dlb.predict(x, keep=["conv", "linear"])
    assert sorted(some) == ["conv2d", "linear", "output"]
    assert torch.equal(some["conv2d"]["output"], model.conv(x)) and some["conv2d"]["input"][0] is x
    few = dlb.predict(x, keep="outputs")
    assert list(few) == ["output"] and torch.equal(few.output, model(x))
    assert [node.name for node in few.raw() if node.op == "call_function"] == ["linear"]
    with pytest.raises(TensorsMissing, match="conv2d"):
        few["conv2d"]
    with pytest.raises(NoMatch, match="conv2d"):
        dlb.predict(x, keep="conv2")
    with pytest.raises(NoMatch, match="'relu'"):
        some["rely"]


def test_nothing_global_changes() -> None:
    compilations = []

    def backend(module: Any, inputs: Any) -> Any:
        compilations.append(module)
        return module.forward

    other = torch.compile(lambda x: x * 2 + 1, backend=backend)
    other(torch.ones(3))
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval()
    before = (
        torch.get_rng_state(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
    )
    dlb = DLBacktrace(model=model, input_for_graph=(torch.ones(1, 3),))
    dlb.evaluation(dlb.predict(torch.ones(2, 3)))
    after = (
        torch.get_rng_state(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
    )
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert all(parameter.grad is None for parameter in model.parameters()) and not model.training
    other(torch.ones(3))
    assert len(compilations) == 1


def test_random_operators_draw_what_the_model_would() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    model, x = Noisy().eval(), torch.zeros(2, 3)
    dlb = DLBacktrace(model=model, input_for_graph=(x,))
    torch.manual_seed(3)
    expected = model(x), torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(dlb.predict(x).output, expected[0]) and torch.equal(torch.rand(1), expected[1])


def test_writes_to_views_and_to_buffers() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            y = x.clone()
            y[:, 0].mul_(3)
            return y.relu_() + self.calls

    model, x = Writes().eval(), torch.randn(2, 3)
    dlb = DLBacktrace(model=model, input_for_graph=(x,))
    assert model.calls == 0
    made = dlb.predict(x).output
    assert model.calls == 1
    model.calls.zero_()
    assert torch.equal(made, model(x))


# What cannot work


def test_train_mode_is_refused() -> None:
    with pytest.raises(UsageError, match=r"train mode; call model.eval\(\)"):
        DLBacktrace(model=SimpleCNN(), input_for_graph=(torch.randn(1, 3, 8, 8),))
    model = SimpleCNN().eval()
    model.relu.train()
    with pytest.raises(UsageError, match="its part 'relu'"):
        DLBacktrace(model=model, input_for_graph=(torch.randn(1, 3, 8, 8),))


def test_what_is_no_model_or_no_input_is_refused() -> None:
    with pytest.raises(NotTraceable, match="function"):
        DLBacktrace(model=branching, input_for_graph=(torch.ones(1),))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="tuple with the model's inputs"):
        DLBacktrace(model=SimpleCNN().eval(), input_for_graph=None)
    with pytest.raises(UsageError, match="missing a required argument: 'metadata'"):
        DLBacktrace(model=MultiInputModel().eval(), input_for_graph=(torch.ones(1, 3, 8, 8),))


def test_types_and_devices() -> None:
    model = SimpleCNN().eval()
    with pytest.raises(CaptureFailed, match=r"'x' is torch.float64 .* give x.to\(torch.float32\)"):
        DLBacktrace(model=model, input_for_graph=(torch.randn(1, 3, 8, 8).double(),))
    with pytest.raises(UsageError, match=r"'x' is on meta and the model on cpu; give x.to\('cpu'\)"):
        DLBacktrace(model=model, input_for_graph=(torch.randn(1, 3, 8, 8, device="meta"),))
    with pytest.raises(UsageError, match=r"conv.weight is on cpu; call model.to\('meta'\) first"):
        DLBacktrace(model=model, input_for_graph=(torch.randn(1, 3, 8, 8),), device="meta")
    dlb = DLBacktrace(model=model, input_for_graph=(torch.randn(1, 3, 8, 8),))
    with pytest.raises(UsageError, match=r"'x' is torch.float64, .* give x.to\(torch.float32\)"):
        dlb.predict(torch.randn(1, 3, 8, 8).double())
    with pytest.raises(UsageError, match=r"'x' is on meta, and the graph was traced on cpu"):
        dlb.predict(torch.randn(1, 3, 8, 8, device="meta"))
    with pytest.raises(UsageError, match=r"another structure \(x\[0\]: 1.0\)"):
        dlb.predict([1.0])
    with pytest.raises(UsageError, match="size 1 of input 'x' is 4, and the graph is for 3"):
        dlb.predict(torch.randn(1, 4, 8, 8))
    with pytest.raises(UsageError, match=r"shape \(3, 8, 8\)"):
        dlb.predict(torch.randn(3, 8, 8))


def test_a_shape_outside_the_declared_range() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    x = torch.randn(4, 3)
    dlb = DLBacktrace(nn.Linear(3, 2).eval(), (x,), dynamic_shapes=({0: batch},))
    assert dlb.predict(torch.randn(8, 3)).output.shape == (8, 2)
    with pytest.raises(
        UsageError, match="size 0 of input 'input' is 9; the graph takes at least 2 and at most 8"
    ):
        dlb.predict(torch.randn(9, 3))


def test_a_shape_that_takes_another_branch() -> None:
    class ByLength(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] > 4 else x + 1

    dlb = DLBacktrace(ByLength().eval(), (torch.ones(6, 2),))
    assert torch.equal(dlb.predict(torch.ones(9, 2)).output, torch.full((9, 2), 2.0))
    with pytest.raises(UsageError, match="size 0 of input 'x' is 3"):
        dlb.predict(torch.ones(3, 2))


def test_control_flow_on_values_names_the_line() -> None:
    with pytest.raises(CaptureFailed, match=r"test_backtrace.py:\d+ in branching.*torch.cond") as caught:
        DLBacktrace(Branching().eval(), (torch.ones(2, 3),))
    assert caught.value.__cause__ is not None


def test_sizes_that_export_cannot_leave_open_are_fixed_and_said() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + float(torch.full((), x.shape[0]).shape == ()) * len(range(x.shape[0]))

    dlb = DLBacktrace(Fixed().eval(), (torch.ones(3, 2),))
    made = dlb.predict(torch.ones(3, 2)).output
    assert torch.equal(made, torch.full((3, 2), 4.0))
    with pytest.raises(UsageError, match="size 0 of input 'x' is 5, and the graph is for 3"):
        dlb.predict(torch.ones(5, 2))


def test_a_constant_input_is_part_of_the_graph() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, times: int = 2) -> torch.Tensor:
            return x * times

    dlb = DLBacktrace(Scaled().eval(), (torch.ones(2, 2), 3))
    assert torch.equal(dlb.predict(torch.ones(4, 2), 3).output, torch.full((4, 2), 3.0))
    with pytest.raises(UsageError, match="'times' is 4; the graph was traced with 3"):
        dlb.predict(torch.ones(4, 2), 4)


def test_an_operator_that_raises_names_its_node() -> None:
    model = nn.Embedding(4, 2).eval()
    dlb = DLBacktrace(model, (torch.tensor([[1, 2]]),))
    with pytest.raises(IndexError) as caught:
        dlb.predict(torch.tensor([[9, 2]]))
    assert any("'embedding'" in note for note in getattr(caught.value, "__notes__", ["'embedding'"]))


SMALL = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


def test_the_output_holds_what_was_put_in():
    dlb = DLBacktrace(SMALL, (torch.randn(2, 4),))
    found = dlb.evaluation(dlb.predict(torch.randn(2, 4)), target=0)
    assert found["output"] == found.put_in == 2.0
    told = str(dlb.evaluation(dlb.predict(torch.randn(2, 4)), target=0, mode="contrastive"))
    assert "for and against" in told


def test_a_loaders_batch_is_taken_as_it_comes():
    dlb = DLBacktrace(SMALL, (torch.randn(2, 4),))
    x = torch.randn(3, 4)
    for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=3):
        assert torch.equal(dlb.predict([batch]).output, SMALL(x))


def test_what_stays_at_a_learned_token_is_explained():
    class Token(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.head = nn.Parameter(torch.ones(1, 1, 4)), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(torch.cat([self.token.expand(len(x), -1, -1), x], 1).sum(1))

    model = Token().eval()
    dlb = DLBacktrace(model, (torch.rand(2, 3, 4),))
    found = dlb.evaluation(dlb.predict(torch.rand(2, 3, 4)), target=0)
    assert found.absorbed and "learned token" in str(found)


@pytest.mark.parametrize(
    "more, told",
    [
        ({"dynamic_shapes": {7: 1}}, "dynamic_shapes does not fit"),
        ({"dynamic_shapes": ({0: torch.export.Dim("c", min=5)},)}, "dynamic_shapes does not fit"),
        ({"device": "nonsense"}, "device is 'cpu', 'cuda' or such"),
    ],
)
def test_advice_fits_the_fault(more, told):
    with pytest.raises(UsageError, match=re.escape(told)) as raised:
        DLBacktrace(SMALL, (torch.randn(2, 4),), **more)
    assert "torch.cond" not in str(raised.value)


def test_a_batch_of_one_that_torch_fixed_is_explained():
    dlb = DLBacktrace(SMALL, (torch.randn(1, 4),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    with pytest.raises(UsageError, match="size of 1 for a constant"):
        dlb.predict(torch.randn(3, 4))


def test_a_failed_export_leaves_no_marks():
    class Branching(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    x = torch.randn(2, 4)
    with pytest.raises(CaptureFailed):
        DLBacktrace(Branching().eval(), (x,))
    assert not vars(x)


def test_modules_are_those_of_the_model():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    dlb = DLBacktrace(nn.TransformerEncoder(layer, 1).eval(), (torch.randn(2, 3, 8),))
    assert not [path for path in dlb.module_map.values() if "hook" in path]
