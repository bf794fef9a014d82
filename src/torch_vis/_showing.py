"""A trace to look at and to hand on: as a table, a picture, a page, a file, or an object of another library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from torch_vis.formats import drawer, writer

if TYPE_CHECKING:
    import networkx
    import pandas
    import torch

    from torch_vis.api import Trace
    from torch_vis.graph.graph import Graph
    from torch_vis.graph.io.atomic import PathLike
    from torch_vis.graph.metrics import Metrics
    from torch_vis.views.terminal.config import ExplorerConfig


class Showing:
    """The forms that a trace can be given."""

    graph: Graph
    metrics: Metrics
    limits: tuple[str, ...]
    meta: dict[str, Any]

    def save(self, path: PathLike, *, format: Any = None) -> None:
        """Write the trace; the ending chooses the format, or ``format`` names it. Tensors are not written.

        ``.html`` is a web page: one file, no network. ``.tvz`` and ``.json`` can be loaded again. The others are for
        other tools: ``.onnx`` (Netron), ``.perfetto.json``, ``.explorer.json`` (Model Explorer), ``.graphml``,
        ``.csv``, ``.md``, and pictures: ``.svg``, ``.png``, ``.pdf``, ``.dot``. ``format="package.module:Class"`` is
        your own: the class, made without arguments, needs ``save(path, graph, metrics, limits, meta)``.

        >>> import os, tempfile, torch, torch_vis as tv
        >>> path = os.path.join(tempfile.mkdtemp(), "run.tvz")
        >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).save(path)
        >>> tv.load(path).graph
        <Graph: 1 operation, 2 values, 2 scopes>
        """
        writer(path, format).save(path, self.graph, self.metrics, self.limits, self.meta)

    def table(self, *, depth: int | Literal["auto"] | None = "auto", width: int | None = None) -> str:
        """The module tree with shapes, parameters, operations, time and memory, as ``print`` shows it.

        >>> import torch, torch_vis as tv
        >>> print(tv.trace(torch.nn.ReLU(), torch.ones(2)).table().splitlines()[0].split()[0])
        ReLU
        """
        from torch_vis.views.text.module_tree import table

        return table(self.graph, self.metrics, self.limits, self.meta, depth=depth, width=width)

    def figure(
        self,
        renderer: str = "plotly",
        *,
        depth: int | Literal["auto"] | None = "auto",
        color: str = "type",
        phase: str | None = None,
    ) -> Any:
        """Draw the run as a graph: layered, grouped by module, repeated blocks folded into one (``× 12``).

        ``renderer`` is ``"plotly"``, ``"matplotlib"``, ``"graphviz"`` or ``"svg"``; what comes back is that library's
        figure. ``"package.module:Object"`` names your own, a callable of ``(graph, metrics, limits, meta, look)``.
        ``depth`` is how many levels of modules are opened (None: down to every operation; by default as many as can be
        read). ``color`` is ``"type"``, ``"time"``, ``"memory"``, ``"flops"``, ``"bytes"`` or ``"none"``, and ``phase``
        one of ``"forward"``, ``"backward"``, ``"optimizer"`` to draw only that.

        >>> import torch, torch_vis as tv
        >>> figure = tv.trace(torch.nn.ReLU(), torch.ones(2)).figure("svg", color="time")
        >>> str(figure)[:4]
        '<svg'
        """
        from torch_vis.views.figure.diagram import Look

        draw = drawer(renderer)
        return draw(self.graph, self.metrics, self.limits, self.meta, Look(depth, color, phase))

    def show(self) -> str:
        """Open the run as a web page: in the notebook that this is called from, or else in the browser.

        The page is one file without a network, written to a temporary folder; its path is returned. ``save`` with the
        ending ``.html`` writes the same page to a place of your own. Where no browser can be started, a warning says
        where the page is.

        >>> import torch, torch_vis as tv
        >>> path = tv.trace(torch.nn.ReLU(), torch.ones(2)).show()  # doctest: +SKIP
        """
        from torch_vis.views.page.show import show

        return show(self.graph, self.metrics, self.limits, self.meta)

    def explore(
        self,
        *,
        model: torch.nn.Module | None = None,
        against: Any = None,
        config: ExplorerConfig | None = None,
    ) -> None:
        """Open the run in the terminal explorer, until it is quit.

        With the ``model`` that was traced, modules that did not run are shown too, and their arguments and weights.
        ``against`` is a second trace, model or file to compare with.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
        >>> try:
        ...     t.explore()  # here, where there is no terminal
        ... except tv.errors.UsageError as error:
        ...     print(str(error).partition(";")[0])
        the explorer needs a terminal
        """
        from torch_vis.interfaces.explorer.explorer import explore

        trace = cast("Trace", self)
        explore(trace if model is None else model, trace=trace, against=against, config=config)

    def to_networkx(self) -> networkx.MultiDiGraph[Any]:
        """The graph as a networkx ``MultiDiGraph``.

        >>> import torch, torch_vis as tv
        >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).to_networkx().nodes[0]["name"]
        'relu'
        """
        from torch_vis.exporters.networkx import to_networkx

        return to_networkx(self.graph, self.metrics)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per operation, with every metric, as a pandas ``DataFrame``.

        >>> import torch, torch_vis as tv
        >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).to_pandas()["name"].tolist()
        ['relu']
        """
        from torch_vis.exporters.pandas import to_pandas

        return to_pandas(self.graph, self.metrics)

    def _repr_html_(self) -> str:
        from torch_vis.views.notebook import html

        return html(self.graph, self.metrics, self.limits, self.meta)

    def __str__(self) -> str:
        return self.table()
