"""The model that a command is about: where it comes from, its inputs, and one traced run of it."""

from __future__ import annotations

import inspect
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch_vis.capture.undo import Undo, context
from torch_vis.cli import import_path as named
from torch_vis.cli.import_path import UsersCodeFailed, users_code
from torch_vis.cli.parser import Parser
from torch_vis.errors import UsageError, missing_extra, no_match

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from torch_vis._trace import Trace
    from torch_vis.capture.undo import Passage


def library_model(options: Any) -> Any:
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
    return _of_transformers(options, model) if options.hf else None


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
    with _offline():
        configuration = _configuration(config)
        _refuse_kernels(config, configuration)
        named = getattr(configuration, "architectures", None)
        wanted = class_name or (named[0] if isinstance(named, (list, tuple)) and named else None)
        factory: Any = getattr(transformers, wanted, None) if isinstance(wanted, str) else None
        # a configuration may name whatever there is in transformers, and only models are to be called
        if not _makes_models(factory):
            if class_name:
                near = [name for name in dir(transformers) if "Model" in name]
                raise no_match("class of transformers", class_name, near)
            factory = transformers.AutoModel
        if issubclass(factory, transformers.PreTrainedModel):
            return factory(configuration)
        return factory.from_config(configuration, trust_remote_code=False)


def _makes_models(factory: Any) -> bool:
    """Whether something of transformers is a class of models, or one that finds the class for a configuration."""
    from transformers import AutoModel, PreTrainedModel

    of_models = (PreTrainedModel, AutoModel.__mro__[1])
    return isinstance(factory, type) and issubclass(factory, of_models)


@context
def _offline(undo: Undo) -> None:
    """A stretch in which nothing is downloaded, whatever a configuration names."""
    from huggingface_hub import constants

    undo.set(constants, "HF_HUB_OFFLINE", True)


def _refuse_kernels(config: str, configuration: Any) -> None:
    """Raise for a configuration, or a part of one, that names kernels of the hub: those are code of others."""
    from transformers import PretrainedConfig

    parts: list[Any] = []
    waiting = [configuration]
    while waiting:
        part = waiting.pop()
        if not any(part is known for known in parts):
            parts.append(part)
            waiting += [value for value in vars(part).values() if isinstance(value, PretrainedConfig)]
    for part in parts:
        for kind in ("attn", "experts"):
            name = getattr(part, f"_{kind}_implementation", None)
            if isinstance(name, str) and name not in ("eager", "sdpa") and set(name) & set("/:@|"):
                raise UsageError(
                    f"{config} names kernels of the Hugging Face hub ({name!r}), which are code and would be "
                    f"downloaded: set {kind}_implementation to 'eager' in it"
                )


def _configuration(config: str) -> Any:
    """A configuration from a folder or file, from the local cache, or the default one of a model type."""
    from transformers import CONFIG_MAPPING, AutoConfig

    if os.path.exists(config):
        return _read(config)
    if config in CONFIG_MAPPING:
        return CONFIG_MAPPING[config]()
    try:
        return AutoConfig.from_pretrained(config, local_files_only=True, trust_remote_code=False)
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
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{file} is no configuration of transformers: it names no model_type") from error
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise no_match("model type of transformers", str(kind), CONFIG_MAPPING)
    return CONFIG_MAPPING[kind].from_dict(content)


TOKENS, FRAMES, SAMPLES = 16, 100, 16000  # of a text, of a spectrogram, of a second of sound
MOST_NAMES = 12  # of arguments that an error lists
Shapes = dict[
    str, tuple[tuple[int, ...], "int | None"]
]  # of each input, and below what its whole numbers are


