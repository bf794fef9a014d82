"""Print the completion script of a shell, to be read by it when it starts."""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from torch_vis.cli.command_table import COMMANDS, PROGRAM
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser, parser_of

EXAMPLES = (
    ("for bash; with > at the end, into a file that .bashrc sources", "torch-vis completion bash"),
    ("for zsh, into a folder of its $fpath as _torch-vis", "torch-vis completion zsh"),
)
SHELLS = ("bash", "zsh", "fish")


TAKES = {
    "output": "files", "against": "targets", "folder": "files", "timm": "timm", "torchvision": "torchvision",
    "hf": "hf",
}  # fmt: skip
"""What an option takes that a shell can complete: files, files and models in them, or names of a kind."""


def add_options(parser: Parser) -> None:
    """Which shell."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read it")
    parser.add_argument("--names", choices=KINDS, help=argparse.SUPPRESS)  # for the scripts themselves
    parser.add_argument("--begun", default="", help=argparse.SUPPRESS)


def run(options: Any, out: Output) -> int:
    """Print the script."""
    if options.names:
        result = names(options.names, options.begun)
        out.give({"names": result}, "\n".join(result))
        return 0
    script = {"bash": bash, "zsh": zsh, "fish": fish}[options.shell]()
    out.give({"shell": options.shell, "script": script}, script)
    return 0


def _actions(command: str) -> list[argparse.Action]:
    """The options of a command."""
    return [
        action
        for action in parser_of(command)._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    ]


def _takes(action: argparse.Action) -> str:
    """What an option takes: nothing, one of a list, something that can be completed, or anything."""
    if action.nargs == 0:
        return "nothing"
    return "choice" if action.choices else TAKES.get(action.dest, "anything")


def _words(command: str) -> str:
    return " ".join(word for action in _actions(command) for word in action.option_strings)


def _by_kind() -> dict[str, list[argparse.Action]]:
    """Every option of any command once, by what it takes."""
    result: dict[str, dict[str, argparse.Action]] = {}
    for command in COMMANDS:
        for action in _actions(command):
            result.setdefault(_takes(action), {}).setdefault(action.option_strings[-1], action)
    return {kind: list(actions.values()) for kind, actions in result.items()}


def _patterns(actions: list[argparse.Action]) -> str:
    return "|".join(dict.fromkeys(word for action in actions for word in action.option_strings))


def _choices(action: argparse.Action) -> str:
    return " ".join(map(str, action.choices or ()))


# What completes names of models and files in bash: it asks the program, which knows those of libraries and of files.
BASH_FUNCTIONS = f"""\
_torch_vis_lines() {{
    local IFS=$'\\n'
    COMPREPLY=($1)
}}
_torch_vis_names() {{
    _torch_vis_lines "$({PROGRAM} completion bash --names "$1" --begun "$word" 2>/dev/null)"
}}
_torch_vis_targets() {{
    local place=""
    if [ "$word" = ":" ]; then
        place="$before:"
        word=""
    elif [ "$before" = ":" ]; then
        place="${{COMP_WORDS[COMP_CWORD-2]}}:"
    fi
    if [ -n "$place" ] || [[ "$word" == *.py:* ]]; then
        _torch_vis_lines "$({PROGRAM} completion bash --names target --begun "$place$word" 2>/dev/null)"
        COMPREPLY=("${{COMPREPLY[@]#"$place"}}")
    else
        _torch_vis_lines "$(compgen -f -- "$word")"
    fi
}}"""


def bash() -> str:
    """Commands first, then the options of the command, what an option takes, and else files and models in them.

    After the script that ``run`` is to run, everything is the script's own.
    """
    kinds = _by_kind()
    options = "\n".join(f'        {name}) options="{_words(name)}" ;;' for name in COMMANDS)
    choices = "\n".join(
        f'        {_patterns([action])}) COMPREPLY=($(compgen -W "{_choices(action)}" -- "$word")); return ;;'
        for action in kinds["choice"]
    )
    named = "\n".join(
        f"        {_patterns(kinds[kind])}) _torch_vis_names {kind}; return ;;" for kind in KINDS[:3]
    )
    taking = _patterns([action for kind, actions in kinds.items() if kind != "nothing" for action in actions])
    return f"""\
{BASH_FUNCTIONS}
_torch_vis() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" options="" at
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} --help --version" -- "$word"))
        return
    fi
    if [ "${{COMP_WORDS[1]}}" = run ]; then
        for ((at = 2; at < COMP_CWORD; at++)); do
            case "${{COMP_WORDS[at]}}" in
                -m) [ "$at" -lt "$((COMP_CWORD - 1))" ] && _torch_vis_lines "$(compgen -f -- "$word")" && return ;;
                {taking}) at=$((at + 1)) ;;
                -*) ;;
                *) _torch_vis_lines "$(compgen -f -- "$word")"; return ;;
            esac
        done
    fi
    case "$before" in
{choices}
{named}
        {_patterns(kinds["files"])}) _torch_vis_lines "$(compgen -f -- "$word")"; return ;;
        {_patterns(kinds["anything"])}) COMPREPLY=(); return ;;
    esac
    case "${{COMP_WORDS[1]}}" in
        completion) COMPREPLY=($(compgen -W "{" ".join(SHELLS)}" -- "$word")); return ;;
{options}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
        *) _torch_vis_targets ;;
    esac
}}
complete -o filenames -F _torch_vis {PROGRAM}"""


def zsh() -> str:
    """The same for zsh, with what each thing is for."""
    commands = "\n".join(
        f"        {_quoted(f'{name}:{_escaped(row.summary)}')}" for name, row in COMMANDS.items()
    )
    cases = []
    for name in COMMANDS:
        specs = [
            _quoted(f"*{word}[{_escaped(action.help)}]{_zsh_value(action)}")
            for action in _actions(name)
            for word in action.option_strings
        ]
        rest = (
            f"'1:shell:({' '.join(SHELLS)})'"
            if name == "completion"
            else "'*:file or model:_torch_vis_targets'"
        )
        alone = ""
        if name == "run":  # what follows the script is the script's
            alone, rest = " -A '-*'", "'1:script:_files' '*::argument of the script:_files'"
        cases.append(f"        {name}) _arguments -S{alone} {' '.join(specs)} {rest} ;;")
    body = "\n".join(cases)
    return f"""\
