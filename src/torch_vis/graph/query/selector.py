"""The selector language: one text for modules, operations, tensors, heads and edges, wherever a part of a run is named.

::

    h.5.attn            a module by its path, or by the end of one that no other has; * stands for one part, ** for any
    h.5  h.5:2  h.5#7   every call; the third one within each call of the model (from 0); the eighth of the whole run
    h.5.attn.input      what it was given (.input.1, .input.mask: one argument), .output what it returned, .grad what
                        came back to that in backward; .output.1, .output.logits: one part of it
    h.5[:, -1]          a slice;  h.5.attn[head=3]: an attention head, in front of the output projection
    attn/softmax:0      the first softmax that runs in each call of attn;  addmm: every one;  fc/addmm#5: node 5
    h.3 -> h.5.attn     what h.5.attn reads of h.3: one edge of the graph
    class:Linear  op:conv*  phase:backward  file:net.py:42  dtype:float32  flag:random  /regular expression/
    a & b   a | b   ~a  (a | b) & c; two words side by side are taken together as with &

In an expression that names an operation (``op:``, ``phase:``, ``file:``, ``dtype:``, ``flag:``, ``a/b``), modules stand
for the operations that run in them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from torch_vis.errors import NoMatch, UsageError, no_match, shortened

# what a filter names: a module, or an operation
MODULE_FIELDS = ("path", "class", "regex")
OPERATION_FIELDS = ("op", "phase", "dtype", "flag", "file")
# more of them than a run has, and too many to be listed
FEW_OPERATORS = 500
PORTS = ("input", "output", "grad")
DEEPEST = 100  # parentheses and negations in each other
LONGEST = 100_000  # characters
MOST = 10_000  # parts that (a | b) & (c | d) comes to
LISTED = 4  # candidates that a message names


class Atom(NamedTuple):
    """One name, filter or predicate of a selector, as it was written."""

    field: str
    """``"name"`` (a path, or else an operator or class), a word before a colon, ``"regex"`` or ``"predicate"``."""
    text: str
    test: Callable[[Any], Any] | None = None


class CallsOf(NamedTuple):
    """Calls of modules, by the modules' numbers in a table."""

    modules: frozenset[int]
    call: int | None = None
    """Which call within one call of the model; None for each."""
    number: int | None = None
    """Which call of the whole run."""


class Operations(NamedTuple):
    """Operations by the name of their operator, in calls of modules or anywhere."""

    op: str
    inside: CallsOf | None = None
    nth: int | None = None
    """Which of them within one call of the module, or of the model; None for each."""
    node: int | None = None
    """The number of a node."""


class Both(NamedTuple):
    """What all parts select."""

    parts: tuple[Any, ...]


class Either(NamedTuple):
    """What any part selects."""

    parts: tuple[Any, ...]


class Without(NamedTuple):
    """What the part does not select."""

    part: Any


Term = Atom | CallsOf | Operations | Both | Either | Without


@dataclass(frozen=True)
class Branch:
    """One alternative of a selector: which calls or operations, and what of them."""

    term: Term
    port: str = ""
    """``"input"``, ``"output"``, ``"grad"``; empty where none was written, which means the output."""
    leaf: str = ""
    """Which argument, or which part of what was returned."""
    index: tuple[Any, ...] | None = None
    """A slice of the tensor."""
    head: Any = None
    """An attention head, or a slice of heads."""
    reader: Term | None = None
    """Of an edge, who reads."""

    @property
    def suffix(self) -> str:
        """What is added to the name of a call: port, leaf and slice."""
        text = f".{self.port}" if self.port else ""
        text += f".{self.leaf}" if self.leaf else ""
        if self.head is not None:
            text += f"[head={show_index((self.head,))}]"
        return text + (f"[{show_index(self.index)}]" if self.index is not None else "")

    @property
    def of_operations(self) -> bool:
        """Whether it selects operations and not calls of modules; known once its names are resolved."""
        return is_about_operations(self.term)


