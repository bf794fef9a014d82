"""Several modules of one recording are called as the program calls them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv


def pair() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Sequential(nn.Linear(3, 1), nn.ReLU())


def outermost(trace: Any) -> list[str]:
    return list(dict.fromkeys(path.split(".")[0] for path in (n.path for n in trace.graph.nodes) if path))


def test_modules_are_called_by_their_variables() -> None:
    G, D = pair()
    with tv.record(G, D) as t:
        D(G(torch.ones(1, 2)))
    assert outermost(t) == ["G", "D"]
    assert t.meta["model"] == "G, D"
    assert "G.0.weight" in {value.name for value in t.graph.values}


def test_modules_are_called_as_the_caller_says() -> None:
    one, two = pair()
    with tv.record(
        one,
        critic=two,
    ) as t:
        two(one(torch.ones(1, 2)))
    assert outermost(t) == ["one", "critic"]


def test_an_attribute_is_called_by_its_last_name() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.generator, self.critic = pair()

        def step(self) -> Any:
            with tv.record(self.generator, self.critic) as t:
                self.critic(self.generator(torch.ones(1, 2)))
            return t

        def run(self, x: torch.Tensor) -> torch.Tensor:
            return self.critic(self.generator(x))

    assert outermost(Trainer().step()) == ["generator", "critic"]
    assert outermost(tv.trace(Trainer().run, torch.ones(1, 2))) == ["generator", "critic"]


def test_what_has_no_variable_keeps_the_name_of_its_class() -> None:
    parts = pair()
    with tv.record(parts[0], parts[1]) as t:
        parts[1](parts[0](torch.ones(1, 2)))
    assert outermost(t) == ["sequential0", "sequential1"]


def test_a_closure_gives_its_modules_their_names() -> None:
    G, D = pair()

    def step(x: torch.Tensor) -> torch.Tensor:
        return D(G(x))

    assert outermost(tv.trace(step, torch.ones(1, 2))) == ["G", "D"]


def test_a_name_for_something_else_is_refused() -> None:
    with pytest.raises(tv.errors.NotTraceable, match="takes modules"):
        tv.record(model=3)  # type: ignore[arg-type]


def test_names_keep_nothing_alive() -> None:
    import gc
    import weakref

    G, D = pair()

    def inner() -> Any:
        held = torch.ones(1000)
        gone = weakref.ref(held)
        with tv.record(G, D):
            del held
            gc.collect()
            return gone()

    assert inner() is None