#compdef {PROGRAM}
_torch_vis_names() {{
    compadd -- ${{(f)"$({PROGRAM} completion zsh --names $1 --begun $PREFIX 2>/dev/null)"}}
}}
_torch_vis_targets() {{
    if [[ $PREFIX == *.py:* ]]; then
        _torch_vis_names target
    else
        _files
    fi
}}
_torch_vis() {{
    local -a commands
    commands=(
{commands}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
{body}
    esac
}}
compdef _torch_vis {PROGRAM}"""


def _zsh_value(action: argparse.Action) -> str:
    """What follows an option, in zsh's way of writing it."""
    kind = _takes(action)
    label = _escaped(str(action.metavar or action.dest))
    if kind == "nothing":
        return ""
    if kind == "choice":
        return f":{label}:({_choices(action)})"
    if kind == "anything":
        return f":{label}: "
    if kind in KINDS:
        return f":{label}:{{_torch_vis_names {kind}}}"
    return f":{label}:{'_files' if kind == 'files' else '_torch_vis_targets'}"


def fish() -> str:
    """The same for fish."""
    lines = [
        f"complete -c {PROGRAM} -n __fish_use_subcommand -f -a {name} -d {_fish_quoted(row.summary)}"
        for name, row in COMMANDS.items()
    ]
    lines.append(
        f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from completion' -f -a '{' '.join(SHELLS)}'"
    )
    for name in COMMANDS:
        for action in _actions(name):
            words = [
                f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}"
                for word in action.option_strings
            ]
            seen = f"'__fish_seen_subcommand_from {name}'"
            lines.append(
                f"complete -c {PROGRAM} -n {seen} {' '.join(words)}{_fish_value(action)} -d {_fish_quoted(action.help)}"
            )
    return "\n".join(lines)


def _fish_value(action: argparse.Action) -> str:
    kind = _takes(action)
    if kind == "nothing":
        return ""
    if kind == "choice":
        return f" -x -a '{_choices(action)}'"
    if kind in KINDS:
        return f" -x -a '({PROGRAM} completion fish --names {kind} --begun (commandline -ct))'"
    return " -x" if kind == "anything" else " -r -F"


def _escaped(text: str | None) -> str:
    """Help as zsh reads it: what means something in a completion has a backslash before it."""
    return "".join(f"\\{letter}" if letter in "[]:\\" else letter for letter in text or "")


def _quoted(text: str) -> str:
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"


def _fish_quoted(text: str | None) -> str:
    escaped = (text or "").replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


KINDS = ("timm", "torchvision", "hf", "target")
REGISTERED = re.compile(r"@register_model\b[^\n]*\n(?:@[^\n]*\n)*def (\w+)")


def names(kind: str, begun: str) -> list[str]:
    """The names of a kind that begin so."""
    if kind == "target":
        result = _in_file(begun)
    elif kind == "hf":
        result = _folders("transformers")
    else:
        result = _registered(kind)
    return sorted(name for name in set(result) if name.startswith(begun))


def _registered(library: str) -> Iterator[str]:
    """The functions that a library of models has registered."""
    for folder, _, files in os.walk(_models(library)):
        for name in files:
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8", errors="ignore") as file:
                    yield from REGISTERED.findall(file.read())


def _folders(library: str) -> Iterator[str]:
    """The kinds of models that a library has a folder for."""
    folder = _models(library)
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if os.path.isfile(os.path.join(folder, name, f"configuration_{name}.py")):
            yield name.replace("_", "-") if name.startswith("xlm") else name


def _models(library: str) -> str:
    spec = find_spec(library)  # which looks for it and does not import it
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return os.path.join(places[0], "models") if places else ""


def _in_file(begun: str) -> Iterator[str]:
    """``net.py:`` and the functions, classes and models that stand at the outermost level of it."""
    path, colon, _ = begun.rpartition(":")
    if not colon or not path.endswith(".py") or not os.path.isfile(path):
        return
    with open(path, encoding="utf-8", errors="ignore") as file:
        try:
            parsed = ast.parse(file.read())
        except SyntaxError:
            return
    for node in parsed.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield f"{path}:{node.name}"
