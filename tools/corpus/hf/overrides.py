"""What the general rules cannot guess about single architectures."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Override(NamedTuple):
    """Corrections for one architecture.

    `config` is assigned after shrinking (a dotted name reaches into a part); `create` gives what the
    configuration class must be called with; `inputs` makes the arguments from the model; `prepare` runs on the
    built model; `model` names the class as `module:Class` under transformers.models.
    """

    config: dict[str, Any] = {}
    create: Callable[[], dict[str, Any]] | None = None
    inputs: Callable[[Any], dict[str, Any]] | None = None
    prepare: Callable[[Any], Any] | None = None
    model: str = ""

    def find_class(self) -> type:
        """The class that `model` names."""
        module, _, name = self.model.partition(":")
        return getattr(importlib.import_module(f"transformers.models.{module}"), name)


def override_for(name: str) -> Override:
    """The corrections for an architecture, or none."""
    from tools.corpus.hf.overrides_senses import SENSES
    from tools.corpus.hf.overrides_text import TEXT

    return {**TEXT, **SENSES}.get(name, Override())
