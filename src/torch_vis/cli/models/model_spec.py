"""The model that a command is about: where it comes from, its inputs, and one traced run of it."""

from __future__ import annotations

import inspect
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch_vis.cli.models import import_path as named
from torch_vis.cli.models import inputs, libraries
from torch_vis.cli.models.import_path import UsersCodeFailed, users_code
from torch_vis.cli.parser import Parser
from torch_vis.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from torch_vis._trace import Trace


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
    if via:
        group.add_argument(
            "--via", choices=VIA, help="through a compiler's front-end in the place of a plain run"
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
    specs = [inputs.parse(text) for text in options.input]
    loss = getattr(options, "loss", None)
    if loss and ":" not in loss and loss not in LOSSES:
        raise UsageError(f"loss {loss!r} is neither mean, sum nor package.module:function")

    fake = bool(getattr(options, "fake", False))
    world = _world(options, fake)
    _draw_from(options.seed)
    model, args, kwargs = _made(world, lambda: _make(options, target, named_here[0]))
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


def _made(world: Any, maker: Callable[[], Any]) -> Any:
    if isinstance(world, nullcontext):
        return maker()
    return make(world, maker)


def _make(options: Any, target: str | None, label: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch

    if target is not None:
        model, args, kwargs = _from_factory(target)
    else:
        with users_code(f"{label} cannot be made"):
            model, args, kwargs = libraries.make(options), (), {}
        model.eval()
    if isinstance(model, torch.nn.Module):
        if options.train or options.eval:
            model.train(options.train)
        if options.device != "cpu" and not getattr(options, "fake", False):  # a fake model cannot be moved
            with users_code(f"{label} cannot be put on {options.device}"):
                model.to(options.device)
    return model, args, kwargs


def _from_factory(target: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What a factory gives: a model, or a model with its inputs."""
    import torch

    result = named.find(target, "model")
    if not isinstance(result, torch.nn.Module):
        if not callable(result):
            raise UsageError(f"{target} is no model and makes none: it is {type(result).__name__}")
        needed = _required(result)
        if needed:
            raise UsageError(
                f"{target} cannot be called without arguments: it takes {', '.join(needed)}; "
                "name a function without arguments that makes the model"
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


def _given(specs: list[inputs.Input], model: Any, device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    embeddings = (
        [m for m in model.modules() if isinstance(m, torch.nn.Embedding)] if hasattr(model, "modules") else []
    )
    vocabulary = min((m.num_embeddings for m in embeddings), default=None)
    args = tuple(inputs.make(spec, device, vocabulary) for spec in specs if spec.name is None)
    kwargs = {spec.name: inputs.make(spec, device, vocabulary) for spec in specs if spec.name is not None}
    return args, kwargs


def _usual(options: Any, model: Any, label: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs that a model of a library usually gets; a model of the user's gets none."""
    result = libraries.usual_inputs(options, model)
    if result is not None:
        return result
    needed = _required(getattr(model, "forward", model))
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

    via = via or getattr(options, "via", None)
    more: dict[str, Any] = {}
    if via:
        more["via"] = via
    backward = bool(getattr(options, "backward", False))
    loss = _loss(getattr(options, "loss", None))
    _draw_from(options.seed + 2)  # and the same dropout
    with users_code(f"{subject.label} failed on {subject.given}"), subject.world:
        trace = tv.trace(
            subject.model, *subject.args, kwargs=subject.kwargs, backward=backward, loss=loss,
            keep=keep and not subject.fake, **more,
        )  # fmt: skip
    if subject.fake:
        from torch_vis.graph.record import Limit

        trace.limits += (Limit(FAKE, kind="shapes"),)
    return trace


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


def make(world: FakeTensorMode, maker: Callable[[], Made]) -> Made:
    """Make a model in the fake world.

    A constructor that reads numbers (timm's take drop rates from a ``linspace``) cannot run there. It is run with real
    tensors, and each parameter becomes a fake one as soon as it is registered, before anything is written to it.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException

    try:
        with world:
            return maker()
    except UsersCodeFailed as error:
        if not isinstance(error.__cause__, DataDependentOutputException):
            raise
    with _registered_as_fake(world):
        return maker()


@contextmanager
def _registered_as_fake(world: FakeTensorMode) -> Iterator[None]:
    import torch

    before = torch.nn.Module.register_parameter

    def register(self: torch.nn.Module, name: str, param: Any) -> None:
        if isinstance(param, torch.nn.Parameter) and not isinstance(param, torch.nn.UninitializedParameter):
            param = torch.nn.Parameter(world.from_tensor(param.detach()), requires_grad=param.requires_grad)
        before(self, name, param)

    torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = before  # type: ignore[method-assign]
