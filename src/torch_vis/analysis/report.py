"""What every report has: facts, listings, a table, a figure, plain data, and sums of which the truth may be more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from torch_vis._deprecated import Renamed
from torch_vis.errors import UsageError, no_match, optional
from torch_vis.graph.io.atomic import replacing
from torch_vis.graph.text import and_more, inert
from torch_vis.views.charts.chart import Chart, draw
from torch_vis.views.charts.maps import MapPicture
from torch_vis.views.text.table_layout import Listing, html_table, table

if TYPE_CHECKING:
    import pandas


def most(shown: int, whole: int) -> str:
    """What a title says where a chart has no room for all.

    >>> most(20, 20), most(20, 147)
    ('', ': the 20 largest of 147')
    """
    return f": the {shown:,} largest of {whole:,}" if shown < whole else ""


SCALARS = (int, float, bool)
MOST_NAMES = 3  # of the numbers of a report, below its tables
SCALAR_TYPES = frozenset({"int", "float", "bool", "int | None", "float | None", "bool | None"})


class Charts(Mapping[str, Any]):
    """Charts by name, each built when it is asked for: to list their names costs nothing.

    >>> from torch_vis.views.charts.chart import Axis
    >>> charts = Charts(timeline=lambda: Chart("lines", "Memory", Axis("operation"), Axis("held", "bytes"), []))
    >>> [*charts], charts["timeline"].title
    (['timeline'], 'Memory')
    """

    def __init__(self, **builders: Callable[[], Chart | MapPicture]) -> None:
        self._builders = builders

    def __getitem__(self, name: str) -> Chart | MapPicture:
        return self._builders[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def __len__(self) -> int:
        return len(self._builders)


class Report(Renamed):
    """Something found out about a run; ``print`` shows it as tables.

    A kind of report says what it found in ``facts`` (what it comes to, in words), ``listings`` (rows with titles) and
    ``charts`` (what ``figure`` draws, the first one by default). ``notes`` are sentences on what it leaves out.
    """

    title = ""
    """What it is about, in a word or two."""

    def facts(self) -> Mapping[str, str]:
        """What it all comes to, by name, in words."""
        return {}

    def listings(self) -> Sequence[Listing]:
        """The rows found, under titles."""
        return ()

    def printed(self, width: int) -> Sequence[Listing]:
        """The rows as they are printed in so many columns, where that is not all of them."""
        return self.listings()

    def charts(self) -> Mapping[str, Any]:
        """The charts that can be drawn, by name, built when asked for: ``figure(chart=…)`` takes one of these names."""
        return Charts()

    def notes(self) -> Sequence[str]:
        """What the figures leave out, in sentences."""
        return ()

    def table(self, *, width: int = 120) -> str:
        """The report as text."""
        facts = dict(self.facts())
        wide = max(map(len, facts), default=0)
        parts = [[inert(self.title)]] if self.title else []
        parts += [[inert(f"{name.ljust(wide)}  {fact}") for name, fact in facts.items()]] if facts else []
        parts += [table(listing, width) for listing in self.printed(width) if len(listing.rows)]
        notes = [wrap(f"• {inert(note)}", width, subsequent_indent="  ") for note in self.notes()]
        parts += [[line for lines in notes for line in lines]] if notes else []
        return "\n\n".join("\n".join(lines) for lines in parts)

    def figure(self, renderer: str = "plotly", *, chart: str | None = None) -> Any:
        """A chart of it, drawn by ``"plotly"`` or ``"matplotlib"``.

        ``chart`` is one of the names in ``charts()``, which ``print`` shows below the tables; without it, the first.

        >>> import torch, torch_vis as tv
        >>> report = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).time()
        >>> [*report.charts()]
        ['modules', 'operators', 'lines']
        >>> figure = report.figure("matplotlib", chart="lines")
        """
        result = self.charts()
        if not result:
            raise UsageError(f"there is nothing to draw: {self.title or type(self).__name__} is empty")
        name = next(iter(result)) if chart is None else chart
        if name not in result:
            raise no_match("chart", str(name), [*result])
        drawn = result[name]
        return drawn.draw(renderer) if isinstance(drawn, MapPicture) else draw(drawn, renderer)

    def figures(self) -> dict[str, int | float | bool | None]:
        """What it all comes to as numbers: every public attribute of the report that is one, with its unit in the name.

        >>> import torch, torch_vis as tv
        >>> tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).memory().figures()["peak_bytes"]
        52
        """
        return {name: getattr(self, name) for name in sorted(self._figure_names())}

    def _figure_names(self) -> list[str]:
        """The names of its numbers, those that are computed in the order in which its class has them."""
        computed = [
            name
            for kind in reversed(type(self).__mro__)
            for name, item in vars(kind).items()
            if _returns(item) in SCALAR_TYPES
        ]
        stored = [name for name, value in vars(self).items() if type(value) in SCALARS]
        return [name for name in dict.fromkeys([*computed, *stored]) if not name.startswith("_")]

    def to_dict(self) -> dict[str, Any]:
        """The same as data, for JSON: ``facts`` as numbers, ``text`` as printed, and the rows of each listing."""
        rows = {listing.title: listing.to_dict() for listing in self.listings()}
        return {"facts": self.figures(), "text": dict(self.facts()), **rows, "notes": list(self.notes())}

    def to_pandas(self, listing: str | None = None) -> pandas.DataFrame:
        """The rows of a listing (the first one by default) as a pandas ``DataFrame``."""
        with optional("pandas"):
            import pandas
        result = {item.title: item for item in self.listings()}
        name = next(iter(result), "") if listing is None else listing
        if name not in result:
            raise no_match("listing", str(name), [*result])
        chosen = result[name]
        return pandas.DataFrame(
            [list(row) for row in chosen.rows], columns=[field.name for field in chosen.fields]
        )

    def __str__(self) -> str:
        charts, figures = [*self.charts()], self._figure_names()
        lines = []
        if len(charts) > 1:
            lines.append(
                f"charts: {inert(', '.join(charts))}; figure() draws the first, figure(chart={charts[1]!r}) another"
            )
        has_rows = bool(self.listings())
        if figures or has_rows:
            named = and_more([f".{name}" for name in figures], MOST_NAMES) + "; " if figures else ""
            numbers = f"numbers: {named}to_dict() has all, to_pandas() the rows"
            lines.append(numbers if has_rows else numbers.rpartition(",")[0])
        wrapped = [part for line in lines for part in wrap(line, 120, subsequent_indent="  ")]
        return "\n".join([self.table(), *([""] if wrapped else []), *wrapped])

    def _repr_html_(self) -> str:
        """The same as tables of a notebook: facts, listings, notes."""
        parts = [f"<h4>{escape(inert(self.title))}</h4>"] if self.title else []
        facts = "".join(
            f'<tr><th style="text-align:left">{escape(inert(name))}</th>'
            f'<td style="text-align:left">{escape(inert(fact))}</td></tr>'
            for name, fact in self.facts().items()
        )
        parts += [f"<table>{facts}</table>"] if facts else []
        parts += [html_table(listing) for listing in self.listings() if len(listing.rows)]
        notes = "".join(f"<li>{escape(inert(note))}</li>" for note in self.notes())
        parts += [f'<ul style="opacity:0.75">{notes}</ul>'] if notes else []
        return f'<div class="torch-vis">{"".join(parts)}</div>'

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}: {fact}" for name, fact in list(self.facts().items())[:3])
        return inert(f"<{type(self).__name__} {facts}>") if facts else f"<{type(self).__name__}>"


class MapReport(Report):
    """A report whose charts are pictures: notebooks show the first, and ``save`` writes them all to a page."""

    def html(self) -> str:
        """All pictures and the tables as one piece of HTML that needs nothing from elsewhere."""
        pictures = [drawn.draw("html") for drawn in self.charts().values() if isinstance(drawn, MapPicture)]
        text = f'<pre style="font:12px/1.4 ui-monospace,monospace">{escape(self.table())}</pre>'
        return "\n".join([*pictures, text])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the pictures: a page (``.html``) with all of them, or the first as ``.png``, ``.svg`` or ``.pdf``.

        >>> import os, tempfile, torch, torch_vis as tv
        >>> path = os.path.join(tempfile.mkdtemp(), "saliency.html")
        >>> t = tv.trace(torch.nn.Conv2d(3, 2, 3), torch.ones(1, 3, 8, 8))
        >>> t.attribute("saliency", measure=lambda y: y.sum()).save(path)
        >>> open(path).read()[:15]
        '<!doctype html>'
        """
        ending = os.path.splitext(os.fspath(path))[1]
        if ending in (".png", ".svg", ".pdf"):
            self.figure("matplotlib").savefig(path)
            return
        if ending != ".html":
            raise no_match("ending", ending, [".html", ".png", ".svg", ".pdf"])
        title = escape(inert(self.title))
        with replacing(path) as file:
            page = f"<!doctype html>\n<meta charset=utf-8><title>{title}</title>\n{self.html()}\n"
            file.write(page.encode())

    def _repr_html_(self) -> str:
        first = next(iter(self.charts().values()), None)
        drawn = first.draw("html") if isinstance(first, MapPicture) else ""
        return f"{drawn}<pre>{escape(self.table())}</pre>"


def _returns(item: object) -> str | None:
    """The annotation of what a property gives."""
    function = getattr(item, "fget", None) or getattr(item, "func", None)
    return getattr(function, "__annotations__", {}).get("return")


class LowerBound(int):
    """A number of which the truth may be more."""


class LowerBoundShare(float):
    """A share of which the truth may be more."""


def summed(amount: float | None, unknown: int) -> int | None:
    """A sum for a table, where so many of its parts are not known; None where all are.

    >>> type(summed(3.0, 0)).__name__, type(summed(3.0, 1)).__name__, summed(None, 1)
    ('int', 'LowerBound', None)
    """
    return None if amount is None else LowerBound(amount) if unknown else int(amount)


def least(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """How a person reads such a number.

    >>> least("{:,}".format)(LowerBound(3000)), least("{:,}".format)(3000)
    ('≥ 3,000', '3,000')
    """
    return lambda item: f"≥ {show(item)}" if isinstance(item, (LowerBound, LowerBoundShare)) else show(item)
