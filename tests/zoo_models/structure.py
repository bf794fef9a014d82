"""Cases about the shape of the program: containers, sharing, recursion, depth, width, threads, odd sizes."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo_models.registry import Built, case

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Record:
    """A dataclass of tensors that torch's pytree does not know."""

    hidden: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)
    label: str = "record"


@case("adversarial", "containers")
def plain_containers() -> Built:
    """Dict, list, tuple and None go in nested and come out nested another way."""

    def f(batch: dict[str, Any], *, more: list[Tensor]) -> dict[str, Any]:
        total = batch["a"] + batch["deep"][0][1]["x"]
        return {"total": total, "list": [more[0] * 2, (more[1], None)], 3: "text", "flag": True}

    batch = {
        "a": torch.randn(3, requires_grad=True),
        "deep": [(None, {"x": torch.randn(3)})],
        "name": "batch",
    }
    return f, (batch,), {"more": [torch.randn(2, requires_grad=True), torch.randn(1)]}


@case("adversarial", "containers")
def namedtuple_and_ordered() -> Built:
    """A namedtuple goes in, and a namedtuple inside an OrderedDict comes out."""

    class Swap(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, pair: Pair) -> OrderedDict[str, Any]:
            return OrderedDict(pair=Pair(self.linear(pair.right), pair.left), same=pair.left)

    return Swap(), (Pair(torch.randn(2, 3), torch.randn(2, 3)),), {}


@case("adversarial", "containers")
def dataclass_in_and_out() -> Built:
    """A dataclass passes between modules, and its tensors sit where no pytree looks."""

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, record: Record) -> Record:
            hidden = self.linear(record.hidden)
            return Record(hidden, {**record.extras, f"n{len(record.extras)}": hidden.sum()})

    return nn.Sequential(Stage(), Stage()), (Record(torch.randn(2, 3)),), {}


@case("adversarial", "containers")
def model_output() -> Built:
    """A transformers ModelOutput with None fields and a tuple field is returned."""
    from transformers.modeling_outputs import BaseModelOutput

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

        def forward(self, x: Tensor) -> BaseModelOutput:
            states = (x,)
            for layer in self.layers:
                states += (layer(states[-1]).relu(),)
            return BaseModelOutput(last_hidden_state=states[-1], hidden_states=states)

    return Encoder(), (torch.randn(2, 3),), {}


@case("adversarial", "containers")
def same_tensor_twice() -> Built:
    """One tensor arrives as two arguments and leaves as two outputs, next to a view of itself."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z = x * y
        return z, z, z[0], x

    x = torch.randn(3, requires_grad=True)
    return f, (x, x), {}


@case("adversarial", "containers", backward=False)
def aliased_inputs() -> Built:
    """Two arguments are overlapping views of one storage, and a write through one changes the other."""

    def f(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        left.add_(1)
        return right * 2, left.sum()

    base = torch.randn(6)
    return f, (base[:4], base[2:]), {}


@case("adversarial", "modules")
def shared_module() -> Built:
    """One submodule is registered under two names and called three times."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.first(self.act(self.second(self.act(self.first(x)))))

    return Shared(), (torch.randn(2, 4),), {}


@case("adversarial", "modules")
def tied_weights() -> Built:
    """An embedding and the output layer share one parameter."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embed(ids))

    return Tied(), (torch.randint(0, 11, (2, 5)),), {}


@case("adversarial", "modules")
def recursive_module() -> Built:
    """A module calls itself with a smaller depth, so its scope nests in itself."""

    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, depth: int) -> Tensor:
            if depth == 0:
                return self.linear(x)
            left, right = x.chunk(2, dim=0) if x.shape[0] > 1 else (x, x)
            return torch.cat([self(left, depth - 1), self(right, depth - 1)]).tanh()

    return Tree(), (torch.randn(4, 4), 3), {}


@case("adversarial", "modules", "deep")
def deep_nesting(*, depth: int = 150) -> Built:
    """Modules hold one another many levels down."""

    class Shell(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + 1

    model: nn.Module = nn.Linear(2, 2)
    for _ in range(depth):
        model = Shell(model)
    return model, (torch.randn(1, 2),), {}


@case("adversarial", "modules")
def called_outside_forward() -> Built:
    """Submodules run through `.forward`, through a helper method and through bound methods in a list."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def encode(self, x: Tensor) -> Tensor:
            return self.linear(x).relu()

        def forward(self, x: Tensor) -> Tensor:
            return self.encode(x) + 1

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sub = Inner()
            self.steps = [self.sub.encode, self.sub.linear.forward]

        def helper(self, x: Tensor) -> Tensor:
            return self.sub(x) * 2

        def forward(self, x: Tensor) -> Tensor:
            x = self.sub.linear.forward(x)
            x = self.sub.forward(x)
            for step in self.steps:
                x = step(x)
            return self.helper(x)

    return Outer(), (torch.randn(2, 4),), {}