@dataclass(frozen=True)
class Selector:
    """Parts of a run, by name, kind and place; combine them with ``&``, ``|`` and ``~``.

    >>> from torch_vis.graph.query.selector import selector
    >>> both = selector("h.*.attn") & ~selector("class:Linear")
    >>> print(both)
    (h.*.attn) & (~(class:Linear))
    """

    branches: tuple[Branch, ...]
    text: str

    def __and__(self, other: Any) -> Selector:
        other = selector(other)
        pairs = [(a, b) for a in self.branches for b in other.branches]
        return Selector(tuple(_joined(a, b) for a, b in pairs), f"({self.text}) & ({other.text})")

    def __or__(self, other: Any) -> Selector:
        other = selector(other)
        return Selector(self.branches + other.branches, f"({self.text}) | ({other.text})")

    def __invert__(self) -> Selector:
        if any(branch != Branch(branch.term) for branch in self.branches):
            raise UsageError(f"~ takes calls or operations; {shortened(self.text)!r} names a part of one")
        parts = tuple(branch.term for branch in self.branches)
        return Selector((Branch(Without(parts[0] if len(parts) == 1 else Either(parts))),), f"~({self.text})")

    def __str__(self) -> str:
        return self.text


def selector(wanted: Any) -> Selector:
    """The selector that a text, a predicate or a selector stands for.

    >>> branch = selector("h.5.attn:2.input.mask[:, 0]").branches[0]
    >>> branch.term.text, branch.index
    ('h.5.attn:2.input.mask', (slice(None, None, None), 0))
    """
    if isinstance(wanted, Selector):
        return wanted
    if isinstance(wanted, str):
        if len(wanted) > LONGEST:
            raise UsageError(
                f"a selector has at most {LONGEST:,} characters, and {shortened(wanted)!r} has {len(wanted):,}"
            )
        return _parsed(wanted)
    if callable(wanted):
        name = getattr(wanted, "__name__", type(wanted).__name__)
        return Selector((Branch(Atom("predicate", name, test=wanted)),), name)
    raise UsageError(
        f"a selector is a text such as 'encoder.layer.3', a predicate or a Selector, not {type(wanted).__name__} "
        f"{shortened(repr(wanted))}"
    )


def atoms(term: Term) -> Iterator[Atom | CallsOf | Operations]:
    """Every name, filter and predicate of a term."""
    stack: list[Any] = [term]
    while stack:
        top = stack.pop()
        if isinstance(top, (Both, Either)):
            stack.extend(reversed(top.parts))
        elif isinstance(top, Without):
            stack.append(top.part)
        else:
            yield top


def is_about_operations(term: Term) -> bool:
    """Whether a term names an operation, so that modules in it stand for the operations inside them."""
    return any(
        isinstance(atom, Operations) or (isinstance(atom, Atom) and atom.field in OPERATION_FIELDS)
        for atom in atoms(term)
    )


def evaluate(term: Term, of_atom: Callable[[Any], Any]) -> Any:
    """The value of a term, where atoms have values that can be combined with ``&`` and ``|``.

    A negation is ``value ^ True``, which serves for truth values and for masks.
    """
    if isinstance(term, Without):
        return evaluate(term.part, of_atom) ^ True
    if not isinstance(term, (Both, Either)):
        return of_atom(term)
    values = [evaluate(part, of_atom) for part in term.parts]
    result = values[0]
    for value in values[1:]:
        result = result & value if isinstance(term, Both) else result | value
    return result


def rebuilt(term: Term, of_atom: Callable[[Atom], Term]) -> Term:
    """The term with other atoms."""
    if isinstance(term, Without):
        return Without(rebuilt(term.part, of_atom))
    if isinstance(term, (Both, Either)):
        return type(term)(tuple(rebuilt(part, of_atom) for part in term.parts))
    return of_atom(term) if isinstance(term, Atom) else term


def _joined(a: Branch, b: Branch) -> Branch:
    """Two branches that must both hold; a port, a slice or a reader may be said by one of them."""
    joined: dict[str, Any] = {}
    for name in ("port", "leaf", "index", "head", "reader"):
        ours, theirs = getattr(a, name), getattr(b, name)
        if ours and theirs and ours != theirs:
            raise UsageError(
                f"two selectors joined with & name different parts: {a.suffix!r} and {b.suffix!r}"
            )
        joined[name] = ours if ours not in (None, "") else theirs
    # in one row, so that a long text is no deep term
    parts = a.term.parts if isinstance(a.term, Both) else (a.term,)
    return Branch(Both((*parts, b.term)), **joined)


