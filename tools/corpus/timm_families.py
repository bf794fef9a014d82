"""The smallest member of every timm family, at the smallest image it takes."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from tests.zoo import seed_everything
from tools.corpus.subject import Maker, Subject

# Words that timm uses for sizes, smallest first; a name without any ranks in the middle.
_SIZES = re.findall(
    "[a-z]+", "test atto femto pico xxxs xxt xxs ti xt xs t nano tiny mini lite s micro small m medium"
)
_LARGER = re.findall("[a-z0-9]+", "base b large l l2 xl xlarge xxl huge h giant g so gigantic enormous")
_TRIES: tuple[tuple[dict[str, Any], int | None], ...] = (
    ({"img_size": 64, "depth": 2}, 64),
    ({"img_size": 56, "depth": 2}, 56),
    ({"depth": 2}, 64),
    ({"img_size": 64, "depths": (2, 2, 2, 2)}, 64),
    ({"depths": (2, 2, 2, 2)}, 64),
    ({"layers": (1, 1, 1, 1)}, 64),
    ({"stem_size": 96, "num_features": 384}, 64),
    ({"img_size": 64}, 64),
    ({}, 64),
    ({}, 96),
    ({"img_size": 128}, 128),
    ({"img_size": 192}, 192),
    ({}, 128),
    ({}, None),
)  # model options and the side of the image; None is the side the model asks for


def prepare() -> None:
    """Import timm, which registers its models."""
    import timm  # noqa: F401


def names() -> list[str]:
    """One case a family: the module that defines it and the letters its names begin with."""
    return sorted(_smallest_members().values())


def makers(name: str) -> list[Maker]:
    """The model with the first options and image side that it runs with."""
    failure: Exception | None = None
    for options, side in _TRIES:
        try:
            seed_everything()
            subject = _subject(name, options, side)
            with torch.no_grad():
                subject.call(*subject.args)
        except Exception as error:  # any failure means: try the next size
            failure = failure if isinstance(error, TypeError) and failure else error
        else:
            return [lambda options=options, side=side: _subject(name, options, side)]
    raise failure or RuntimeError("no size was tried")


def _subject(name: str, options: dict[str, Any], side: int | None) -> Subject:
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=10, **options)
    channels, *sides = model.default_cfg.get("input_size", (3, 224, 224))
    return Subject(model.eval(), (torch.randn(2, channels, *((side, side) if side else sides)),))


def _smallest_members() -> dict[tuple[str, str], str]:
    import timm
    from timm.models._registry import _model_to_module

    chosen: dict[tuple[str, str], str] = {}
    for name in timm.list_models():
        family = _model_to_module[name], re.match("[a-z]+", name)[0]  # type: ignore[index]
        if family not in chosen or _size(name) < _size(chosen[family]):
            chosen[family] = name
    return chosen


def _size(name: str) -> tuple[float, list[float], int]:
    """A key that sorts the members of a family roughly from small to large."""
    words = re.split("[_.]", name)
    ranks = [_SIZES.index(word) - len(_SIZES) for word in words if word in _SIZES]
    ranks += [1 + _LARGER.index(word) for word in words if word in _LARGER]
    amounts = re.findall(r"(?<![a-z0-9])([0-9]+)(m|b)(?![a-z0-9])", name)
    numbers = [float(digits) for digits in re.findall("[0-9]+", name)]
    weights = [float(amount) * (1000 if unit == "b" else 1) for amount, unit in amounts]
    return min(ranks, default=0) + sum(weights), numbers, len(name)