@case("adversarial", "modules")
def method_as_callable() -> Built:
    """The traced callable is a bound method of a submodule, not a module."""
    model = nn.Sequential(OrderedDict(a=nn.Linear(3, 3), b=nn.ReLU()))
    return model.a.forward, (torch.randn(2, 3, requires_grad=True),), {}


@case("adversarial", "threads", backward=False)
def called_from_threads() -> Built:
    """A submodule runs in a thread pool, whose threads a thread-local mode never sees."""

    class Threaded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = x.tanh()
            with ThreadPoolExecutor(max_workers=2) as pool:
                parts = list(pool.map(lambda head: head(x), self.heads))
            return torch.cat(parts, dim=1)

    return Threaded(), (torch.randn(2, 4),), {}


@case("adversarial", "deep")
def id_reuse_loop(*, steps: int = 200) -> Built:
    """Temporaries die at once, so nearly every `id()` and data pointer is used again."""

    def f(x: Tensor) -> Tensor:
        for _ in range(steps):
            x = (x * 1.01) + (x.sin() - x.cos()) * 0.01
        return x

    return f, (torch.randn(8, requires_grad=True),), {}


@case("adversarial", "deep")
def long_chain(*, steps: int = 5000) -> Built:
    """A chain of thousands of operations, deep enough to break recursion over the graph."""

    def f(x: Tensor) -> Tensor:
        for _ in range(steps):
            x = x + 1
        return x

    return f, (torch.zeros(2, requires_grad=True),), {}


@case("adversarial", "wide")
def wide_fan_out(*, width: int = 300) -> Built:
    """One value has hundreds of readers, and one concatenation has hundreds of inputs."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleList(nn.Linear(4, 1) for _ in range(width))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([branch(x) for branch in self.branches], dim=1)

    return Wide(), (torch.randn(2, 4),), {}


@case("adversarial", "degenerate")
def identity() -> Built:
    """A model of no operations returns its own argument."""
    return nn.Identity(), (torch.randn(3, requires_grad=True),), {}


@case("adversarial", "degenerate", backward=False)
def empty_model() -> Built:
    """A model takes nothing, does nothing and returns None."""

    class Empty(nn.Module):
        def forward(self) -> None:
            return None

    return Empty(), (), {}


@case("adversarial", "degenerate", backward=False)
def constants_only() -> Built:
    """The output depends on no input, only on factory functions and a captured constant."""
    captured = torch.arange(4.0)

    def f(x: Tensor) -> Tensor:
        return torch.ones(4) + captured * torch.tensor([1.0, 2.0, 3.0, 4.0])

    return f, (torch.randn(2),), {}


@case("adversarial", "degenerate")
def dead_code() -> Built:
    """Half of the operations lead to no output, and one of them is an in-place write."""

    def f(x: Tensor) -> Tensor:
        unused = x.exp().sum()
        unused.detach().add_(1)
        return x * 2

    return f, (torch.randn(4, requires_grad=True),), {}


@case("adversarial", "degenerate")
def zero_size() -> Built:
    """Tensors without elements go through matmul, cat, reductions and in-place writes."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x @ torch.ones(3, 0)
        z = torch.cat([x, torch.ones(2, 3)])
        empty = x.clone().add_(1)
        return y, z, empty, x.sum(), torch.empty(0).to(torch.float64), z[:0] * 2

    return f, (torch.randn(0, 3, requires_grad=True),), {}


@case("adversarial", "degenerate")
def zero_dim() -> Built:
    """Scalars as tensors: zero-dimensional results, wrapped numbers and type promotion."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            x * y,
            x + 2,
            torch.tensor(3) * x,
            (x > y).long() + 1,
            x.unsqueeze(0)[0],
            y ** torch.tensor(2.0),
        )

    return f, (torch.tensor(1.5, requires_grad=True), torch.tensor(2.0, dtype=torch.float64)), {}


@case("adversarial", "degenerate", backward=False)
def scalar_kinds() -> Built:
    """The literals 1, 1.0, True and 1j give different dtypes, so a template must keep which was which."""

    def f(x: Tensor) -> list[Tensor]:
        results = [torch.add(x, literal) for literal in (1, 1.0, 1j)]
        results += [x * True, x + False, torch.add(x, x, alpha=2), x - float("inf"), x.clamp(min=-0.0)]
        return [*results, torch.full((2,), True), torch.full((2,), 1), torch.full((2,), 1.0)]

    return f, (torch.arange(4),), {}
