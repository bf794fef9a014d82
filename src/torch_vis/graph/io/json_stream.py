"""JSON read a piece at a time, so that a file never takes much more memory than what is kept of it.

What a text of JSON takes as Python objects can be forty times its length. Here at most one record, or as many as fit
into one block, exist as such at a time, and a single one that would take more than it may is refused before it is made.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

BLOCK = 1 << 16  # bytes that are read at a time
NEAR_END = (
    16  # letters before the end of what was read, in which an error may only mean that there is more to read
)
BLANK = re.compile(r"[ \t\n\r]*")
DECODER = json.JSONDecoder()


class TooLarge(ValueError):
    """What a file announces takes more memory than its size allows."""


def weight(text: str) -> int:
    """The most memory that a text of JSON can take as Python objects, in bytes.

    >>> weight('{"a": [1, 2]}')
    495
    """
    parts = 240 * text.count("{") + 90 * text.count("[") + 60 * text.count(",") + 40 * text.count(":")
    return parts + 5 * len(text)


def kept_of(letters: int, lists: int) -> int:
    """The most memory that the rows of a table can take, whose text has so many letters and lists.

    >>> kept_of(100, 2)
    1528
    """
    return 14 * letters + 64 * lists


class JsonStream:
    """A JSON object field by field; a field's value is taken whole, or as a list of batches of records.

    ``most`` is what one value may weigh.

    >>> import io
    >>> stream = JsonStream(io.BytesIO(b'{"a": 1, "b": [{"c": 2}, {"c": 3}]}').read, most=1000)
    >>> {name: stream.value() if name == "a" else list(stream.batches()) for name in stream.fields()}
    {'a': 1, 'b': [[{'c': 2}, {'c': 3}]]}
    """

    def __init__(self, read: Callable[[int], bytes], *, most: float) -> None:
        self._read = read
        self.most = most
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text = ""
        self._at = 0
        self._before = 0  # letters of the file that stand before the text at hand
        self._lists = 0
        self._ended = False

    def fields(self) -> Iterator[str]:
        """The names of the object's fields; between two of them, the value is to be taken."""
        self._take("{")
        separator = self._take("}") if self._next() == "}" else ","
        while separator == ",":
            if self._next() != '"':
                raise self._error("Expecting the name of a field")
            name: str = self.value()
            self._take(":")
            yield name
            separator = self._take(",}")
        if self._next():
            raise self._error("Expecting the end")

    def batches(self) -> Iterator[list[Any]]:
        """The records of the list that is a field's value, as many at a time as there are in a block."""
        self._take("[")
        separator = self._take("]") if self._next() == "]" else ","
        while separator == ",":
            batch, room = [], self._position + BLOCK
            while separator == "," and self._position < room:
                batch.append(self.value())
                separator = self._take(",]")
            yield batch

    def value(self) -> Any:
        """The next value, whole."""
        self._next()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._ended or not self._may_go_on(error):
                    raise self._error(error.msg, error.pos) from error
            else:
                # a number at the end of what was read may have more digits
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            self._more()
            if len(self._text) > BLOCK and weight(self._text) > self.most:
                raise TooLarge("one of its records takes more memory than a file of its size may")

    @property
    def kept(self) -> int:
        """The most memory that tables of what was read so far can take."""
        return kept_of(self._before + len(self._text), self._lists)

    @property
    def _position(self) -> int:
        return self._before + self._at

    def _error(self, what: str, at: int | None = None) -> ValueError:
        return ValueError(f"{what}: character {self._before + (self._at if at is None else at):,}")

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        return error.pos >= len(self._text) - NEAR_END or error.msg.startswith("Unterminated")

    def _next(self) -> str:
        """The next letter that is not blank, "" at the end; it is not taken."""
        while True:
            match = BLANK.match(self._text, self._at)
            self._at = len(self._text) if match is None else match.end()
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._more()

    def _take(self, letters: str) -> str:
        """The next letter, which has to be one of these."""
        letter = self._next()
        if not letter or letter not in letters:
            raise self._error(f"Expecting {' or '.join(map(repr, letters))}")
        self._at += 1
        return letter

    def _more(self) -> None:
        """Read half as much as is still to be consumed, and at least a block."""
        rest = self._text[self._at :]
        data = self._read(max(BLOCK, len(rest) // 2))
        self._ended = not data
        self._before += self._at
        more = self._decode(data, final=self._ended)
        self._lists += more.count("[")
        self._text, self._at = rest + more, 0
