"""Models of torchvision, timm and transformers, made from their names or configurations with random weights."""

from __future__ import annotations

import os
from typing import Any

from torch_vis.errors import UsageError, missing_extra, no_match


def make(options: Any) -> Any:
    """The model that ``--torchvision``, ``--timm`` or ``--hf`` names; nothing is downloaded."""
    if options.torchvision:
        return _torchvision(options.torchvision)
    if options.timm:
        return _timm(options.timm)
    return _transformers(options.hf, options.hf_class)


def usual_inputs(options: Any, model: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """What such a model is usually called with, or None for a model of the user's."""
    import torch

    if options.torchvision:
        side = _crop(options.torchvision)
        return (torch.randn(1, 3, side, side, device=options.device),), {}
    if options.timm:
        size = model.default_cfg.get("input_size", (3, 224, 224))
        return (torch.randn(1, *size, device=options.device),), {}
    return _tokens(options, model) if options.hf else None


def _torchvision(name: str) -> Any:
    try:
        from torchvision import models  # type: ignore[import-untyped]
    except ImportError as error:
        raise missing_library("torchvision") from error
    if name not in models.list_models():
        raise no_match("model of torchvision", name, models.list_models())
    return models.get_model(name, weights=None)


def _crop(name: str) -> int:
    """The side of the images that the model was made for, as its published weights have it."""
    from torchvision import models

    try:
        usual = models.get_model_weights(name).DEFAULT.transforms.keywords.get("crop_size", 224)
    except (AttributeError, ValueError):
        usual = 224
    return int(usual if isinstance(usual, int) else usual[0])


def _timm(name: str) -> Any:
    try:
        import timm
    except ImportError as error:
        raise missing_library("timm") from error
    if not timm.is_model(name):
        raise no_match("model of timm", name, timm.list_models())
    return timm.create_model(name, pretrained=False)


def _transformers(config: str, class_name: str | None) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise missing_library("transformers") from error
    configuration = _configuration(config)
    wanted = (
        class_name or next(iter(getattr(configuration, "architectures", None) or ()), None) or "AutoModel"
    )
    maker = getattr(transformers, wanted, None)
    if maker is None:
        if class_name:
            near = [name for name in dir(transformers) if "Model" in name]
            raise no_match("class of transformers", class_name, near)
        maker = transformers.AutoModel
    return maker.from_config(configuration) if wanted.startswith("AutoModel") else maker(configuration)


def _configuration(config: str) -> Any:
    """A configuration from a folder or file, from the local cache, or the default one of a model type."""
    from transformers import CONFIG_MAPPING, AutoConfig

    if os.path.exists(config):
        return _read(config)
    if config in CONFIG_MAPPING:
        return CONFIG_MAPPING[config]()
    try:
        return AutoConfig.from_pretrained(config, local_files_only=True)
    except (OSError, ValueError):  # neither cached nor a configuration that transformers can read
        known = sorted(CONFIG_MAPPING)
        stem = next((name for name in sorted(known, key=len, reverse=True) if config.startswith(name)), None)
        if stem is not None:
            raise UsageError(
                f"{config!r} is no folder or file here, and nothing is downloaded; --hf {stem} makes one "
                "from the default configuration"
            ) from None
        raise no_match("configuration of transformers", config, known) from None


def _read(path: str) -> Any:
    import json

    from transformers import CONFIG_MAPPING

    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise UsageError(f"there is no config.json in {path!r}")
    try:
        with open(file, encoding="utf-8") as opened:
            content = json.load(opened)
        kind = content["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is no configuration of transformers: it names no model_type") from error
    if kind not in CONFIG_MAPPING:
        raise no_match("model type of transformers", str(kind), CONFIG_MAPPING)
    return CONFIG_MAPPING[kind].from_dict(content)


def _tokens(options: Any, model: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Sixteen tokens, an image or a second of sound, whichever the model's main input is."""
    import torch

    config, name, device = model.config, model.main_input_name, options.device
    if name == "input_ids":
        ids = torch.randint(0, config.get_text_config().vocab_size, (1, 16), device=device)
        kwargs = {"input_ids": ids}
        if getattr(config, "is_encoder_decoder", False):
            kwargs["decoder_input_ids"] = ids
        return (), kwargs
    if name == "pixel_values":
        side = getattr(config, "image_size", 224)
        height, width = (side, side) if isinstance(side, int) else side
        channels = getattr(config, "num_channels", 3)
        return (), {"pixel_values": torch.randn(1, channels, height, width, device=device)}
    if name == "input_values":
        return (), {"input_values": torch.randn(1, 16000, device=device)}
    return None


def missing_library(name: str) -> UsageError:
    """The error for a library of models that is absent."""
    if name == "torchvision":
        return UsageError("torchvision is not installed; run: pip install torchvision")
    return missing_extra(name, "zoo")
