"""Bad input: one clear error each, of the right class, that says what was wrong, where, and what to do next."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from torch_vis import errors


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.fixture
def t(model: nn.Module) -> tv.Trace:
    return tv.trace(model, torch.ones(1, 3))


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)


# ---------------------------------------------------------------- the tree


def test_one_base_class_and_the_docstring_draws_the_whole_tree() -> None:
    classes = [
        item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)
    ]
    assert len(classes) > 10
    for kind in classes:
        assert issubclass(kind, errors.TorchVisError)
        assert kind.__name__ in (errors.__doc__ or ""), f"{kind.__name__} is missing from the drawing"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        ("UsageError", ValueError),
        ("NotTraceable", TypeError),
        ("NoMatch", LookupError),
        ("MissingExtra", ImportError),
        ("FileError", OSError),
    ],
)
def test_errors_are_also_the_builtin_kind_a_caller_would_catch(kind: str, builtin: type) -> None:
    assert issubclass(getattr(errors, kind), builtin)


# ---------------------------------------------------------------- what cannot be traced


@pytest.mark.parametrize("thing", [3, None, "model", [nn.ReLU()], torch.ones(2), {"a": 1}])
def test_not_a_module_or_callable(thing: object) -> None:
    with pytest.raises(errors.NotTraceable) as error:
        tv.trace(thing, torch.ones(1))  # type: ignore[arg-type]
    assert "module or a callable" in message(error)
    assert type(thing).__name__ in message(error)


def test_a_long_repr_is_cut_short() -> None:
    with pytest.raises(errors.NotTraceable) as error:
        tv.trace(list(range(10_000)))  # type: ignore[arg-type]
    assert len(message(error)) < 150


@pytest.mark.parametrize("thing", [3, "model", torch.relu])
def test_record_takes_modules_only(thing: object) -> None:
    with pytest.raises(errors.NotTraceable, match="record"):
        tv.record(thing)  # type: ignore[arg-type]


def test_keyword_arguments_of_the_model_go_into_kwargs(model: nn.Module) -> None:
    with pytest.raises(TypeError, match="attention_mask"):
        tv.trace(model, torch.ones(1, 3), attention_mask=torch.ones(1))  # type: ignore[call-arg]


# ---------------------------------------------------------------- backward


def test_backward_with_nothing_differentiable() -> None:
    with pytest.raises(errors.NothingToDifferentiate) as error:
        tv.trace(lambda x: x + 1, torch.ones(2), backward=True)
    assert "no output requires a gradient" in message(error)
    assert "frozen" in message(error) or "no_grad" in message(error)


def test_backward_of_integer_outputs_and_of_no_outputs() -> None:
    weight = torch.ones(2, requires_grad=True)
    for f in (lambda: (weight * 2).argmax() + 1, lambda: None, lambda: {"text": "none"}):
        with pytest.raises(errors.NothingToDifferentiate):
            tv.trace(f, backward=True)


def test_backward_under_no_grad(model: nn.Module) -> None:
    with torch.no_grad(), pytest.raises(errors.NothingToDifferentiate):
        tv.trace(model, torch.ones(1, 3), backward=True)


def test_loss_that_is_no_scalar(model: nn.Module) -> None:
    with pytest.raises(errors.NothingToDifferentiate) as error:
        tv.trace(model, torch.ones(4, 3), loss=lambda y: y)
    assert "(4, 2)" in message(error) and ".mean()" in message(error)


def test_loss_that_is_no_tensor(model: nn.Module) -> None:
    with pytest.raises(errors.NothingToDifferentiate, match="float"):
        tv.trace(model, torch.ones(4, 3), loss=lambda y: 1.0)


def test_loss_that_depends_on_nothing(model: nn.Module) -> None:
    with pytest.raises(errors.NothingToDifferentiate, match="requires a gradient"):
        tv.trace(model, torch.ones(4, 3), loss=lambda y: y.detach().sum())


def test_loss_that_is_not_callable(model: nn.Module) -> None:
    with pytest.raises(errors.UsageError, match="callable"):
        tv.trace(model, torch.ones(1, 3), loss=3)  # type: ignore[arg-type]


def test_our_own_errors_are_raised_with_partial_too(model: nn.Module) -> None:
    """`partial` is for what the model raises; a call that cannot work is still an error."""
    with pytest.raises(errors.NothingToDifferentiate):
        tv.trace(lambda x: x + 1, torch.ones(2), backward=True, partial=True)


# ---------------------------------------------------------------- check and names


def test_check_of_a_loaded_trace(t: tv.Trace, tmp_path: Path) -> None:
    for ending in ("tvz", "json"):
        t.save(tmp_path / f"run.{ending}")
        loaded = tv.load(tmp_path / f"run.{ending}")
        with pytest.raises(errors.TensorsMissing, match=r"trace again"):
            loaded.check()


def test_check_without_tensors_held(model: nn.Module, t: tv.Trace) -> None:
    with pytest.raises(errors.TensorsMissing, match=r"hold=False|holds no tensors"):
        tv.trace(model, torch.ones(1, 3), hold=False).check()
    t.release()
    with pytest.raises(errors.TensorsMissing, match="holds no tensors"):
        t.check()


def test_a_name_that_matches_no_module(t: tv.Trace) -> None:
    with pytest.raises(errors.NoMatch) as error:
        t.graph.find("encoder.*")
    assert "encoder.*" in message(error) and "'0'" in message(error)


def test_a_near_miss_is_offered() -> None:
    model = nn.Sequential()
    model.add_module("attention", nn.Linear(2, 2))
    t = tv.trace(model, torch.ones(1, 2))
    with pytest.raises(errors.NoMatch, match="did you mean 'attention'"):
        t.graph.find("atention")
    with pytest.raises(errors.NoMatch, match="did you mean 'backward'"):
        t.graph.find(phase="backwards")
    with pytest.raises(errors.NoMatch, match="did you mean 'random'"):
        t.graph.find(flag="rnadom")
    with pytest.raises(errors.NoMatch, match="did you mean 'time_ns'"):
        t.metrics["time"]


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("ending", ["tvz", "json"])
def test_a_file_that_is_not_ours(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    if ending == "tvz":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("hello.txt", "hello")
    else:
        path.write_text(json.dumps({"hello": 1}))
    with pytest.raises(errors.NotOurFile) as error:
        tv.load(path)
    assert str(path) in message(error)


@pytest.mark.parametrize("ending", ["tvz", "json"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file(t: tv.Trace, tmp_path: Path, ending: str, share: float) -> None:
    path = tmp_path / f"x.{ending}"
    t.save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(errors.FileError) as error:
        tv.load(path)
    assert type(error.value) in (errors.CorruptFile, errors.NotOurFile)
    assert share == 0.0 or type(error.value) is errors.CorruptFile
    assert str(path) in message(error)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_a_damaged_file(t: tv.Trace, tmp_path: Path, place: float) -> None:
    path = tmp_path / "x.tvz"
    t.save(path)
    data = bytearray(path.read_bytes())
    for offset in range(16):
        data[int(len(data) * place) + offset] ^= 0xA5
    path.write_bytes(bytes(data))
    with pytest.raises(errors.FileError, match=r"x\.tvz"):
        tv.load(path)


def test_missing_files_and_unknown_endings(t: tv.Trace, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"none\.tvz"):
        tv.load(tmp_path / "none.tvz")
    with pytest.raises(errors.NoMatch, match=r"\.tvz"):
        t.save(tmp_path / "run.tvs")
    with pytest.raises(errors.NotOurFile, match="is not a trace"):
        tv.load(tmp_path / "run.xyz")
    with pytest.raises(OSError, match=r"no such folder|No such file"):
        t.save(tmp_path / "no such folder" / "run.tvz")
    assert not list(tmp_path.iterdir()), "a failed save leaves nothing behind"


def test_a_renamed_trace_is_known_by_its_contents(t: tv.Trace, tmp_path: Path) -> None:
    t.save(tmp_path / "run.tvz")
    (tmp_path / "run.tvz").rename(tmp_path / "run.bak")
    assert len(tv.load(tmp_path / "run.bak").graph) == len(t.graph)
    (tmp_path / "script.py").write_text("print('hello')\n")
    with pytest.raises(errors.NotOurFile):
        tv.load(tmp_path / "script.py")


@pytest.mark.parametrize("kwargs", [[1], {1: 2}])
def test_keyword_arguments_that_are_none(kwargs: object) -> None:
    with pytest.raises(errors.UsageError, match="dictionary"):
        tv.trace(torch.relu, torch.ones(1), kwargs=kwargs)  # type: ignore[arg-type]


def test_check_inside_an_open_block() -> None:
    with tv.record() as t:
        torch.ones(1)
        with pytest.raises(errors.UsageError, match="still recording"):
            t.check()


# ---------------------------------------------------------------- the model's own errors


class Bespoke(Exception):
    pass


def test_the_models_own_errors_pass_through_untouched(model: nn.Module) -> None:
    with pytest.raises(RuntimeError) as plain:
        model(torch.ones(1, 7))
    with pytest.raises(RuntimeError) as traced:
        tv.trace(model, torch.ones(1, 7))
    assert type(traced.value) is type(plain.value) and traced.value.args == plain.value.args
    with pytest.raises(TypeError, match="positional argument"):
        tv.trace(model)
    with pytest.raises(TypeError, match="positional argument"):
        tv.trace(model, torch.ones(1, 3), torch.ones(1))
    with pytest.raises(TypeError, match="unexpected keyword"):
        tv.trace(model, torch.ones(1, 3), kwargs={"mask": None})


@pytest.mark.parametrize("how", ["forward", "loss", "hook", "backward", "record"])
def test_the_very_object_that_was_raised(model: nn.Module, how: str) -> None:
    raised = Bespoke("one", 2)

    def fail(*_: object) -> Tensor:
        raise raised

    x = torch.ones(1, 3, requires_grad=True)
    with pytest.raises(Bespoke) as error:
        if how == "forward":
            tv.trace(fail, x)
        elif how == "loss":
            tv.trace(model, x, loss=fail)
        elif how == "hook":
            model[1].register_forward_hook(fail)
            tv.trace(model, x)
        elif how == "backward":
            x.register_hook(fail)
            tv.trace(model, x, backward=True)
        else:
            with tv.record(model):
                fail()
    assert error.value is raised and raised.args == ("one", 2)
    assert raised.__cause__ is None and raised.__context__ is None


class TestArgumentsOfTheModelBesideOurs:
    """``tv.trace(model, input_ids=ids)``: what everyone tries first."""

    @pytest.mark.parametrize(
        "call",
        [
            tv.trace,
            tv.advise.batch_size,
            tv.advise.quantization,
            tv.advise.pruning,
            tv.advise.checkpointing,
            tv.measure.memory,
            tv.measure.kernels,
            tv.compare_captures,
        ],
        ids=lambda call: call.__name__,
    )
    def test_kwargs_is_named(self, call: Any) -> None:
        class Embedder(torch.nn.Module):
            def forward(self, input_ids: torch.Tensor, loss_mask: Any = None) -> torch.Tensor:
                return input_ids

        with pytest.raises(
            tv.errors.NoOption, match=r"goes into kwargs: kwargs=\{'input_ids': …\}"
        ) as raised:
            call(Embedder(), input_ids=torch.ones(2))
        assert isinstance(raised.value, TypeError) and isinstance(raised.value, tv.errors.UsageError)
        both = r"'input_ids' and 'loss_mask'; .*kwargs=\{'input_ids': …, 'loss_mask': …\}"
        with pytest.raises(TypeError, match=both):
            call(
                model=Embedder(), input_ids=torch.ones(2), loss_mask=None
            ) if call is not tv.measure.memory else call(Embedder(), input_ids=torch.ones(2), loss_mask=None)

    def test_a_misspelt_option_is_named(self) -> None:
        with pytest.raises(tv.errors.NoOption, match="no option 'backwards'; did you mean 'backward'"):
            tv.trace(torch.nn.ReLU(), torch.ones(2), backwards=True)  # type: ignore[call-arg]
        t = tv.trace(torch.nn.ReLU(), kwargs={"input": torch.ones(2)})
        assert len(t.graph) == 1
