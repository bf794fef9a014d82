"""What the eager capture must hold: containers, module calls, source lines and roles."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torch_vis as tv


def ops(t: tv.Trace, **where: Any) -> list[str]:
    return [node.name for node in t.graph.find(**where)]


def connected(t: tv.Trace, result: str) -> set[str]:
    """The named tensors from outside that the edges connect to a result."""
    row = next(row for row in t.graph.outcomes if row.name == result)
    _, values = t.graph.ancestors(row.sources())
    return {value.name for value in t.graph.inputs if values[value.index] and value.name}


# ---------------------------------------------------------------- operations and values


def test_multi_output_operations_make_several_values() -> None:
    t = tv.trace(lambda x: x.topk(2), torch.rand(5))
    (node,) = t.graph.nodes
    assert node.name == "topk" and [str(v.type) for v in node.outputs] == ["f32[2]", "i64[2]"]
    assert [row.value.index for row in t.graph.outcomes] == [value.index for value in node.outputs]


def test_torchs_own_named_tuples_give_their_names() -> None:
    t = tv.trace(lambda x: x.topk(2), torch.rand(5))
    assert [row.name for row in t.graph.outcomes] == ["output.values", "output.indices"]


def test_an_output_that_nobody_uses_is_a_value_too() -> None:
    t = tv.trace(lambda x: torch.max(x, 0)[0] + 1, torch.rand(3, 2))
    assert [len(node.outputs) for node in t.graph.nodes] == [2, 1]
    assert [len(v.users) for v in t.graph.nodes[0].outputs] == [1, 0]


@dataclasses.dataclass
class Pair:
    left: Tensor
    right: Any


class Named(NamedTuple):
    first: Tensor
    rest: list[Tensor]


def test_names_in_nested_containers() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    def f(pair: Pair, *more: Any, table: dict[str, Any]) -> dict[str, Any]:
        total = pair.left + pair.right["deep"][0] + more[0].first + more[0].rest[1] + table["k"]
        return {
            "list": [total, (total * 2,)],
            "pair": Pair(total * 3, None),
            "named": Named(total * 4, [total * 5]),
            "hf": BaseModelOutput(last_hidden_state=total * 6),
            "ordered": collections.OrderedDict(z=total * 7, a=total * 8),
            "number": 3,
        }

    one = lambda: torch.ones(2)  # noqa: E731
    arguments = (Pair(one(), {"deep": [one()]}), Named(one(), [one(), one()]))
    t = tv.trace(f, *arguments, kwargs={"table": {"k": one()}})
    used = {value.name for value in t.graph.inputs if value.role == "input"}
    assert used == {"pair.left", "pair.right.deep.0", "more.0.first", "more.0.rest.1", "table.k"}
    assert [row.name for row in t.graph.outcomes if row.kind == "output"] == [
        "output.list.0",
        "output.list.1.0",
        "output.pair.left",
        "output.named.first",
        "output.named.rest.0",
        "output.hf.last_hidden_state",
        "output.ordered.z",
        "output.ordered.a",
    ]
    t.check(inputs=True)


def test_numbers_that_are_equal_are_other_arguments() -> None:
    """0, 0.0, False and 0j give other types, and -0j other signs."""
    numbers = (0, 0.0, -0.0, False, 0j, complex(0, -0.0), 1, True, 1 + 0j, complex(1, -0.0))

    t = tv.trace(lambda x: [x + number for number in numbers], torch.arange(3))
    assert [node.inputs[0].type.dtype for node in t.graph.nodes] == ["int64"] * len(numbers)
    assert len(t.graph.calls) == len(numbers)
    t.check()


def test_reused_tensor_ids_are_told_apart() -> None:
    seen: list[int] = []

    def f(x: Tensor) -> Tensor:
        total = x
        for step in range(1000):
            fresh = torch.full((2,), float(step))
            seen.append(id(fresh))
            total = total + fresh
        return total

    t = tv.trace(f, torch.ones(2))
    assert len(set(seen)) < len(seen), "the ids have to be reused for this test to mean something"
    adds = t.graph.find(op="add")
    assert len(adds) == 1000
    for step, node in enumerate(adds):
        filled = node.inputs[1].producer
        assert filled is not None and filled.call.args[1] == float(step)
    t.check()


def test_disjoint_views_are_told_apart() -> None:
    def f(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        y[:, 0].add_(a)
        y[:, 1].mul_(b)
        return y, y[:, 0] * 2

    t = tv.trace(f, torch.rand(3, 2), torch.rand(3), torch.rand(3))
    assert connected(t, "output.0") == {"x", "a", "b"}
    assert connected(t, "output.1") == {"x", "a"}
    t.check(inputs=True)


def test_overwritten_bytes_are_no_dependence() -> None:
    def f(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y[0] = a
        y[1:] = b
        out = torch.empty(())
        torch.add(a, 1, out=out)
        return y, out

    t = tv.trace(f, torch.rand(3), torch.rand(()), torch.rand(2))
    assert connected(t, "output.0") == {"a", "b"}
    assert connected(t, "output.1") == {"a"}
    t.check(inputs=True)


def test_a_reader_through_a_diagonal_takes_only_what_lies_on_it() -> None:
    def f(x: Tensor, a: Tensor) -> Tensor:
        x[:3].fill_(a)
        return x.diagonal(1)  # two elements, both in the rows just written

    t = tv.trace(f, torch.rand(4, 3), torch.rand(()))
    assert connected(t, "output") == {"a"}


# ---------------------------------------------------------------- modules


def test_shared_modules_and_call_numbers() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(2, 2)
            self.alias = self.body
            self.other = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.alias(self.other(self.body(x)))

    t = tv.trace(Twice(), torch.ones(1, 2))
    calls = [(scope.path, scope.call) for scope in t.graph.scopes if scope.kind == "module"]
    assert calls == [("", 0), ("body", 0), ("other", 0), ("body", 1)]
    assert ops(t, path="body") == ["t", "addmm"] * 2
    weights = {v.index for v in t.graph.values if v.name == "body.weight"}
    assert len(weights) == 1, "one tensor is one value"


def test_a_module_called_many_times() -> None:
    cell = nn.Linear(2, 2)
    t = tv.trace(lambda x: [x := cell(x) for _ in range(50)], torch.ones(1, 2))
    scopes = [scope for scope in t.graph.scopes if scope.type == "Linear"]
    assert [scope.call for scope in scopes] == list(range(50))
    assert len({scope.path for scope in scopes}) == 1


def test_nesting_follows_calls_not_registration() -> None:
    class Borrows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return self.b[0](self.a(x))

    t = tv.trace(Borrows(), torch.ones(2))
    parents = {scope.path: scope.parent.path for scope in t.graph.scopes if scope.parent and scope.path}
    assert parents == {"a": "", "a.0": "a", "b.0": ""}
    assert [(node.path, node.name) for node in t.graph.nodes] == [("a.0", "relu"), ("b.0", "tanh")]


def test_calls_outside_forward_have_their_modules() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.Linear(2, 3), nn.Linear(3, 1)

        def encode(self, x: Tensor) -> Tensor:
            return self.encoder(x) + self.head.bias

    model = Model()
    t = tv.trace(model.encode, torch.ones(1, 2))
    assert [node.name for node in t.graph.find(op="addmm")] == ["addmm"]
    with tv.record(model) as t:
        model.head(model.encode(torch.ones(1, 2)))
    assert ops(t, path="encoder") == ["t", "addmm"] and ops(t, path="head") == ["t", "addmm"]
    assert {v.name for v in t.graph.values if v.role == "parameter"} >= {"encoder.weight", "head.bias"}


def test_a_step_that_raises_ends_its_scope() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def closure() -> Tensor:
        raise ValueError("no loss today")

    def f(x: Tensor) -> Tensor:
        try:
            optimizer.step(closure)
        except ValueError:
            pass
        return x * 2

    t = tv.trace(f, torch.ones(2))
    assert [(node.name, node.phase, node.scope.kind) for node in t.graph.nodes] == [("mul", "forward", "run")]


def test_a_module_that_raises_ends_its_scope() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))

    def f(x: Tensor) -> Tensor:
        try:
            model(x)
        except RuntimeError:
            pass
        return x * 2

    t = tv.trace(f, torch.ones(1, 2))
    assert [(node.name, node.scope.kind) for node in t.graph.nodes][-1] == ("mul", "run")


def test_calls_from_threads_are_recorded() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            results: list[Any] = [None] * 3

            def work(place: int) -> None:
                results[place] = self.parts[place](x)

            threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return torch.stack(results).sum(0)

    with torch.no_grad():
        t = tv.trace(Parallel(), torch.rand(1, 2))
    for place in range(3):
        assert ops(t, path=f"parts.{place}") == ["t", "addmm"]
    assert connected(t, "output") == {"x"} | {f"parts.{i}.{n}" for i in range(3) for n in ("weight", "bias")}
    t.check(inputs=True)


# ---------------------------------------------------------------- source lines


def test_the_users_source_line_exactly() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2  # line 1
        z = torch.nn.functional.softmax(
            y,  # a call over several lines is at the line of the call
            dim=0,
        )
        return (
            z + 1  # line 8: Python says that the operator stands where its expression starts
        )

    first = inspect.getsourcelines(f)[1]
    t = tv.trace(f, torch.ones(3))
    sites = {node.name: node.site for node in t.graph.nodes}
    assert all(site is not None and site.file == __file__ for site in sites.values())
    assert {name: site.line - first for name, site in sites.items() if site} == {
        "mul": 1,
        "_softmax": 2,
        "add": 7,
    }
    assert sites["mul"].function.endswith("test_the_users_source_line_exactly.<locals>.f")


def test_what_starts_our_command_is_no_line_of_the_users(tmp_path: Path) -> None:
    """The program ``torch-vis`` that pip writes is what is left on the stack of a model of torch's own modules."""
    launcher = tmp_path / "torch-vis"
    launcher.write_text(
        f"import sys\nsys.path[:] = {sys.path!r}\nfrom torch_vis.cli.main import main\nsys.exit(main())\n"
    )
    (tmp_path / "net.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(8, 2)\n")
    words = ["trace", "net.py:make", "--input", "2x8", "-o", "net.tvz"]
    subprocess.run([sys.executable, str(launcher), *words], cwd=tmp_path, check=True, capture_output=True)
    t = tv.load(tmp_path / "net.tvz")
    assert [node.site for node in t.graph.nodes] == [None] * len(t.graph)