# ---------------------------------------------------------------- text


@lru_cache(maxsize=512)
def _parsed(text: str) -> Selector:
    return Selector(tuple(_Parser(text).branches()), text.strip())


def _tokens(text: str) -> Iterator[str]:
    """Operators, parentheses and atoms; what is in brackets, quotes or slashes belongs to its atom."""
    at = 0
    while at < len(text):
        letter = text[at]
        if letter.isspace():
            at += 1
        elif text.startswith("->", at):
            yield "->"
            at += 2
        elif letter in "&|~()":
            yield letter
            at += 1
        else:
            start, at = at, _atom_end(text, at)
            yield text[start:at]


def _atom_end(text: str, at: int) -> int:
    if text[at] == "/":  # a regular expression, up to the last slash before a space or the end
        close = re.compile(r"/(?=\s|$|[&|)])").search(text, at + 1)
        if close is None:
            raise UsageError(f"a regular expression ends with a slash: {shortened(text[at:])!r}")
        return close.end()
    while (
        at < len(text)
        and not text[at].isspace()
        and text[at] not in "&|~()"
        and not text.startswith("->", at)
    ):
        close_with = {"[": "]", '"': '"'}.get(text[at])
        if close_with is not None:
            end = text.find(close_with, at + 1)
            if end < 0:
                raise UsageError(f"{text[at]} is not closed in the selector {shortened(text)!r}")
            at = end
        at += 1
    return at