def _of_transformers(options: Any, model: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Tokens, an image, sound or a spectrogram, whichever the model begins with, and what goes with it."""
    import torch

    takes = inspect.signature(model.forward).parameters
    shapes = _shapes(model.config, model.main_input_name, takes)
    if shapes is None or any(name not in shapes for name in _required(model.forward)):
        return None
    return (), {
        name: torch.randn(shape, device=options.device)
        if below is None
        else torch.randint(0, below, shape, device=options.device)
        for name, (shape, below) in shapes.items()
    }


def _shapes(config: Any, main: str, takes: Mapping[str, Any]) -> Shapes | None:
    """The shapes of the inputs, by the configuration; None where it does not give that of the main input."""
    vocabulary = getattr(config.get_text_config(), "vocab_size", None) or _setting(config, "vocab_size")
    ids = ((1, TOKENS), int(vocabulary or 2))
    readings: dict[str, Any] = {
        "input_ids": lambda: ids,
        "pixel_values": lambda: (_image(config), None),
        "input_values": lambda: (_sound(config), None),
        "input_features": lambda: (_spectrogram(config), None),
    }
    if main not in readings or main not in takes or readings[main]()[0] is None:
        return None
    wanted = [main]
    # two encoders of which neither can be left out, as in CLIP, SigLIP and CLAP
    has_two = getattr(config, "text_config", None) is not None and not hasattr(config, "image_token_id")
    if has_two and (hasattr(config, "initializer_factor") or _setting(config, "projection_dim")):
        senses = {
            "pixel_values": "vision_config",
            "input_features": "audio_config",
            "input_ids": "text_config",
        }
        wanted += [
            name for name, part in senses.items() if name in takes and getattr(config, part, None) is not None
        ]
    shapes = {name: readings[name]() for name in dict.fromkeys(wanted)}
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        shapes["decoder_input_ids"] = ids
    return shapes


def _setting(config: Any, *names: str) -> Any:
    """The first of the names that is set in a configuration, or else in a nested one."""
    for holder in (config, *(part for part in vars(config).values() if hasattr(part, "model_type"))):
        for name in names:
            if getattr(holder, name, None) is not None:
                return getattr(holder, name)
    return None


def _image(config: Any) -> tuple[int, ...]:
    """One image, or the frames of a film."""
    side = _setting(config, "image_size", "img_size") or 224
    if isinstance(side, dict):
        side = (side.get("height", 224), side.get("width", 224))
    height, width = (side, side) if isinstance(side, int) else (side[0], side[-1])
    channels, frames = _setting(config, "num_channels"), getattr(config, "num_frames", None)
    still = (channels if isinstance(channels, int) else 3, int(height), int(width))
    return (1, int(frames), *still) if frames else (1, *still)


def _sound(config: Any) -> tuple[int, ...]:
    """A second of sound, or the spectrogram that a transformer of pictures takes."""
    bins, length = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
    if bins and length and hasattr(config, "patch_size"):
        return 1, int(length), int(bins)
    return (1, int(config.audio_channels), SAMPLES) if hasattr(config, "audio_channels") else (1, SAMPLES)


def _spectrogram(config: Any) -> tuple[int, ...] | None:
    """The spectrogram of a speech model: of the length that it is made for, time last, or else with time first."""
    width = _setting(config, "input_feat_per_channel", "feature_projection_input_dim")
    bins, positions = _setting(config, "num_mel_bins"), _setting(config, "max_source_positions")
    if _setting(config, "spec_size") and bins:
        return 1, 1, 1024, int(bins)
    if bins and positions and not width:
        return 1, int(bins), 2 * int(positions)
    return (1, FRAMES, int(width or bins)) if width or bins else None


def missing_library(name: str) -> UsageError:
    """The error for a library of models that is absent."""
    if name == "torchvision":
        return UsageError("torchvision is not installed; run: pip install torchvision")
    return missing_extra(name, "zoo")


FLOATING = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
WHOLE = ("int8", "uint8", "int16", "int32", "int64")
DTYPES = (*FLOATING, *WHOLE, "bool")
SPEC = re.compile(r"(?P<shape>\(\)|\d+(?:x\d+)*)(?::(?P<dtype>\w+))?(?::(?P<low>[^.:]+)\.\.(?P<high>[^:]+))?")
FORM = (
    "[NAME=]SHAPE[:DTYPE][:LOW..HIGH], as in 1x3x224x224, ids=2x128:int64:0..1000 or () for a single number, "
    "x=@batch.pt or x=@batch.npy for a tensor in a file, scale:=3 for a plain value"
)


class Input(NamedTuple):
    """One input to make up, or a file to load it from."""

    name: str | None
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None
    file: str | None = None
    value: tuple[Any] | None = None
    """A plain value, in a tuple so that it can be None."""

    def __str__(self) -> str:
        if self.value is not None:
            return f"{self.name or ''}:={self.value[0]!r}"
        name = f"{self.name}=" if self.name else ""
        return name + (
            f"@{self.file}" if self.file else f"{'x'.join(map(str, self.shape)) or '()'}:{self.dtype}"
        )


def parse_input(text: str) -> Input:
    """An input from how it is written.

    >>> parse_input("ids=2x128:int64:0..1000")
    Input(name='ids', shape=(2, 128), dtype='int64', low=0, high=1000, file=None, value=None)
    >>> parse_input("scale:=0.5").value
    (0.5,)
    """
    before, is_value, after = text.partition(":=")
    if is_value and (before.isidentifier() or not before):
        return Input(before or None, value=(_value(text, after),))
    name, is_named, rest = text.partition("=")
    if not is_named:
        name, rest = "", text
    elif not name.isidentifier():
        raise UsageError(f"input {text!r}: {name!r} is no name of an argument; write {FORM}")
    if rest.startswith("@"):
        if not os.path.isfile(rest[1:]):
            raise UsageError(f"input {text!r}: there is no file {rest[1:]!r}")
        return Input(name or None, file=rest[1:])
    result = SPEC.fullmatch(rest)
    if result is None:
        raise UsageError(f"input {text!r} cannot be read; write {FORM}")
    dtype = result["dtype"] or "float32"
    if dtype not in DTYPES:
        raise UsageError(f"input {text!r}: {no_match('dtype', dtype, DTYPES)}")
    low, high = _range(text, dtype, result["low"], result["high"])
    shape = () if result["shape"] == "()" else tuple(map(int, result["shape"].split("x")))
    return Input(name or None, shape, dtype, low, high)


def _value(text: str, written: str) -> Any:
    """A number, a word in quotes, True, None, or tuples and lists of these, as Python writes them."""
    import ast

    try:
        return ast.literal_eval({"true": "True", "false": "False", "null": "None"}.get(written, written))
    except (ValueError, SyntaxError):
        raise UsageError(
            f"input {text!r}: {written!r} is no value of Python's; write 3, 0.5, true or '\"a word\"'"
        ) from None


def _range(text: str, dtype: str, low: str | None, high: str | None) -> tuple[float | None, float | None]:
    if low is None or high is None:
        return None, None
    if dtype == "bool":
        raise UsageError(f"input {text!r}: bool takes no range")
    try:
        number = int if dtype in WHOLE else float
        least, most = number(low), number(high)
    except ValueError:
        raise UsageError(f"input {text!r}: {low}..{high} is not a range of {dtype}") from None
    if least >= most:
        raise UsageError(f"input {text!r}: the range {low}..{high} is empty; the second number is not in it")
    return least, most


def make_input(spec: Input, device: str, vocabulary: int | None) -> Any:
    """The tensor: random numbers of the shape and dtype; whole ones without a range below ``vocabulary`` or 2."""
    if spec.value is not None:
        return spec.value[0]
    if spec.file is not None:
        return _load(spec.file, device)
    try:
        return _random(spec, device, vocabulary)
    # more memory than there is, or more elements than can be counted
    except (RuntimeError, MemoryError, OverflowError) as error:
        shape = "x".join(map(str, spec.shape))
        raise UsageError(
            f"input {shape}: {str(error).partition(chr(10))[0] or 'there is no memory for it'}"
        ) from error


def _random(spec: Input, device: str, vocabulary: int | None) -> Any:
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.dtype == "bool":
        return torch.rand(spec.shape, device=device) < 0.5
    if spec.dtype in WHOLE:
        low, high = (0, vocabulary or 2) if spec.low is None or spec.high is None else (spec.low, spec.high)
        return torch.randint(int(low), int(high), spec.shape, dtype=dtype, device=device)
    if spec.low is not None and spec.high is not None:
        return torch.empty(spec.shape, dtype=dtype, device=device).uniform_(spec.low, spec.high)
    return torch.randn(spec.shape, dtype=dtype, device=device)


def _load(path: str, device: str) -> Any:
    """A tensor, or tensors in lists and dictionaries, from what ``torch.save`` or ``numpy.save`` wrote."""
    import torch

    try:
        if path.endswith((".npy", ".npz")):
            import numpy

            result = numpy.load(path, allow_pickle=False)
            if isinstance(result, numpy.ndarray):
                return torch.from_numpy(result).to(device)
            return {name: torch.from_numpy(result[name]).to(device) for name in result}
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise UsageError(
            f"{path} holds no tensors that can be loaded ({type(error).__name__}); an input comes from a .pt file that "
            "torch.save wrote, or from .npy"
        ) from error


SEEDS = 2**64  # that torch tells apart
VIA = ("fx", "export", "dynamo", "aot")
LOSSES = ("sum", "mean")
FAKE = "shapes only: no numbers were computed, and the times are those of working out shapes"


class Subject(NamedTuple):
    """A model and what it is called with; ``world`` is what it has to run in."""

    label: str
    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: str  # the inputs in words
    fake: bool
    can_run: bool
    world: AbstractContextManager[Any]


def add_model_options(parser: Parser, *, positional: str | None = "MODEL", many: bool = False) -> None:
    """The options that name a model and its inputs."""
    if positional:
        parser.add_argument(
            "target",
            nargs="*" if many else "?",
            metavar=positional,
            help="package.module:factory or path/to/file.py:factory: a module, or what makes one without arguments; "
            "the factory may also give (model, inputs)",
        )
    group = parser.add_argument_group("models from libraries, with random weights")
    group.add_argument("--torchvision", metavar="NAME", help="a model of torchvision: resnet50")
    group.add_argument("--timm", metavar="NAME", help="a model of timm: vit_tiny_patch16_224")
    group.add_argument(
        "--hf",
        metavar="CONFIG",
        help="of transformers: a folder or file with a config, or a model type: bert",
    )
    group.add_argument("--hf-class", metavar="CLASS", help="and its class: AutoModelForCausalLM")
    group = parser.add_argument_group("its inputs")
    group.add_argument(
        "-i", "--input", action="append", default=[], metavar="SPEC",
        help="1x3x224x224:float32, mask=1x16:bool, ids=2x128:int64:0..1000 (1000 itself is not drawn), all random; "
        "x=@file.pt or x=@file.npy, loaded; scale:=0.5, a plain value; once for each input, in order",
    )  # fmt: skip
    group.add_argument("--device", default="cpu", help="where model and inputs are put (default: cpu)")
    group.add_argument("--seed", type=_seed, default=0, help="of the random numbers (default: 0)")
    mode = group.add_mutually_exclusive_group()
    mode.add_argument("--train", action="store_true", help="in training mode: dropout on, statistics updated")
    mode.add_argument("--eval", action="store_true", help="in evaluation mode (models from libraries are)")


def _seed(text: str) -> int:
    """A seed that torch takes, as it is written."""
    try:
        result = int(text)
    except ValueError:
        raise ArgumentTypeError(f"a whole number, not {text!r}") from None
    if not -SEEDS // 2 <= result < SEEDS:
        raise ArgumentTypeError(f"torch takes seeds from -2**63 to 2**64 - 1, not {text}")
    return result


def _count(text: str) -> int:
    """How often, as it is written."""
    if not text.isdigit() or not int(text):
        raise ArgumentTypeError(f"a number from 1 up, not {text!r}")
    return int(text)


def _draw_from(seed: int) -> None:
    """Seed torch; those after the last seed start anew."""
    import torch

    torch.manual_seed(seed % SEEDS)


def add_trace_options(parser: Parser, *, via: bool = True) -> None:
    """The options that say how a model is traced."""
    group = parser.add_argument_group("the run")
    group.add_argument("--backward", action="store_true", help="go on with backward, from the summed outputs")
    group.add_argument(
        "--loss", metavar="LOSS", help="or from a loss: mean, sum or package.module:function of the output"
    )
    group.add_argument(
        "--fake", action="store_true", help="shapes only, no memory: for models too big for this machine"
    )
    group.add_argument(
        "--assume",
        metavar="tokens=HOW",
        help="with --fake: how a router spreads tokens over experts, balanced or worst (all to the same ones)",
    )
    if via:
        group.add_argument(
            "--via", choices=VIA, help="through a compiler's front-end in the place of a plain run"
        )
        group.add_argument(
            "--repeat",
            type=_count,
            default=0,
            metavar="N",
            help="run it N times more, so that times are medians",
        )


def has_model(options: Any) -> bool:
    """Whether the options name a model of a library."""
    return bool(options.torchvision or options.timm or options.hf)


def subject(options: Any, target: str | None = None, *, needs_inputs: bool = True) -> Subject:
    """Make the model and its inputs; where those are not needed and not given, ``can_run`` is false."""
    target = target if target is not None else options.target
    named_here = [name for name in (target, options.torchvision, options.timm, options.hf) if name]
    if not named_here:
        raise UsageError(
            "which model? name package.module:factory, file.py:factory, --torchvision, --timm or --hf"
        )
    if len(named_here) > 1:
        raise UsageError(f"one model at a time, not {' and '.join(map(repr, named_here))}")
    specs = [parse_input(text) for text in options.input]
    loss = getattr(options, "loss", None)
    if loss and ":" not in loss and loss not in LOSSES:
        raise UsageError(f"--loss {loss!r} is neither mean, sum nor package.module:function")

    fake = bool(getattr(options, "fake", False))
    world = _world(options, fake)
    _draw_from(options.seed)
    model, args, kwargs = _built(world, lambda: _make(options, target, named_here[0]))
    _draw_from(options.seed + 1)  # whatever the model drew, so that two models get the same inputs
    with world:
        if specs:
            args, kwargs = _given(specs, model, options.device)
        elif not args and not kwargs and (needs_inputs or has_model(options)):
            args, kwargs = _usual(options, model, named_here[0])
    can_run = bool(needs_inputs or args or kwargs or not _required(getattr(model, "forward", model)))
    if can_run:
        _fits(model, args, kwargs, named_here[0])
    words = ", ".join(map(str, specs)) or "its own inputs"
    if options.hf and kwargs and not specs:
        inputs = ", ".join(f"{name}={'x'.join(map(str, value.shape))}" for name, value in kwargs.items())
        names = [name for name in inspect.signature(model.forward).parameters if name != "kwargs"]
        words = f"{inputs} (it takes {', '.join(names[:MOST_NAMES])}; --input NAME=SHAPE gives others)"
    return Subject(named_here[0], model, tuple(args), dict(kwargs), words, fake, can_run, world)


def _world(options: Any, fake: bool) -> AbstractContextManager[Any]:
    import torch

    kind = options.device.partition(":")[0]
    try:
        torch.device(options.device)
    except RuntimeError:
        raise UsageError(
            f"--device {options.device!r} is none of torch's; write cpu, cuda, cuda:1, mps or xpu"
        ) from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: this torch sees no GPU")
    if not fake:
        return nullcontext()
    if kind != "cpu":
        raise UsageError("--fake computes no numbers, so it needs no device; leave --device out")
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def _built(world: Any, factory: Callable[[], Any]) -> Any:
    if isinstance(world, nullcontext):
        return factory()
    return make(world, factory)


def _make(options: Any, target: str | None, label: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch

    if target is not None:
        model, args, kwargs = _from_factory(target, has_inputs=bool(options.input))
    else:
        with users_code(f"{label} cannot be made"):
            model, args, kwargs = library_model(options), (), {}
        model.eval()
    if isinstance(model, torch.nn.Module):
        if options.train or options.eval:
            model.train(options.train)
        if options.device != "cpu" and not getattr(options, "fake", False):  # a fake model cannot be moved
            with users_code(f"{label} cannot be put on {options.device}"):
                model.to(options.device)
    return model, args, kwargs


def _from_factory(target: str, *, has_inputs: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What a factory gives: a model, or a model with its inputs. A function of the inputs is the model itself."""
    import torch

    result = named.find(target, "model")
    if not isinstance(result, torch.nn.Module):
        if not callable(result):
            raise UsageError(f"{target} is no model and makes none: it is {type(result).__name__}")
        needed = _required(result)
        if needed and has_inputs and not isinstance(result, type):
            return result, (), {}
        if needed:
            raise UsageError(
                f"{target} cannot be called without arguments: it takes {', '.join(needed)}; "
                "name a function without arguments that makes the model"
                + ("" if isinstance(result, type) else f", or give what it takes: --input {needed[0]}=2x8")
            )
        with users_code(f"{target} failed"):
            result = result()
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(result, tuple) and result and callable(result[0]):
        for more in result[1:]:
            if isinstance(more, dict):
                kwargs = more
            else:
                args = tuple(more) if isinstance(more, (tuple, list)) else (*args, more)
        result = result[0]
    if not callable(result):
        raise UsageError(f"{target} gave {type(result).__name__}, which is no model")
    return result, args, kwargs


def _required(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments that a callable cannot do without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    return [p.name for p in parameters if p.kind in plain and p.default is inspect.Parameter.empty]


def _given(specs: list[Input], model: Any, device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    embeddings = (
        [m for m in model.modules() if isinstance(m, torch.nn.Embedding)] if hasattr(model, "modules") else []
    )
    vocabulary = min((m.num_embeddings for m in embeddings), default=None)
    args = tuple(make_input(spec, device, vocabulary) for spec in specs if spec.name is None)
    kwargs = {spec.name: make_input(spec, device, vocabulary) for spec in specs if spec.name is not None}
    return args, kwargs


def _usual(options: Any, model: Any, label: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs that a model of a library usually gets; a model of the user's gets none."""
    result = usual_inputs(options, model)
    if result is not None:
        return result
    needed = _required(getattr(model, "forward", model))
    if not needed and options.hf:
        needed = [model.main_input_name]  # transformers gives every argument a default
    if needed:
        raise UsageError(
            f"{label} takes {', '.join(needed)}: say what, e.g. --input {needed[0]}=1x3x224x224 (see --help for more)"
        )
    return (), {}


def _fits(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], label: str) -> None:
    """Refuse inputs that the model's signature has no place for."""
    try:
        signature = inspect.signature(getattr(model, "forward", model))
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"the inputs do not fit {label}, which takes {signature}: {error}") from error


def traced(subject: Subject, options: Any, *, keep: bool = True, via: str | None = None) -> Trace:
    """One run of the model, recorded."""
    import torch_vis as tv

    more: dict[str, Any] = {"backward": bool(getattr(options, "backward", False))}
    more["loss"] = _loss(getattr(options, "loss", None))
    more["via"] = via or getattr(options, "via", None) or "eager"
    more["repeat"] = getattr(options, "repeat", 0)
    world = subject.world
    if subject.fake and more["via"] == "eager":
        world, more["fake"] = nullcontext(), True
    more["assume"] = _assumed(getattr(options, "assume", None))
    _draw_from(options.seed + 2)  # and the same dropout
    with users_code(f"{subject.label} failed on {subject.given}"), world:
        trace = tv.trace(
            subject.model, *subject.args, kwargs=subject.kwargs, hold=keep and not subject.fake, **more
        )
    if subject.fake and "fake" not in more:
        from torch_vis.graph.run import Limit

        trace.meta["fake"] = True
        trace.limits += (Limit(FAKE, kind="shapes"),)
    return trace


def _assumed(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    name, separator, how = text.partition("=")
    if not separator:
        raise UsageError(f"--assume {text!r}: write --assume tokens=balanced or tokens=worst")
    return {name: how}


def _loss(name: str | None) -> Callable[[Any], Any] | None:
    if not name:
        return None
    if ":" in name:
        function: Callable[[Any], Any] = named.find(name, "loss")
        return function

    def reduced(output: Any) -> Any:
        from torch_vis.capture.containers import named_tensors

        floating = [tensor for _, tensor in named_tensors(output) if tensor.is_floating_point()]
        if not floating:
            raise UsageError("the model gave no floating-point tensor to take a loss from")
        return getattr(floating[0], name)()

    return reduced


Made = TypeVar("Made")


def make(world: FakeTensorMode, factory: Callable[[], Made]) -> Made:
    """Make a model in the fake world.

    A constructor that reads numbers (timm's take drop rates from a ``linspace``) cannot run there. It is run with real
    tensors, and each parameter becomes a fake one as soon as it is registered, before anything is written to it.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException

    try:
        with world:
            return factory()
    except UsersCodeFailed as error:
        if not isinstance(error.__cause__, DataDependentOutputException):
            raise
    with _registered_as_fake(world):
        return factory()


def _registered_as_fake(world: FakeTensorMode) -> Passage[None]:
    import torch

    from torch_vis.capture.undo import context

    before = torch.nn.Module.register_parameter

    def register(self: torch.nn.Module, name: str, param: Any) -> None:
        if isinstance(param, torch.nn.Parameter) and not isinstance(param, torch.nn.UninitializedParameter):
            param = torch.nn.Parameter(world.from_tensor(param.detach()), requires_grad=param.requires_grad)
        before(self, name, param)

    @context
    def registered(undo: Undo) -> None:
        undo.set(torch.nn.Module, "register_parameter", register)

    return registered()
