"""Cases about autograd: custom functions, checkpointing, double backward, hooks, modes and transforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.zoo_models.registry import Built, case


class ScaledTanh(torch.autograd.Function):
    """tanh with a scale, its backward written by hand from saved tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        out = torch.tanh(x) * scale
        ctx.save_for_backward(x, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        tanh = torch.tanh(x)
        return grad * scale * (1 - tanh * tanh), (grad * tanh).sum_to_size(scale.shape)


class DirtyDouble(torch.autograd.Function):
    """Doubles its argument in place and says so with mark_dirty."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@case("adversarial", "function")
def custom_function() -> Built:
    """A custom autograd.Function with saved tensors runs inside a module, called twice."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            x = ScaledTanh.apply(self.linear(x), self.scale)
            return ScaledTanh.apply(x, self.scale * 2)

    return Model(), (torch.randn(2, 4),), {}


@case("adversarial", "function", "inplace")
def custom_function_dirty() -> Built:
    """A custom autograd.Function changes its argument in place."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 3
        z = DirtyDouble.apply(y)
        return z + 1, y

    return f, (torch.randn(4, requires_grad=True),), {}


@case("adversarial", "checkpoint", "rng")
def checkpoint_reentrant() -> Built:
    """Reentrant checkpointing runs forward again inside backward, with dropout replayed."""
    return _checkpointed(use_reentrant=True), (torch.randn(4, 8, requires_grad=True),), {}


@case("adversarial", "checkpoint", "rng")
def checkpoint_nonreentrant() -> Built:
    """Non-reentrant checkpointing recomputes saved tensors through hooks, with dropout replayed."""
    return _checkpointed(use_reentrant=False), (torch.randn(4, 8, requires_grad=True),), {}


def _checkpointed(*, use_reentrant: bool) -> nn.Module:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 8))
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.block, x, use_reentrant=use_reentrant)
            return self.head(checkpoint(self.block, x, use_reentrant=use_reentrant))

    return Checkpointed().train()


@case("adversarial", "autocast")
def autocast_bf16() -> Built:
    """Autocast inserts casts and caches the cast weights while gradients flow in float32."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = self.a(self.a(x).relu())
                with torch.autocast("cpu", enabled=False):
                    hidden = hidden.float().softmax(-1)
                return self.b(hidden)

    return Mixed(), (torch.randn(3, 4),), {}


@case("adversarial", "mode", backward=False)
def under_inference_mode() -> Built:
    """Forward runs in inference_mode, whose tensors have no version counter, and writes one in place."""

    class Inference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.inference_mode():
                y = self.linear(x)
                y[0].add_(1)
            return y.clone() * 2

    return Inference(), (torch.randn(2, 4),), {}


@case("adversarial", "mode")
def partly_no_grad() -> Built:
    """Half of forward runs under no_grad and comes back into the differentiable half."""

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.live = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                target = self.frozen(x)
                with torch.enable_grad():
                    gate = self.live(x).sigmoid()
            return gate * target

    return Partly(), (torch.randn(2, 4),), {}


@case("adversarial", "double-backward", backward=False)
def double_backward() -> Built:
    """A gradient penalty differentiates a gradient with create_graph inside the callable."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def f(x: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        penalty = (first.norm(dim=1) - 1).square().mean()
        return (penalty.detach(), *torch.autograd.grad(penalty, list(model.parameters())[:3]))

    return f, (torch.randn(4, 3),), {}


@case("adversarial", "double-backward")
def gradient_in_forward() -> Built:
    """Forward itself returns a force, the negative gradient of an energy, and can be differentiated again."""

    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 1))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            energy = self.net(x).sum()
            (gradient,) = torch.autograd.grad(energy, x, create_graph=True)
            return energy, -gradient

    return Energy(), (torch.randn(2, 3, requires_grad=True),), {}


@case("adversarial", "hooks")
def hooks_change_values() -> Built:
    """Forward pre-hooks, forward hooks, tensor hooks and full backward hooks all replace what passes them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda module, args, out: out + 1)
    model[2].register_full_backward_hook(
        lambda module, gin, gout: tuple(None if g is None else g * 3 for g in gin)
    )
    model[0].weight.register_hook(lambda grad: grad.clamp(-1, 1))
    model[2].register_full_backward_pre_hook(lambda module, gout: (gout[0] + 1,))
    return model, (torch.randn(2, 4),), {}


@case("adversarial", "hooks", backward=False)
def hooks_collect_and_remove() -> Built:
    """A callable adds hooks, keeps what they saw, and removes them again."""
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))

    def f(x: Tensor) -> list[Tensor]:
        seen: list[Tensor] = []
        handles = [
            layer.register_forward_hook(lambda m, a, out: seen.append(out.detach())) for layer in model
        ]
        try:
            model(x)
        finally:
            for handle in handles:
                handle.remove()
        return seen

    return f, (torch.randn(2, 4),), {}


@case("adversarial", "func", backward=False)
def func_grad() -> Built:
    """torch.func.grad and functional_call differentiate a module with respect to a dict of parameters."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    params = {name: value.detach() for name, value in model.named_parameters()}

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, p, (x,)).square().mean()

    return torch.func.grad_and_value(loss), (params, torch.randn(5, 3)), {}


@case("adversarial", "func", backward=False)
def func_vmap() -> Built:
    """vmap of a gradient gives one gradient a sample, with batched tensors that hide their batch."""
    weight = torch.randn(3)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return ((x * weight).sum() - y).square()

    return torch.func.vmap(torch.func.grad(loss)), (torch.randn(4, 3), torch.randn(4)), {}


@case("adversarial", "func", "rng", backward=False)
def func_vmap_random() -> Built:
    """vmap with different randomness for every sample."""

    def f(x: Tensor) -> Tensor:
        return torch.func.vmap(lambda row: row + torch.randn(3), randomness="different")(x)

    return f, (torch.randn(4, 3),), {}


@case("adversarial", "func", backward=False)
def func_jvp() -> Built:
    """Forward-mode derivatives: jvp, jacfwd and hessian over dual tensors."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        out, tangent = torch.func.jvp(lambda t: t.sin() * t, (x,), (torch.ones_like(x),))
        return (
            out,
            tangent,
            torch.func.jacfwd(lambda t: t.exp())(x),
            torch.func.hessian(lambda t: (t**3).sum())(x),
        )

    return f, (torch.randn(3),), {}


@case("adversarial", "func")
def func_functional_call() -> Built:
    """A stacked ensemble runs through vmap over functional_call and is differentiated outside."""
    models = [nn.Linear(3, 2) for _ in range(4)]
    params, _ = torch.func.stack_module_state(models)

    def f(stacked: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.vmap(lambda p, t: torch.func.functional_call(models[0], p, (t,)), (0, None))(
            stacked, x
        )

    return f, (params, torch.randn(5, 3)), {}


@case("adversarial", "view", "inplace")
def in_place_on_view_with_grad() -> Built:
    """Writes into a view of a leaf's copy rewrite the history of the whole."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * 1
        y[1:3] *= w
        y[0].copy_(w[0])
        return y.square().sum()

    return f, (torch.randn(4, 2, requires_grad=True), torch.randn(2, 2, requires_grad=True)), {}
