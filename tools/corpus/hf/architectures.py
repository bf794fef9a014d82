"""Which transformers architectures there are, and the search for a small model and inputs that it runs on."""

from __future__ import annotations

import copy
import importlib
import inspect
import os

import torch
from torch import nn

from tests.zoo import seed_everything
from tools.corpus.hf.overrides import override_for
from tools.corpus.hf.search import Arguments, candidates, required_inputs
from tools.corpus.hf.shrink import LEVELS
from tools.corpus.subject import Maker, NothingToRun, Subject

_MOST_PARAMETERS = 400_000_000
_CHEAP_TO_COPY = 30_000_000
# Heads to fall back on where an architecture has no bare model, most telling first.
_HEADS = (
    "MODEL_MAPPING",
    "MODEL_FOR_PRETRAINING_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING",
    "MODEL_FOR_BACKBONE_MAPPING",
)


def prepare() -> None:
    """Import the parts of transformers that every model needs, and keep it off the network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers
    import transformers.cache_utils
    import transformers.modeling_utils
    import transformers.models.auto.modeling_auto

    transformers.logging.set_verbosity_error()


def names() -> list[str]:
    """Every model type that has a configuration, parts of larger models included."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def makers(name: str) -> list[Maker]:
    """The first level of smallness and the first inputs that the architecture runs with."""
    failures: list[Exception] = []
    found = _first_that_runs(name, failures)
    if found is None:
        raise max(failures, key=_telling)
    level, arguments = found
    return [lambda: Subject(_model(name, level), (), copy.deepcopy(arguments))]


def model_class(config_class: type) -> type[nn.Module]:
    """The class to build for a configuration: the bare model, or a head, or whatever takes the configuration."""
    from transformers.models.auto import modeling_auto

    others = [name for name in dir(modeling_auto) if name.startswith("MODEL_") and name.endswith("_MAPPING")]
    for mapping in (getattr(modeling_auto, head) for head in (*_HEADS, *others)):
        if config_class in mapping:
            found = mapping[config_class]
            return found[0] if isinstance(found, (list, tuple)) else found
    return _class_in_module(config_class)


def _first_that_runs(name: str, failures: list[Exception]) -> tuple[str, Arguments] | None:
    override = override_for(name)
    for level in LEVELS:
        try:
            model = _model(name, level)
        except NothingToRun:
            raise
        except Exception as error:  # this level does not suit the architecture
            failures.append(error)
            continue
        search = candidates(model, override.inputs(model) if override.inputs else None)
        arguments = next(search, None)
        if arguments is None:
            failures.append(LookupError(f"nothing is known of an input it needs: {required_inputs(model)}"))
        while arguments is not None:
            try:
                seed_everything()
                with torch.no_grad():
                    _expendable(model)(**copy.deepcopy(arguments))
            except Exception as error:  # nor do these inputs suit it
                failures.append(error)
                try:
                    arguments = search.send(error)
                except StopIteration:
                    arguments = None
            else:
                return level, arguments
    return None


def _expendable(model: nn.Module) -> nn.Module:
    """A copy to try inputs on, since a forward that fails may leave its module changed."""
    small = sum(parameter.numel() for parameter in model.parameters()) < _CHEAP_TO_COPY
    return copy.deepcopy(model) if small else model


def _model(name: str, level: str) -> nn.Module:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    override = override_for(name)
    cls = override.find_class() if override.model else model_class(CONFIG_MAPPING[name])
    if cls.forward is nn.Module.forward:
        raise NothingToRun(f"{cls.__name__} has no forward of its own")
    seed_everything()
    config = LEVELS[level](CONFIG_MAPPING[name], override)
    try:
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in cls(config).parameters())
    except Exception:  # some cannot be built without data; then the memory limit guards us
        size = 0
    if size > _MOST_PARAMETERS:
        raise MemoryError(f"{size / 1e6:.0f} million parameters are too many")
    seed_everything()
    model = cls(config).eval()
    if override.prepare:
        override.prepare(model)
    return model


def _class_in_module(config_class: type) -> type[nn.Module]:
    """The model in the configuration's own package that declares this configuration as its own."""
    from transformers import PreTrainedModel

    try:
        module = importlib.import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    except ModuleNotFoundError as error:
        raise NothingToRun(f"{config_class.__name__} has no model file") from error
    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, PreTrainedModel)
        and value.__module__ == module.__name__
        and value.config_class is config_class
        and "PreTrainedModel" not in value.__name__
    ]
    if not found:
        raise NothingToRun(f"{config_class.__name__} describes a part that is no model of its own")
    return min(found, key=lambda cls: "For" in cls.__name__)


def _telling(error: Exception) -> int:
    """How much an error says: running into the model beats failing to build it."""
    return 0 if isinstance(error, (MemoryError, TypeError, LookupError)) else 1
