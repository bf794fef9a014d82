"""What the process of one case does: build and run it plainly, then trace and check it."""

from __future__ import annotations

import importlib
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.zoo import floating_sum, seed_everything
from tools.corpus.operators import Tally, added, tallies
from tools.corpus.subject import Group, Maker, NothingToRun, Result, Subject

GROUPS = {
    "hf": "tools.corpus.hf",
    "timm": "tools.corpus.timm_families",
    "modules": "tools.corpus.torch_modules",
    "ops": "tools.corpus.torch_ops",
}


def load_group(name: str) -> Group:
    """The module behind a group's name."""
    return importlib.import_module(GROUPS[name])  # type: ignore[return-value]


def run_case(
    group: str, name: str, *, eager_only: bool, announce: Callable[[str], None], check: bool = True
) -> Result:
    """Take one case through its phases; `announce` hears each phase as it starts."""
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    counts = {"subjects": 0, "backward": 0}
    operators: dict[str, Tally] = {}

    def result(status: str, phase: str, error: BaseException | None = None) -> Result:
        cause = "" if error is None else f"{type(error).__name__}: {_first_line(error)}"
        detail = "" if error is None else "".join(traceback.format_exception(error)[-6:])
        seconds = round(time.perf_counter() - started, 3)
        return Result(group, name, status, phase, cause, detail, seconds, **counts, operators=operators)

    announce("build")
    try:
        seed_everything()
        found = load_group(group).makers(name)
    except NothingToRun as error:
        return result("nothing", "build", error)
    except Exception as error:  # a model that cannot be built is an answer, not an accident
        return result("not eager", "build", error)
    failure: Exception | None = None
    for maker in found:
        announce("eager")
        try:
            differentiable = runs_backward(maker)
        except Exception as error:  # the same for one that does not run
            failure = failure or error
            continue
        counts["subjects"] += 1
        counts["backward"] += differentiable
        if eager_only:
            continue
        phase = "trace"
        announce(phase)
        try:
            trace = _trace(_make(maker), backward=differentiable)
            if check:
                phase = "check"
                announce(phase)
                trace.check()
            operators = added([operators, tallies(trace)])
        except Exception as error:  # every failure of ours is what the corpus is for
            return result("failed", phase, error)
    if counts["subjects"] == 0:
        return result("not eager", "eager", failure or RuntimeError("nothing to run"))
    return result("passed", "eager" if eager_only else "check" if check else "trace")


def runs_backward(maker: Maker) -> bool:
    """Run the subject plainly and say whether the sum of its floating outputs can be differentiated."""
    subject = _make(maker)
    output = subject.call(*subject.args, **subject.kwargs)
    try:
        loss = floating_sum(output)
        if loss is None:
            return False
        loss.backward()
    except (RuntimeError, NotImplementedError):  # no sum, no derivative, or saved tensors were overwritten
        return False
    return True


def _make(maker: Maker) -> Subject:
    seed_everything()
    return maker()


def _trace(subject: Subject, *, backward: bool) -> Any:
    import torch_vis

    with torch.enable_grad():
        return torch_vis.trace(subject.call, *subject.args, kwargs=subject.kwargs, backward=backward)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:400] if lines else ""