class _Parser:
    """Recursive descent over the tokens of one selector."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(text))
        self.at = 0
        self.depth = 0

    def branches(self) -> list[Branch]:
        if not self.tokens:
            raise UsageError("an empty selector selects nothing; '**' selects every module")
        result = self._either()
        if self.at < len(self.tokens):
            raise UsageError(
                f"{shortened(self._peek())!r} is out of place in the selector {shortened(self.text)!r}"
            )
        return result

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _either(self) -> list[Branch]:
        result = self._edge()
        while self._peek() == "|":
            self.at += 1
            result += self._edge()
        return result

    def _edge(self) -> list[Branch]:
        result = self._both()
        if self._peek() == "->":
            self.at += 1
            readers = self._both()
            if any(branch.port == "grad" or branch.index is not None for branch in readers):
                raise UsageError(
                    f"the reader of an edge is a module or an operation: {shortened(self.text)!r}"
                )
            term = readers[0].term if len(readers) == 1 else Either(tuple(b.term for b in readers))
            result = [replace(branch, reader=term) for branch in result]
        return result

    def _both(self) -> list[Branch]:
        result = self._factor()
        while self._peek() and self._peek() not in ("|", ")", "->"):
            if self._peek() == "&":
                self.at += 1
            other = self._factor()
            if len(result) * len(other) > MOST:
                raise UsageError(f"a selector comes to at most {MOST:,} parts: {shortened(self.text)!r}")
            result = [_joined(a, b) for a in result for b in other]
        return result

    def _factor(self) -> list[Branch]:
        token = self._peek()
        self.at += 1
        if token in ("~", "("):
            self.depth += 1
            if self.depth > DEEPEST:
                raise UsageError(f"a selector is nested at most {DEEPEST} deep: {self.text[:60]!r}…")
            result = self._negated() if token == "~" else self._enclosed()
            self.depth -= 1
            return result
        if token in ("", "&", "|", ")", "->"):
            raise UsageError(f"a name is missing in the selector {shortened(self.text)!r}")
        return [_atom(token)]

    def _negated(self) -> list[Branch]:
        return list((~Selector(tuple(self._factor()), self.text)).branches)

    def _enclosed(self) -> list[Branch]:
        result = self._either()
        if self._peek() != ")":
            raise UsageError(f"( is not closed in the selector {shortened(self.text)!r}")
        self.at += 1
        return result


def _atom(token: str) -> Branch:
    if token.startswith("/"):
        try:
            re.compile(token[1:-1])
        except re.error as error:
            raise UsageError(f"{shortened(token)!r} is no regular expression: {error}") from error
        return Branch(Atom("regex", token[1:-1]))
    field, colon, rest = token.partition(":")
    if colon and field in (*MODULE_FIELDS, *OPERATION_FIELDS) and rest:
        return Branch(Atom(field, rest.strip('"')))
    token, index, head = _without_index(token)
    return Branch(Atom("name", token.strip('"')), index=index, head=head)


def _without_index(token: str) -> tuple[str, tuple[Any, ...] | None, Any]:
    """A name without the slice behind it; brackets after a dot or before more letters are a pattern of letters."""
    head = None
    index: tuple[Any, ...] | None = None
    while token.endswith("]"):
        start = token.rfind("[")
        if start <= 0 or token[start - 1] in "./":
            break
        inside = token[start + 1 : -1]
        if inside.replace(" ", "").startswith("head="):
            (head,) = _index(inside.partition("=")[2], token)
        elif index is None:
            index = _index(inside, token)
        else:
            raise UsageError(f"{shortened(token)!r} has two slices")
        token = token[:start]
    return token, index, head


def _index(text: str, token: str) -> tuple[Any, ...]:
    """The parts of a slice, as Python would have them."""
    parts: list[Any] = []
    for part in text.split(","):
        part = part.strip()
        try:
            if part == "...":
                parts.append(Ellipsis)
            elif ":" in part:
                parts.append(slice(*(int(end) if end.strip() else None for end in part.split(":"))))
            else:
                parts.append(int(part))
        except (ValueError, TypeError):
            raise UsageError(
                f"{shortened(part)!r} in {shortened(token)!r} is no index: numbers, slices such as 2:5, ... and "
                "head=3 are"
            ) from None
    return tuple(parts)


def show_index(index: Iterable[Any]) -> str:
    """A slice as it is written.

    >>> show_index((slice(None), -1, Ellipsis, slice(2, 5)))
    ':, -1, ..., 2:5'
    """

    def show(part: Any) -> str:
        if part is Ellipsis:
            return "..."
        if isinstance(part, slice):
            ends = [part.start, part.stop] + ([part.step] if part.step is not None else [])
            return ":".join("" if end is None else str(end) for end in ends)
        return str(part)

    return ", ".join(map(show, index))


# ---------------------------------------------------------------- names


class ModuleName(NamedTuple):
    """A module that a name can mean: its path and its class."""

    path: str
    type: str


class Named(NamedTuple):
    """What a name turned out to be, and the port and leaf that it ends with."""

    term: Term
    port: str = ""
    leaf: str = ""


CALL = re.compile(r"(?::(?P<call>\d+|\*)|#(?P<number>\d+))$")
PORT = re.compile(r"\.(input|output|grad)(?=$|\.)")


class SelectorNames:
    """What names can mean in one run: its modules and, where they are known, the operators that ran.

    >>> modules = [ModuleName("", "Net"), ModuleName("h.0", "Block"), ModuleName("h.1", "Block")]
    >>> names = SelectorNames(modules, ["aten::relu"])
    >>> names.named("h.1:2.input.mask")
    Named(term=CallsOf(modules=frozenset({2}), call=2, number=None), port='input', leaf='mask')
    >>> names.named("h.0/relu:0").term
    Operations(op='relu', inside=CallsOf(modules=frozenset({1}), call=None, number=None), nth=0, node=None)
    """

    def __init__(
        self,
        modules: Sequence[ModuleName],
        operators: Iterable[str],
        ran_as: Callable[[str], Sequence[str]] = lambda function: (),
        second_paths: Mapping[str, str] | None = None,
    ) -> None:
        self.modules = modules
        # of modules that have several, each further path with the first
        self.second_paths = second_paths or {}
        self._operators = operators
        # the operators that calls of a function of torch's ran, for the error that names none
        self._ran_as = ran_as

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """The names of the operators, made when a name is no module."""
        return tuple(dict.fromkeys(name for op in self._operators for name in operator_names(op)))

    def resolved(self, branch: Branch) -> Branch:
        """A branch whose names are modules and operators; a port that a name ends with is the branch's."""
        ports: list[tuple[str, str]] = []

        def resolve(atom: Atom) -> Term:
            if atom.field == "name":
                named = self.named(atom.text)
                if named.port:
                    ports.append((named.port, named.leaf))
                return named.term
            return self._filtered(atom)

        term = rebuilt(branch.term, resolve)
        if len(set(ports)) > 1:
            raise UsageError(
                f"two names of one selector end differently: {ports[0][0]!r} and {ports[1][0]!r}"
            )
        reader = None if branch.reader is None else rebuilt(branch.reader, resolve)
        port, leaf = ports[0] if ports else (branch.port, branch.leaf)
        return replace(branch, term=term, port=port, leaf=leaf, reader=reader)

    def _filtered(self, atom: Atom) -> Term:
        """The modules that a filter of modules lets through; a filter of operations is checked."""
        if atom.field in ("path", "class"):
            if atom.field == "path":
                chosen = match_paths(atom.text, self.modules)
            else:
                matches = glob_matcher(atom.text)
                chosen = tuple(number for number, row in enumerate(self.modules) if matches(row.type))
            if not chosen:
                choices = [row.path if atom.field == "path" else row.type for row in self.modules]
                raise no_match(
                    f"module {'at' if atom.field == 'path' else 'of class'}", atom.text, filter(None, choices)
                )
            return CallsOf(frozenset(chosen))
        if atom.field == "regex":
            search = re.compile(atom.text).search
            chosen = tuple(number for number, row in enumerate(self.modules) if row.path and search(row.path))
            if not chosen:
                raise no_match(
                    "module path that matches",
                    f"/{atom.text}/",
                    [row.path for row in self.modules if row.path],
                )
            return CallsOf(frozenset(chosen))
        if atom.field == "op":
            return Operations(self.operator(atom.text))
        return atom

    def operator(self, pattern: str) -> str:
        """A pattern of operators that some operator matches."""
        if not any(map(glob_matcher(pattern), self.operators)):
            ran = self._ran_as(pattern)
            if ran:
                listed = ", ".join(map(repr, ran))
                raise NoMatch(f"no operator {pattern!r}; in this run {pattern}() is {listed}")
            raise no_match("operator", pattern, [name for name in self.operators if ":" not in name])
        return pattern

    def named(self, text: str) -> Named:
        """What a name stands for: modules, operations in a module, operators, or modules of a class.

        The whole text is tried as a path before a part of it is taken for a port, since modules are called ``output``
        too.
        """
        cuts = [(text, "", "")]
        cuts += [
            (text[: match.start()], match[1], text[match.end() + 1 :])
            for match in reversed(list(PORT.finditer(text)))
        ]
        if text.partition(".")[0] in PORTS:  # of the model itself
            port, _, leaf = text.partition(".")
            cuts.append(("", port, leaf))
        for path, port, leaf in cuts:
            calls = self._calls(path)
            if calls is not None:
                return Named(calls, port, leaf)
        for path, port, leaf in cuts:
            operations = self._operations(path)
            if operations is not None:
                return Named(operations, port, leaf)
        for path, port, leaf in cuts:
            matches = glob_matcher(path)
            chosen = [number for number, row in enumerate(self.modules) if path and matches(row.type)]
            if chosen:
                return Named(CallsOf(frozenset(chosen)), port, leaf)
        names = [row.path for row in self.modules if row.path]
        operators = [name for name in self.operators if ":" not in name]
        # before a run, all that torch has may be meant: only what is spelt nearly so says something
        if len(operators) > FEW_OPERATORS:
            operators = difflib.get_close_matches(text, operators, n=3, cutoff=0.8)
        raise no_match("module or operation", text, [*names, *operators])

    def _calls(self, text: str) -> CallsOf | None:
        name, call, number = _numbered(text)
        chosen = match_paths(name, self.modules)
        if not chosen and name:
            first = first_path(name, self.second_paths)
            chosen = () if first is None else match_paths(first, self.modules)
        return CallsOf(frozenset(chosen), call, number) if chosen else None

    def _operations(self, text: str) -> Operations | None:
        path, _, name = text.rpartition("/")
        name, nth, node = _numbered(name)
        if not any(map(glob_matcher(name), self.operators)):
            return None
        inside = self._calls(path) if path else None
        if path and inside is None:
            return None
        return Operations(name, inside, nth, node)