def test_library_modules_are_at_the_line_that_called_them() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def f(x: Tensor) -> Tensor:
        return model(x)

    line = inspect.getsourcelines(f)[1] + 1
    t = tv.trace(f, torch.ones(1, 2))
    assert {(node.site.file, node.site.line) for node in t.graph.nodes if node.site} == {(__file__, line)}


# ---------------------------------------------------------------- roles


def test_roles_of_every_value() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    shift = torch.ones(1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) + shift).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step(torch.rand(4, 3))
    t = tv.trace(step, torch.rand(4, 3))
    graph = t.graph
    roles = collections.defaultdict(set)
    for value in graph.values:
        roles[value.role].add(value.name)
    assert roles["input"] == {"x"}
    assert roles["parameter"] == {name for name, _ in model.named_parameters()}
    assert roles["buffer"] == {name for name, _ in model.named_buffers()}
    assert roles["optimizer_state"] == {f"SGD.{name}.momentum_buffer" for name, _ in model.named_parameters()}
    assert {f"{name}.grad" for name, _ in model.named_parameters()} <= roles["gradient"]
    assert roles["constant"] == {None} and roles["activation"] == {None}
    assert len([value for value in graph.inputs if value.role == "constant"]) == 1
    outputs = [row.value for row in graph.outcomes if row.kind == "output"]
    assert [value.role for value in outputs] == ["output"]
    made_in_backward = {v.role for node in graph.find(phase="backward") for v in node.outputs}
    assert made_in_backward == {"gradient"}
    made_in_forward = {v.role for node in graph.find(phase="forward") for v in node.outputs}
    assert made_in_forward == {"activation", "buffer", "output"}
    assert {node.phase for node in graph.nodes} == {"forward", "backward", "optimizer"}
    t.check()


def test_every_node_has_its_module_or_the_run() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    t = tv.trace(model, torch.rand(2, 3))
    assert [(scope.kind, scope.path) for scope in t.graph.scopes] == [
        ("run", ""),
        ("module", ""),
        ("module", "0"),
        ("module", "1"),
    ]


def test_nothing_is_recorded_outside() -> None:
    x = torch.ones(2)
    with tv.record() as t:
        y = x + 1
    y * 2
    assert ops(t) == ["add"]
