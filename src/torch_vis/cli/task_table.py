"""The table of tasks: what people want to do, the call and the command for it, and the page of the documentation.

``t.help()`` and ``torch-vis help WORD`` print it, the README and the start page show it, and tests make every call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from torch_vis.errors import no_match


class Task(NamedTuple):
    """Something to do: in words, in Python, on the command line, and where it is explained."""

    want: str
    call: str
    """In Python; empty where it is a command alone."""
    page: str
    """The page of the documentation, without its ending."""
    command: str = ""
    """The same on the command line; empty where it has none."""


TASKS: tuple[Task, ...] = (
    Task(
        "what is in this model: modules, shapes, parameters, FLOPs",
        "print(tv.trace(model, x))",
        "guides/what_is_in_this_model",
        "torch-vis summary net.py:make --input 2x8",
    ),
    Task("the whole run as a page", "t.show()", "start/index", "torch-vis show run.tvz"),
    Task(
        "a proof that the graph is right", "t.check()", "how/proof", "torch-vis check net.py:make --input 2x8"
    ),
    Task("a training step: loss, backward, optimizer", "tv.trace(step, batch)", "guides/slow_step"),
    Task(
        "why my step is slow",
        "tv.trace(step, batch, repeat=10).time()",
        "guides/slow_step",
        "torch-vis report time run.tvz",
    ),
    Task(
        "why memory runs out, and what to checkpoint",
        't.memory(); tv.advise.checkpointing(model, x, memory="8 GiB")',
        "guides/out_of_memory",
        "torch-vis report memory run.tvz",
    ),
    Task(
        "whether it fits on that GPU, and how fast it is there",
        't.memory().peak_bytes; t.latency(hardware="A100")',
        "guides/does_it_fit",
        "torch-vis report latency run.tvz --hardware A100",
    ),
    Task(
        "a training on more machines than there are, and how long its step takes",
        'tv.simulate(make, batch, mesh={"dp": 16, "tp": 8}, hardware="H100").step_time()',
        "guides/many_ranks",
        "torch-vis run --world dp=16,tp=8 train.py",
    ),
    Task(
        "which layout of a training fits on many GPUs",
        'tv.fit(make, batch, world=1024, memory="80 GiB", tp=(1, 2, 4, 8))',
        "guides/many_ranks",
        "torch-vis fit parallel.py:make --world 64 --memory 80GiB",
    ),
    Task(
        "the largest batch that fits",
        'tv.advise.batch_size(model, x, memory="16 GiB", backward=True)',
        "guides/does_it_fit",
    ),
    Task(
        "a model bigger than this machine",
        "tv.trace(step, batch, fake=True).memory()",
        "guides/bigger_than_the_machine",
        "torch-vis trace --hf bert --fake --backward",
    ),
    Task(
        "what my refactor changed, and where the numbers part",
        "print(tv.compare(before, after).differences())",
        "guides/refactor_changed_numbers",
        "torch-vis compare old.py:make new.py:make --input 2x8 --numbers",
    ),
    Task(
        "architecture checks in CI",
        "assert tv.compare(before, after).same",
        "guides/checks_in_ci",
        "torch-vis compare old.tvz new.tvz",
    ),
    Task(
        "where the NaN is born",
        "t.health().nan_origin",
        "guides/where_is_the_nan_born",
        "torch-vis report health net.py:make --input 2x8 --backward",
    ),
    Task("how gradients flow", "t.gradients()", "guides/where_is_the_nan_born"),
    Task(
        "a figure for a paper",
        't.figure("matplotlib", depth=1).savefig("model.pdf")',
        "guides/figure_for_a_paper",
        "torch-vis export run.tvz -o run.svg",
    ),
    Task(
        "activations of real calls",
        'with tv.live(model, keep="layers.1") as run: model(x)',
        "guides/activations_of_a_data_set",
    ),
    Task(
        "activations of a data set",
        'tv.extract(model, loader, keep="layers.1", to="acts/")',
        "guides/activations_of_a_data_set",
        "torch-vis extract net.py:make --loader net.py:batches --keep fc --to acts",
    ),
    Task(
        "ablate, patch or steer",
        't.run(x, replace={"layers.1": tv.edit.zero()}).output',
        "guides/ablate_and_patch",
    ),
    Task(
        "which layer, position or head it is",
        't.sweep("layers.*", tv.edit.zero(), measure=lambda y: y.sum()).figure()',
        "guides/activations_of_a_data_set",
    ),
    Task("what a selector selects", 'print(t.select("class:Linear & layers.1.**"))', "workbench"),
    Task(
        "which edges and paths matter: path patching",
        "t.attribute_edges(lambda y: y.sum(), x2)",
        "guides/ablate_and_patch",
    ),
    Task(
        "loops and branches of the run",
        "print(t.loops(), t.branches())",
        "workbench",
        "torch-vis report loops run.tvz",
    ),
    Task(
        "the receptive field of a value, proved",
        't.receptive_field("layers.1[0, 0]").box',
        "workbench",
    ),
    Task(
        "attribution, which part of the input it was: saliency, integrated gradients, Grad-CAM",
        't.attribute("integrated_gradients", target=(-1, 0))',
        "guides/attribution",
        "torch-vis report attribute net.py:make --input 2x8 --target 1",
    ),
    Task("attention weights, also where they are fused", "t.attention().figure()", "guides/attribution"),
    Task(
        "what the model would say after each layer: the logit lens",
        't.logit_lens(at="layers.*")',
        "guides/attribution",
    ),
    Task("how much each operation contributed", "t.relevance(target=0)", "guides/attribution"),
    Task(
        "what breaks under torch.compile",
        'print(tv.trace(model, x, via="dynamo").breaks)',
        "guides/torch_compile",
        "torch-vis breaks net.py:make --input 2x8",
    ),
    Task(
        "an unmodified training script",
        "",
        "guides/trainer_script",
        "torch-vis run train.py",
    ),
    Task(
        "every n-th step of a long training",
        "with tv.record(model) as t: step(batch)",
        "guides/long_training",
    ),
    Task(
        "someone else's checkpoint",
        'tv.explore_model("weights.pth")',
        "guides/someone_elses_checkpoint",
        "torch-vis summary weights.pth",
    ),
    Task("what one rank of many says to the others", "t.communication()", "everything"),
    Task(
        "a file for Netron, Perfetto, Model Explorer, pandas",
        't.save("run.onnx")',
        "everything",
        "torch-vis export run.tvz -o run.onnx",
    ),
)


class TaskList(tuple[Task, ...]):
    """Some of the tasks, shown as text."""

    def __repr__(self) -> str:
        lines = ["t is a trace: t = tv.trace(model, x)"]
        for task in self:
            lines += ["", task.want]
            lines += [f"    {task.call}"] if task.call else []
            lines += [f"    $ {task.command}"] if task.command else []
            lines.append(f"    docs/{task.page}")
        return "\n".join(lines)


def tasks(about: str | None = None) -> TaskList:
    """The tasks that have these words, in what is wanted, in the call or in the command; without any, all.

    >>> tasks("nan")
    t is a trace: t = tv.trace(model, x)
    <BLANKLINE>
    where the NaN is born
        t.health().nan_origin
        $ torch-vis report health net.py:make --input 2x8 --backward
        docs/guides/where_is_the_nan_born
    """
    words = _words(about or "")
    result = TaskList(
        task for task in TASKS if all(any(_stem(word) in part for part in _all(task)) for word in words)
    )
    if not result:
        known = {word for task in TASKS for word in _words(task.want) if len(word) > 3}
        raise no_match("task about", about or "", known)
    return result


def _all(task: Task) -> list[str]:
    return _words(" ".join((task.want, task.call, task.command)))


def _stem(word: str) -> str:
    """A word as it begins in the singular too."""
    return word.removesuffix("s") if len(word) > 3 else word


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def markdown(rows: Iterable[Task] = TASKS, *, root: str = "docs/") -> str:
    """The table as Markdown, its pages below ``root``.

    >>> print(markdown([Task("see", "t.show()", "start/index")]))
    | you want | you call | |
    |---|---|---|
    | see | `t.show()` | [page](docs/start/index.md) |
    """
    lines = ["| you want | you call | |", "|---|---|---|"]
    for row in rows:
        lines.append(f"| {row.want} | `{row.call or row.command}` | [page]({root}{row.page}.md) |")
    return "\n".join(lines)