def _numbered(text: str) -> tuple[str, int | None, int | None]:
    """A name without the number of a call behind it."""
    match = CALL.search(text)
    if match is None:
        return text, None, None
    call, number = match["call"], match["number"]
    return (
        text[: match.start()],
        None if call in (None, "*") else int(call),
        None if number is None else int(number),
    )


def first_path(name: str, second_paths: Mapping[str, str]) -> str | None:
    """The path that a module has in a run, given another path of it or of a module around it; None without one.

    >>> first_path("t2.fc", {"net.t2": "net.tied"}), first_path("fc", {"net.t2": "net.tied"})
    ('net.tied.fc', None)
    """
    # a module with several paths may lie in another one; a table from a file may go in circles
    ends = _ends(second_paths)
    path = None
    for _ in range(min(len(second_paths), DEEPEST)):
        replaced = _replaced_path(name if path is None else path, second_paths, ends)
        if replaced is None:
            break
        path = replaced
    return path


def _ends(second_paths: Mapping[str, str]) -> dict[str, set[str]]:
    """What the ends of second paths stand for."""
    ends: dict[str, set[str]] = {}
    for second, first in second_paths.items():
        parts = second.split(".")
        for at in range(max(1, len(parts) - DEEPEST), len(parts)):
            ends.setdefault(".".join(parts[at:]), set()).add(first)
    return ends


