"""Print the completion script of a shell, to be read by it when it starts."""

from __future__ import annotations

import argparse
from typing import Any

from torch_vis.cli.commands import COMMANDS, PROGRAM
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser, parser_of

EXAMPLES = (
    ("for bash; with > at the end, into a file that .bashrc sources", "torch-vis completion bash"),
    ("for zsh, into a folder of its $fpath as _torch-vis", "torch-vis completion zsh"),
)
SHELLS = ("bash", "zsh", "fish")


def add_options(parser: Parser) -> None:
    """Which shell."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read it")


def run(options: Any, out: Output) -> int:
    """Print the script."""
    script = {"bash": bash, "zsh": zsh, "fish": fish}[options.shell]()
    out.give({"shell": options.shell, "script": script}, script)
    return 0


def _actions(command: str) -> list[argparse.Action]:
    """The options of a command."""
    return [action for action in parser_of(command)._actions if action.option_strings]


def _words(command: str) -> str:
    return " ".join(word for action in _actions(command) for word in action.option_strings)


def _choices() -> dict[str, str]:
    """What may follow an option, where that is a short list."""
    return {
        word: " ".join(map(str, action.choices))
        for command in COMMANDS
        for action in _actions(command)
        if action.choices
        for word in action.option_strings
    }


def bash() -> str:
    """Commands first, then the options of the command, what an option takes, and else files."""
    options = "\n".join(f'        {name}) options="{_words(name)}" ;;' for name in COMMANDS)
    choices = "\n".join(
        f'        {word}) COMPREPLY=($(compgen -W "{words}" -- "$word")); return ;;'
        for word, words in _choices().items()
    )
    return f"""\
_torch_vis() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" options=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} --help --version" -- "$word"))
        return
    fi
    case "$before" in
{choices}
    esac
    case "${{COMP_WORDS[1]}}" in
        completion) COMPREPLY=($(compgen -W "{" ".join(SHELLS)}" -- "$word")); return ;;
{options}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
        *) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}}
complete -o filenames -F _torch_vis {PROGRAM}"""


def zsh() -> str:
    """The same for zsh, with what each thing is for."""
    commands = "\n".join(f"        {_quoted(f'{name}:{row.summary}')}" for name, row in COMMANDS.items())
    cases = []
    for name in COMMANDS:
        specs = []
        for action in _actions(name):
            takes = (
                ""
                if action.nargs == 0
                else f":value:({' '.join(action.choices)})"
                if action.choices
                else ":value:_files"
            )
            for word in action.option_strings:
                specs.append(_quoted(f"*{word}[{_bare(action.help)}]{takes}"))
        rest = f"1:shell:({' '.join(SHELLS)})" if name == "completion" else "*:file:_files"
        cases.append(f"        {name}) _arguments -S {' '.join(specs)} '{rest}' ;;")
    body = "\n".join(cases)
    return f"""\
#compdef {PROGRAM}
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


def fish() -> str:
    """The same for fish."""
    lines = [
        f"complete -c {PROGRAM} -n __fish_use_subcommand -f -a {name} -d {_quoted(row.summary)}"
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
            takes = (
                ""
                if action.nargs == 0
                else f" -x -a '{' '.join(action.choices)}'"
                if action.choices
                else " -r"
            )
            seen = f"'__fish_seen_subcommand_from {name}'"
            lines.append(
                f"complete -c {PROGRAM} -n {seen} {' '.join(words)}{takes} -d {_quoted(_bare(action.help))}"
            )
    return "\n".join(lines)


def _bare(text: str | None) -> str:
    """Help without the characters that mean something in a completion."""
    return "".join(letter for letter in text or "" if letter not in "[]:'\"`\\$")


def _quoted(text: str) -> str:
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"
