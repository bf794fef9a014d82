"""The table of tasks: what people want to do, the call and the command for it, and the page of the documentation.

``t.help()`` and ``torch-vis help WORD`` print it, the README and the start page show it, and tests make every call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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
    also: str = ""
    """Other words that people look for it by."""


TASKS: tuple[Task, ...] = (
    Task(
        "what is in this model: modules, shapes, parameters, FLOPs",
        "print(tv.trace(model, x))",
        "guides/what_is_in_this_model",
        "torch-vis summary net.py:make --input 2x8",
        also="architecture layers count size macs torchinfo visualize visualise",
    ),
    Task(
        "the whole run as a page",
        "t.show()",
        "start/index",
        "torch-vis show run.tvz",
        also="html browser interactive heatmap view visualize visualise jupyter notebook",
    ),
    Task(
        "a proof that the graph is right",
        "t.check()",
        "how/proof",
        "torch-vis check net.py:make --input 2x8",
        also="verify validate correct replay",
    ),
    Task("a training step: loss, backward, optimizer", "tv.trace(step, batch)", "guides/slow_step"),
    Task(
        "why my step is slow",
        "tv.trace(step, batch, repeat=10).time()",
        "guides/slow_step",
        "torch-vis report time run.tvz",
        also="profile profiler speed fast performance bottleneck throughput duration timing",
    ),
    Task(
        "why memory runs out, and what to checkpoint",
        't.memory(); tv.advise.checkpointing(model, x, memory="8 GiB")',
        "guides/out_of_memory",
        "torch-vis report memory run.tvz",
        also="oom out of memory vram allocator leak activation recompute checkpointing",
    ),
    Task(
        "whether it fits on that GPU, and how fast it is there",
        't.memory().peak_bytes; t.latency(hardware="A100")',
        "guides/does_it_fit",
        "torch-vis report latency run.tvz --hardware A100",
        also="vram cuda device throughput estimate prediction",
    ),
    Task(
        "a training on more machines than there are, and how long its step takes",
        'tv.simulate(make, batch, mesh={"dp": 16, "tp": 8}, hardware="H100").step_time()',
        "guides/many_ranks",
        "torch-vis run --world dp=16,tp=8 train.py",
        also="distributed ddp fsdp parallel pipeline cluster nodes simulation",
    ),
    Task(
        "which layout of a training fits on many GPUs",
        'tv.fit(make, batch, world=1024, memory="80 GiB", tp=(1, 2, 4, 8))',
        "guides/many_ranks",
        "torch-vis fit parallel.py:make --world 64 --memory 80GiB",
        also="distributed ddp fsdp parallel sharding pipeline",
    ),
    Task(
        "the largest batch that fits",
        'tv.advise.batch_size(model, x, memory="16 GiB", backward=True)',
        "guides/does_it_fit",
        also="oom out of memory vram",
    ),
    Task(
        "a model bigger than this machine",
        "tv.trace(step, batch, fake=True).memory()",
        "guides/bigger_than_the_machine",
        "torch-vis trace --hf bert --fake --backward",
        also="meta huge large llm oom",
    ),
    Task(
        "what my refactor changed, and where the numbers part",
        "print(tv.compare(before, after).differences())",
        "guides/refactor_changed_numbers",
        "torch-vis compare old.py:make new.py:make --input 2x8 --numbers",
        also="regression reproduce mismatch precision tolerance bf16 fp16 numerics",
    ),
    Task(
        "architecture checks in CI",
        "assert tv.compare(before, after).same",
        "guides/checks_in_ci",
        "torch-vis compare old.tvz new.tvz",
        also="tests pytest regression golden",
    ),
    Task(
        "where the NaN is born",
        "t.health().nan_origin",
        "guides/where_is_the_nan_born",
        "torch-vis report health net.py:make --input 2x8 --backward",
        also="infinity overflow anomaly debug diverges",
    ),
    Task(
        "how gradients flow",
        "t.gradients()",
        "guides/where_is_the_nan_born",
        also="vanishing exploding dead units norms clipping",
    ),
    Task(
        "a figure for a paper",
        't.figure("matplotlib", depth=1).savefig("model.pdf")',
        "guides/figure_for_a_paper",
        "torch-vis export run.tvz -o run.svg",
        also="latex diagram picture draw plot png graphviz visualize visualise",
    ),
    Task(
        "activations of real calls",
        'with tv.live(model, keep="layers.1") as run: model(x)',
        "guides/activations_of_a_data_set",
        also="hooks features embeddings hidden states intermediate generate cache probe",
    ),
    Task(
        "activations of a data set",
        'tv.extract(model, loader, keep="layers.1", to="acts/")',
        "guides/activations_of_a_data_set",
        "torch-vis extract net.py:make --loader net.py:batches --keep fc --to acts",
        also="hooks features embeddings hidden states intermediate dump probe",
    ),
    Task(
        "ablate, patch or steer",
        't.run(x, replace={"layers.1": tv.edit.zero()}).output',
        "guides/ablate_and_patch",
        also="ablation intervention intervene edit hooks causal replace",
    ),
    Task(
        "which layer, position or head it is",
        't.sweep("layers.*", tv.edit.zero(), measure=lambda y: y.sum()).figure()',
        "guides/activations_of_a_data_set",
        also="ablation causal tracing importance",
    ),
    Task(
        "what a selector selects",
        'print(t.select("class:Linear & layers.1.**"))',
        "workbench",
        also="query filter pattern",
    ),
    Task(
        "which edges and paths matter: path patching",
        "t.attribute_edges(lambda y: y.sum(), x2)",
        "guides/ablate_and_patch",
        also="circuits causal",
    ),
    Task(
        "loops and branches of the run",
        "print(t.loops(), t.branches())",
        "workbench",
        "torch-vis report loops run.tvz",
        also="control flow recurrent while repeated",
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
        also="captum explain explanation explainability interpretability heatmap occlusion smoothgrad",
    ),
    Task(
        "attention weights, also where they are fused",
        "t.attention().figure()",
        "guides/attribution",
        also="transformer flash sdpa",
    ),
    Task(
        "what the model would say after each layer: the logit lens",
        't.logit_lens(at="layers.*")',
        "guides/attribution",
        also="interpretability unembedding",
    ),
    Task(
        "how much each operation contributed",
        "t.relevance(target=0)",
        "guides/attribution",
        also="lrp dlbacktrace backtrace explain explanation",
    ),
    Task(
        "what breaks under torch.compile",
        'print(tv.trace(model, x, via="dynamo").breaks)',
        "guides/torch_compile",
        "torch-vis breaks net.py:make --input 2x8",
        also="inductor triton kernels recompile",
    ),
    Task(
        "an unmodified training script",
        "",
        "guides/trainer_script",
        "torch-vis run train.py",
        also="trainer huggingface lightning accelerate deepspeed finetuning",
    ),
    Task(
        "every n-th step of a long training",
        "with tv.record(model) as t: step(batch)",
        "guides/long_training",
        also="monitor logging tensorboard wandb callback",
    ),
    Task(
        "someone else's checkpoint",
        'tv.explore_model("weights.pth")',
        "guides/someone_elses_checkpoint",
        "torch-vis summary weights.pth",
        also="safetensors state_dict ckpt bin tui terminal textual",
    ),
    Task(
        "what one rank of many says to the others",
        "t.communication()",
        "everything",
        also="collectives nccl allreduce distributed ddp fsdp",
    ),
    Task(
        "a file for Netron, Perfetto, Model Explorer, pandas",
        't.save("run.onnx")',
        "everything",
        "torch-vis export run.tvz -o run.onnx",
        also="tensorboard json csv graphml",
    ),
)

# Found by their words, but not in the table that the README shows.
MORE_TASKS: tuple[Task, ...] = (
    Task(
        "what could be one kernel, and the bytes that saves: fusion",
        "t.fusion()",
        "everything",
        "torch-vis report fusion run.tvz",
    ),
    Task(
        "how near the peak of a machine each operation is: roofline",
        't.roofline(hardware="A100")',
        "everything",
        "torch-vis report roofline run.tvz --hardware A100",
        also="compute bound intensity utilization utilisation mfu",
    ),
    Task(
        "a program in parts, each for a machine: partition",
        "t.partition(max_operations=50)",
        "everything",
        "torch-vis report partition run.tvz --max-operations 50",
        also="split accelerator hardware mapping",
    ),
    Task(
        "which weights can be int8, fp8 or int4: quantization",
        "tv.advise.quantization(model, x)",
        "everything",
        also="quantize quantise compress low precision",
    ),
    Task(
        "which units can be cut: pruning",
        "tv.advise.pruning(model, x).model",
        "everything",
        also="prune sparsity compress slim",
    ),
    Task(
        "which front-ends can capture a model: fx, export, Dynamo, AOT, ONNX",
        "print(tv.compare_captures(model, x))",
        "guides/torch_compile",
        "torch-vis captures net.py:make --input 2x8",
    ),
    Task("a trace in a notebook", "t", "start/notebook", also="jupyter colab ipython"),
    Task(
        "a walk through a model in the terminal",
        "tv.explore_model(model)",
        "interfaces/explorer",
        "torch-vis explore run.tvz",
        also="tui textual explorer",
    ),
    Task(
        "what is installed, and what is missing",
        "tv.doctor()",
        "start/index",
        "torch-vis doctor",
        also="extras versions",
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

    Where none has them, those that people look for by these words: ``tasks("oom")`` is about memory.

    >>> tasks("nan")
    t is a trace: t = tv.trace(model, x)
    <BLANKLINE>
    where the NaN is born
        t.health().nan_origin
        $ torch-vis report health net.py:make --input 2x8 --backward
        docs/guides/where_is_the_nan_born
    """
    words = _words(about or "")
    everything = (*TASKS, *MORE_TASKS)
    result = _having(words, everything, _own) or _having(words, everything, _all)
    if not result:
        known = {word for task in everything for word in _words(f"{task.want} {task.also}") if len(word) > 3}
        raise no_match("task about", about or "", known)
    return result


def _having(words: list[str], rows: Iterable[Task], texts_of: Callable[[Task], list[str]]) -> TaskList:
    """The tasks of which something is said that begins with each of the words."""
    return TaskList(
        task
        for task in rows
        if all(any(part.startswith(_stem(word)) for part in texts_of(task)) for word in words)
    )


def _own(task: Task) -> list[str]:
    return _words(" ".join((task.want, task.call, task.command)))


def _all(task: Task) -> list[str]:
    return [*_own(task), *_words(task.also)]


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