def _replaced_path(name: str, second_paths: Mapping[str, str], ends: Mapping[str, set[str]]) -> str | None:
    """A name with the longest second path that it begins with, or with the end of one, replaced."""
    parts = name.split(".")
    for count in range(min(len(parts), DEEPEST), 0, -1):
        path = ".".join(parts[:count])
        firsts = {second_paths[path]} if path in second_paths else ends.get(path, ())
        if len(firsts) == 1:
            return ".".join([*firsts, *parts[count:]])
    return None


def match_paths(pattern: str, modules: Sequence[ModuleName]) -> tuple[int, ...]:
    """The numbers of the modules whose path matches, or whose path ends so if none does.

    A name without ``*`` that is the end of several paths is refused.

    >>> rows = [ModuleName(path, "") for path in ("a.h.0", "a.h.0.fc", "a.h.1", "a.h.1.fc")]
    >>> match_paths("h.*", rows), match_paths("a.**", rows), match_paths("h.1.fc", rows)
    ((0, 2), (0, 1, 2, 3), (3,))
    """
    if not pattern:
        # what is no module, and keeps its place in the table only, has no class
        return tuple(number for number, row in enumerate(modules) if not row.path and row.type)[:1]
    exact = tuple(number for number, row in enumerate(modules) if row.path == pattern)
    if exact:
        return exact
    wild = any(letter in pattern for letter in "*?[")
    for expression in _forms(pattern) if wild else [rf"(?:.*\.)?{re.escape(pattern)}"]:
        compiled = re.compile(expression)
        hit = tuple(n for n, row in enumerate(modules) if row.path and compiled.fullmatch(row.path))
        if hit:
            if not wild and len({modules[n].path for n in hit}) > 1:
                paths = [modules[n].path for n in hit]
                listed = ", ".join(map(repr, paths[:LISTED])) + (", …" if len(paths) > LISTED else "")
                raise UsageError(
                    f"{pattern!r} is ambiguous: {len(paths)} modules end so ({listed}); write more of the path, or "
                    f"'**.{pattern}' for all of them"
                )
            return hit
    return ()


def _forms(pattern: str) -> Iterator[str]:
    """The regular expressions of a pattern, the strictest first: ``*`` for one part of a path, then for anything."""
    strict = glob_expression(pattern, part=r"[^.]")
    yield strict
    yield rf"(?:.*\.)?{strict}"
    yield glob_expression(pattern, part=".")


def glob_expression(pattern: str, *, part: str = ".") -> str:
    """A pattern with ``*``, ``**``, ``?`` and ``[…]`` as a regular expression; ``*`` stands for what ``part`` matches.

    >>> glob_expression("conv*_?"), glob_expression("h.**.fc", part="[^.]")
    ('conv.*_.', 'h\\\\..*\\\\.fc')
    """
    result = []
    # stars in a row are no more than two
    for token in re.findall(r"\*+|\[[^\]]*\]|[^*]", pattern):
        if token[0] == "*":
            result.append(f"{part}*" if token == "*" else ".*")
        elif len(token) > 1:
            inside = token[1:-1].replace("\\", r"\\")
            result.append(f"[{'^' + inside[1:] if inside.startswith('!') else inside}]")
        else:
            result.append(part if token == "?" else re.escape(token))
    return "".join(result)


