"""Cases about code that leaves eager Python: torch.compile, TorchScript and higher-order operators."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.zoo_models.registry import Built, case

HAS_COMPILER = any(shutil.which(name) for name in ("g++", "clang++", "c++"))


class Block(nn.Module):
    """A small differentiable block with a buffer that forward counts in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return torch.nn.functional.gelu(self.linear(x)) + x


class Around(nn.Module):
    """Eager work before and after an inner module."""

    def __init__(self, inner: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = inner
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x * 2).relu())


def _compiled(backend: str) -> Built:
    torch._dynamo.reset()
    return Around(torch.compile(Block(), backend=backend)), (torch.randn(3, 4),), {}


@case("adversarial", "compile")
def compile_eager_backend() -> Built:
    """A submodule under torch.compile with the eager backend."""
    return _compiled("eager")


@case("adversarial", "compile")
def compile_aot_eager_backend() -> Built:
    """A submodule under torch.compile with the aot_eager backend, whose backward is compiled too."""
    return _compiled("aot_eager")


if HAS_COMPILER:

    @case("adversarial", "compile", "slow")
    def compile_inductor_backend() -> Built:
        """A submodule under torch.compile with inductor, which runs generated C++ no dispatcher sees."""
        return _compiled("inductor")


@case("adversarial", "compile")
def compile_with_graph_break() -> Built:
    """A compiled function breaks its graph half-way on data-dependent control flow."""
    torch._dynamo.reset()

    @torch.compile(backend="eager")
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        if y.sum() > 0:
            return y * 2
        return y - 1

    return f, (torch.randn(4, requires_grad=True),), {}


@case("adversarial", "compile", backward=False)
def compile_whole_module() -> Built:
    """The traced model is itself an OptimizedModule."""
    torch._dynamo.reset()
    return torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager"), (torch.randn(2, 4),), {}


@case("adversarial", "torchscript")
def script_submodule() -> Built:
    """A scripted submodule with a loop and a branch runs in TorchScript's own interpreter."""

    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            for i in range(3):
                if i % 2 == 0:
                    x = self.linear(x)
                else:
                    x = x + i
            return x

    return Around(torch.jit.script(Looped())), (torch.randn(3, 4),), {}


@case("adversarial", "torchscript")
def traced_submodule() -> Built:
    """A submodule recorded by torch.jit.trace."""
    inner = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(3, 4))
    return Around(inner), (torch.randn(3, 4),), {}


@case("adversarial", "higher-order")
def cond_operator() -> Built:
    """torch.cond takes one of two branches by a tensor predicate."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.linear(x)
            return torch.cond(hidden.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos() * 2, (hidden,))

    torch._dynamo.reset()
    return Branches(), (torch.randn(2, 4),), {}


@case("adversarial", "higher-order", backward=False)
def while_loop_operator() -> Built:
    """while_loop carries a counter and a tensor until a tensor predicate is false."""
    from torch._higher_order_ops.while_loop import while_loop

    torch._dynamo.reset()

    def f(x: Tensor) -> tuple[Tensor, ...]:
        start = torch.zeros((), dtype=torch.long)
        return while_loop(lambda i, t: i < 4, lambda i, t: (i + 1, t * 1.5 + i), (start, x.sin()))

    return f, (torch.randn(3),), {}


@case("adversarial", "higher-order", backward=False)
def scan_operator() -> Built:
    """scan folds a recurrent step over the leading dimension."""
    from torch._higher_order_ops.scan import scan

    torch._dynamo.reset()

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return scan(lambda carry, row: (carry * 0.5 + row, carry.clone() + row), torch.zeros(3), x)

    return f, (torch.randn(5, 3),), {}


@case("adversarial", "higher-order", "attention", backward=False)
def flex_attention_eager() -> Built:
    """flex_attention without compile runs its score modification under vmap."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    bias = torch.randn(2)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 16, 16, device="cpu", BLOCK_SIZE=16)
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * bias[h] + (i - j), block_mask=mask)

    return f, tuple(torch.randn(1, 2, 16, 8) for _ in range(3)), {}


@case("adversarial", "higher-order")
def custom_operator() -> Built:
    """An operator defined by torch.library.custom_op with its own backward and a declared mutation."""
    _define_custom_operators()

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.ops.torch_vis_zoo.scaled_sin(x, 2.0)
        buffer = torch.zeros(3)
        torch.ops.torch_vis_zoo.add_into(y.detach(), buffer)
        return y, buffer * 2

    return f, (torch.randn(3, requires_grad=True),), {}


def _define_custom_operators() -> None:
    if hasattr(torch.ops.torch_vis_zoo, "scaled_sin"):
        return

    @torch.library.custom_op("torch_vis_zoo::scaled_sin", mutates_args=())
    def scaled_sin(x: Tensor, scale: float) -> Tensor:
        return x.sin() * scale

    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.x.cos() * ctx.scale, None  # type: ignore[attr-defined]

    def setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.x, ctx.scale = inputs  # type: ignore[attr-defined]

    scaled_sin.register_autograd(backward, setup_context=setup)

    @torch.library.custom_op("torch_vis_zoo::add_into", mutates_args=("target",))
    def add_into(x: Tensor, target: Tensor) -> None:
        target.add_(x)
