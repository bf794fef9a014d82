"""The explorer in a test: opened, driven by keys, and read as the text that is on its screen."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from torch_vis.interfaces.explorer.explorer import explorer

PATIENCE_S = 120
Steps = Callable[[Any, Any], Awaitable[None]]


def drive(
    subject: Any, steps: Steps, *, size: tuple[int, int] = (150, 40), toasts: bool = False, **options: Any
) -> Any:
    """Open the explorer, run the steps on it, and give back the application; ``toasts`` shows its messages too."""
    app = explorer(subject, **options)

    async def main() -> None:
        async with app.run_test(size=size, notifications=toasts) as pilot:
            await settle(app, pilot)
            await steps(app, pilot)

    asyncio.run(main())
    return app


async def settle(app: Any, pilot: Any) -> None:
    """Wait until nothing is being worked on any more, however busy the machine is."""
    end = time.monotonic() + PATIENCE_S
    while True:
        await pilot.pause()
        working = [one for one in app.workers if not (one.is_finished or one.group == "default")]
        if not working:
            break
        assert time.monotonic() < end, f"still working: {working}"
        await asyncio.sleep(0.005)
    await pilot.pause()


async def press(app: Any, pilot: Any, *keys: str) -> None:
    """Keys, one after the other, each answered before the next."""
    for key in keys:
        await pilot.press(key)
        await settle(app, pilot)


def go_to(app: Any, row: int) -> None:
    """Put the cursor on a row, opening what is above it."""
    app.arrangement.reveal(row)
    app.tree_view.rearrange(keep=row)


def screen(app: Any) -> str:
    """The text on the screen, line by line, spaces at the ends left out."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


def panel(app: Any) -> str:
    """The text of the panel, all of it."""
    return "" if app.panel_canvas is None else str(app.panel_canvas.text().plain)


def timeless(text: str) -> str:
    """A screen whose times are those of this run, with every time as ``#``."""
    return re.sub(r"\d[\d.]* (?:ns|µs|ms|s)\b", "#", text)