def glob_matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a text matches a pattern in which ``*`` stands for anything."""
    compiled = re.compile(glob_expression(pattern), re.DOTALL)
    return lambda text: compiled.fullmatch(text) is not None


def operator_names(op: str) -> tuple[str, ...]:
    """The names by which an operator is known: with and without overload, namespace and the underscores before it.

    >>> operator_names("aten::_softmax.default")
    ('aten::_softmax.default', 'aten::_softmax', '_softmax', 'softmax')
    """
    full = op.partition(".")[0]
    short = full.rpartition("::")[2]
    names = (op, full, short)
    return names if not short.startswith("_") else (*names, short.lstrip("_"))


# ---------------------------------------------------------------- attention heads

# what modules call the number of their heads, the size of one, and the layer that joins them again
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads", "attention_heads")
SIZES = ("head_dim", "attention_head_size", "head_size", "dim_per_head", "dim_head", "d_head")
PROJECTIONS = (
    "c_proj", "o_proj", "out_proj", "proj", "dense", "wo", "to_out", "to_out.0", "out_lin", "output_proj", "out",
    "fc_out", "linear_out", "o", "proj_out", "output.dense",
)  # fmt: skip


class HeadPlace(NamedTuple):
    """The tensor in which the heads lie side by side: a port, and how many heads there are or how wide each is."""

    path: str
    port: str
    """``"input"``, ``"output"``, or ``"weight"`` where the projection is no call: what its weight meets."""
    heads: int | None
    size: int | None

    def slice_of(self, head: Any, width: int, name: str) -> tuple[Any, ...]:
        """The slice of a head, or of a slice of heads, in a tensor whose last dimension is so wide.

        >>> HeadPlace("attn.proj", "input", 4, None).slice_of(1, 32, "attn[head=1]")
        (Ellipsis, slice(8, 16, None))
        """
        heads = self.heads or (width // self.size if self.size else 0)
        if not heads or width % heads:
            raise UsageError(f"{name}: {width} features are no {heads} heads of equal size")
        size = width // heads
        if isinstance(head, slice):
            first, last, step = head.indices(heads)
            if step != 1:
                raise UsageError(f"{name}: heads side by side are wanted, without steps")
            return (Ellipsis, slice(first * size, last * size))
        if not -heads <= head < heads:
            raise UsageError(f"{name}: there are {heads} heads, counted from 0")
        return (Ellipsis, slice(head % heads * size, (head % heads + 1) * size))


def head_place(
    path: str, paths: Sequence[str], setting: Callable[[str, str], int | None], called: Callable[[str], bool]
) -> HeadPlace:
    """Where the heads of a module are; ``setting`` gives a number that a module was set to, by its name.

    ``called`` says of a module whether it is one that calls go through: the projection of ``nn.MultiheadAttention`` is
    a layer of which only the weight is used.
    """
    inside = [other for other in paths if other == path or other.startswith(f"{path}." if path else "")]
    own = [other for other in inside if _number(setting, other, COUNTS) or _number(setting, other, SIZES)]
    if not own:
        raise UsageError(
            f"module {path!r} has no heads: it has none of {', '.join(COUNTS[:4])}, … nor has a part of it"
        )
    outer = own[0] if own[0] == path else None
    if outer is None:
        outermost = [one for one in own if not any(one.startswith(f"{other}.") for other in own)]
        if len(outermost) > 1:
            listed = ", ".join(map(repr, outermost[:4]))
            raise UsageError(f"{path!r} has heads in several parts ({listed}); name one of them")
        outer = outermost[0]
    heads, size = _number(setting, outer, COUNTS), _number(setting, outer, SIZES)
    for name in PROJECTIONS:
        projection = f"{outer}.{name}" if outer else name
        if projection in paths:
            return HeadPlace(projection, "input" if called(projection) else "weight", heads, size)
    return HeadPlace(outer, "output", heads, size)


def _number(setting: Callable[[str, str], int | None], path: str, names: Sequence[str]) -> int | None:
    return next((number for name in names if (number := setting(path, name))), None)
