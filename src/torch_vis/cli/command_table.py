"""The table of commands: the name, the file and one line on what it is for."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

PROGRAM = "torch-vis"


class Command(NamedTuple):
    """One command: its module and its purpose."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "run": Command("torch_vis.cli.commands.run", "run a script as it is, and trace one step of its training"),
    "trace": Command("torch_vis.cli.commands.trace", "trace a model on made-up inputs, and save the trace"),
    "summary": Command("torch_vis.cli.commands.summary", "print the module tree of a trace or a model"),
    "report": Command(
        "torch_vis.cli.commands.report", "print a report of a trace or a model: memory, time, latency …"
    ),
    "explore": Command("torch_vis.cli.commands.explore", "walk through a trace or a model in the terminal"),
    "show": Command("torch_vis.cli.commands.show", "open the page of a trace or a model in the browser"),
    "compare": Command("torch_vis.cli.commands.compare", "say in what two traces or models differ"),
    "check": Command("torch_vis.cli.commands.check", "prove a trace: replay it and compare bit for bit"),
    "export": Command("torch_vis.cli.commands.export", "write a trace or a model as a file for another tool"),
    "join": Command("torch_vis.cli.commands.join", "join the files of several ranks, and say if they agree"),
    "fit": Command(
        "torch_vis.cli.commands.fit",
        "say which layouts of a training fit on many ranks, and which is fastest",
    ),
    "extract": Command(
        "torch_vis.cli.commands.extract", "write a model's activations over many samples to a folder"
    ),
    "breaks": Command(
        "torch_vis.cli.commands.breaks", "list the graph breaks of torch.compile, with lines and reasons"
    ),
    "captures": Command(
        "torch_vis.cli.commands.captures", "put eager, fx, export, Dynamo and AOT side by side"
    ),
    "doctor": Command(
        "torch_vis.cli.commands.doctor", "say what is installed, what is missing, and the pip line"
    ),
    "demo": Command(
        "torch_vis.cli.commands.demo", "trace and prove a vision model and a transformer, and open their page"
    ),
    "completion": Command("torch_vis.cli.completion", "print the completion script for a shell"),
}


def load(name: str) -> Any:
    """The module of a command: ``add_options``, ``EXAMPLES`` and ``run``."""
    return import_module(COMMANDS[name].module)
