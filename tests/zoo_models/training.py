"""Cases about training: statistics, optimizers with state, accumulation, parametrizations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.zoo_models.registry import Built, case


@case("adversarial", "mutates")
def batch_norm_train() -> Built:
    """BatchNorm in train mode writes its running statistics with no annotation and no version bump."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)).train()
    return model, (torch.randn(2, 3, 6, 6),), {}


@case("adversarial", "mutates")
def batch_norm_twice() -> Built:
    """One BatchNorm runs twice, so the second call reads the statistics the first wrote."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x) + self.norm(x * 2)
            return y + self.norm.running_mean

    return Twice().train(), (torch.randn(4, 3),), {}


@case("adversarial", "mutates")
def batch_norm_functional() -> Built:
    """F.batch_norm writes statistics that are plain arguments, then they are read."""

    def f(x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.nn.functional.batch_norm(x, mean, var, training=True, momentum=0.3)
        return y, mean * 2 + var

    return f, (torch.randn(4, 3, requires_grad=True), torch.zeros(3), torch.ones(3)), {}


@case("adversarial", "rng")
def dropout_train() -> Built:
    """Dropout in train mode draws from the global generator in forward."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Dropout1d(0.3), nn.AlphaDropout(0.2)).train()
    return model, (torch.randn(4, 8),), {}


def _step(optimizer_of: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Built:
    """A training step whose optimizer already holds state from one earlier step."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = optimizer_of(list(model.parameters()))

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, y = torch.randn(6, 4), torch.randn(6, 1)
    step(x, y)
    return step, (x, y), {}


@case("adversarial", "optimizer", "mutates", backward=False)
def sgd_momentum_step() -> Built:
    """A step of SGD with momentum, one parameter at a time."""
    return _step(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, foreach=False))


@case("adversarial", "optimizer", "mutates", backward=False)
def adamw_foreach_step() -> Built:
    """A step of AdamW with foreach operations, which write lists of tensors."""
    return _step(lambda params: torch.optim.AdamW(params, lr=0.01, foreach=True))


@case("adversarial", "optimizer", "mutates", backward=False)
def adam_fused_step() -> Built:
    """A step of fused Adam, one operation that writes every parameter and every state."""
    return _step(lambda params: torch.optim.Adam(params, lr=0.01, fused=True))


@case("adversarial", "optimizer", "mutates", backward=False)
def adam_amsgrad_step() -> Built:
    """A step of Adam with amsgrad and weight decay, whose step counters are tensors read by `.item()`."""
    return _step(
        lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True, weight_decay=0.1, foreach=False)
    )


@case("adversarial", "optimizer", "mutates", backward=False)
def lbfgs_step() -> Built:
    """A step of LBFGS, which runs the model several times inside the optimizer."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return step, (torch.randn(5, 3), torch.randn(5, 1)), {}


@case("adversarial", "optimizer", "mutates", backward=False)
def first_step_creates_state() -> Built:
    """The first step of an optimizer makes its state and the first backward makes every `.grad`."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    return step, (torch.randn(3, 4),), {}


@case("adversarial", "mutates")
def gradient_accumulation() -> Built:
    """Backward adds into `.grad` tensors that an earlier backward left."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    model(torch.randn(3, 4)).sum().backward()
    return model, (torch.randn(3, 4),), {}


@case("adversarial", "mutates", backward=False)
def accumulation_in_callable() -> Built:
    """A callable runs two micro-batches backward into the same `.grad`."""
    model = nn.Linear(4, 1)

    def step(batches: list[Tensor]) -> list[Tensor]:
        model.zero_grad(set_to_none=True)
        for batch in batches:
            (model(batch).square().mean() / len(batches)).backward()
        return [param.grad.clone() for param in model.parameters()]

    return step, ([torch.randn(2, 4), torch.randn(2, 4)],), {}


@case("adversarial", "parametrization")
def weight_norm() -> Built:
    """A weight is computed from two parameters each time it is read."""
    return parametrizations.weight_norm(nn.Linear(4, 3)), (torch.randn(2, 4),), {}


@case("adversarial", "parametrization", "mutates")
def spectral_norm() -> Built:
    """Spectral norm in train mode runs a power iteration that writes its buffers in place."""
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.ReLU()).train()
    return model, (torch.randn(2, 4),), {}


@case("adversarial", "mutates", backward=False)
def exponential_moving_average() -> Built:
    """A shadow copy of the weights follows a training step with in-place lerp."""
    model, shadow = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(shadow.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
        return loss.detach(), shadow(x).detach()

    return step, (torch.randn(4, 3),), {}
