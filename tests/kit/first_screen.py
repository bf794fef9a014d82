"""What the first screen of a page promises, looked at through the page's port: each breach in words."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

SIZES = ((1280, 720), (1440, 900), (1920, 1080))
SMALLEST_PX = 11.0
NAME_PX = 12.0  # of the smallest letters on a box at the scale of 1
WAIT_S = 60.0
MUCH = 0.1  # of the time: a repeat that takes less is not what the model is about

# What is on the screen; then, without drawing, what each box takes of the run; at last, how large the picture would be
# with the heaviest repeat open.
LOOK = """
return (async () => {
const P = window.torchVis, boxes = P.boxes(), painted = P.painted(), state = P.state();
const small = [...document.querySelectorAll('body *')].flatMap(element => {
  const own = [...element.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
  const {width, height} = element.getBoundingClientRect();
  const px = parseFloat(getComputedStyle(element).fontSize);
  return own && width && height && px > 0 && px < arguments[0] ? [[element.textContent.trim().slice(0, 40), px]] : [];
});
P.heat('time_ns');
const heat = new Map(P.boxes().map(box => [box.id, box.heat]));
P.heat('');
const edges = P.edges(), columns = P.columns(), repeats = P.repeats(), [heaviest] = repeats;
let ifOpen = 0;
if (heaviest?.isDrawn && heaviest.opening === 'closed') {
  await P.open(heaviest.id);
  P.fit();
  ifOpen = P.camera().scale;
}
return {boxes: boxes.map(box => ({...box, time: heat.get(box.id) ?? null})),
  texts: painted.filter(p => p.kind === 'text'),
  state, small, edges, columns, repeats, ifOpen};
})();
"""


def resize(driver: Any, size: tuple[int, int]) -> None:
    """Make the window's inside so large."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False},
    )


def look(driver: Any, path: Path, size: tuple[int, int]) -> dict[str, Any]:
    """What a page shows when it has been opened in a window of a size."""
    resize(driver, size)
    driver.get("about:blank")
    driver.get(path.as_uri())
    end = time.monotonic() + WAIT_S
    while not driver.execute_script("return window.torchVis?.isReady"):
        if time.monotonic() > end:
            raise AssertionError(f"{path.name} was not drawn within {WAIT_S} s")
        time.sleep(0.02)
    return driver.execute_script(LOOK, SMALLEST_PX)  # type: ignore[no-any-return]


def breaches(screen: Mapping[str, Any]) -> list[str]:
    """What a screen does not keep of the promise."""
    return [
        *_unnamed(screen),
        *_letters(screen),
        *_heaviest(screen),
        *_empty(screen),
        *_bookkeeping(screen),
        *_repeats(screen),
    ]


def shows_less(smaller: Mapping[str, Any], larger: Mapping[str, Any]) -> list[str]:
    """What a smaller window shows and a larger one does not."""
    few, many = (len(_in_sight(screen)) for screen in (smaller, larger))
    drawn = {box["id"] for box in larger["boxes"]}
    lost = [box["name"] for box in smaller["boxes"] if box["id"] not in drawn]
    return [
        *([f"a larger window has {many} boxes in sight instead of {few}"] if many < few else []),
        *([f"a larger window does not open up to {', '.join(lost[:3])}"] if lost else []),
    ]


def _closed(screen: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [box for box in screen["boxes"] if box["opening"] == "closed"]


def _in_sight(screen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The closed boxes that are whole in the window."""
    return [box for box in _closed(screen) if _inside(box["rect"], screen["state"]["canvas"])]


def _inside(rect: Sequence[float], around: Sequence[float]) -> bool:
    (x, y, w, h), (left, top, wide, high) = rect, around
    return x >= left - 1 and y >= top - 1 and x + w <= left + wide + 1 and y + h <= top + high + 1


def _unnamed(screen: Mapping[str, Any]) -> Iterable[str]:
    """Boxes on which class and shape are not to be read."""
    for box in _in_sight(screen):
        x, y, w, h = box["rect"]
        said = " ".join(
            text["text"] for text in screen["texts"] if x <= text["x"] <= x + w and y <= text["y"] <= y + h
        )
        if box["kind"] in ("input", "output"):
            wanted = {"type": box["type"]}
        else:
            named = box["name"] if box["kind"] in ("op", "bundle") else box["type"]
            wanted = {"name": named, "shape": box["shape"]}
            if not box["shape"] and box["hasOutput"]:
                yield f"{box['name']}: no shape is known to the page"
        for what, text in wanted.items():
            if text and text not in said:
                yield f"{box['name']}: its {what} {text!r} is not on it, which says {said!r}"


def _letters(screen: Mapping[str, Any]) -> Iterable[str]:
    for text in screen["texts"]:
        if text["size"] < SMALLEST_PX - 0.05:
            yield f"{text['text']!r} is drawn with {text['size']:.1f} px"
    for words, size in screen["small"]:
        yield f"{words!r} has {size:.1f} px"
    for what, boxes in (
        ("boxes", _in_sight(screen)),
        ("frames", [box for box in screen["boxes"] if box["opening"] != "closed" and box["fontPx"]]),
    ):
        sizes = {round(box["fontPx"], 1) for box in boxes}
        if len(sizes) > 1:
            yield f"names of {what} in {len(sizes)} sizes: {sorted(sizes)}"


def _heaviest(screen: Mapping[str, Any]) -> Iterable[str]:
    """The module that takes most time is in sight, in one of the phases at least."""
    timed = [
        box for box in _closed(screen) if box["time"] is not None and box["kind"] not in ("input", "output")
    ]
    # The step of an optimizer is no module: it counts where nothing else ran.
    spent: dict[str, float] = {}
    for box in [box for box in timed if box["phase"] != "optimizer"] or timed:
        spent[box["name"]] = spent.get(box["name"], 0) + box["time"]
    if spent:
        name = max(spent, key=lambda key: spent[key])
        # of one that is open, the title says it: the corner in which it stands is in the window
        titles = [
            {**box, "rect": [*box["rect"][:2], 1, 1]} for box in screen["boxes"] if box["opening"] != "closed"
        ]
        corners = [box for box in titles if _inside(box["rect"], screen["state"]["canvas"])]
        if name not in {box["name"] for box in [*_in_sight(screen), *corners]}:
            yield f"{name}, which takes most time, is not in sight"


def _empty(screen: Mapping[str, Any]) -> Iterable[str]:
    left, top, wide, high = screen["state"]["canvas"]
    boxes = screen["boxes"]
    if not boxes:
        return
    x0 = max(left, min(box["rect"][0] for box in boxes))
    y0 = max(top, min(box["rect"][1] for box in boxes))
    x1 = min(left + wide, max(box["rect"][0] + box["rect"][2] for box in boxes))
    y1 = min(top + high, max(box["rect"][1] + box["rect"][3] for box in boxes))
    used = max(0.0, x1 - x0) * max(0.0, y1 - y0) / (wide * high)
    if used <= 0.5:
        yield f"{used:.0%} of the canvas is used"


def _bookkeeping(screen: Mapping[str, Any]) -> Iterable[str]:
    """What runs between the calls of models, and what the recording added, steps back."""
    for column in range(len(screen["columns"])):
        outer = [box for box in screen["boxes"] if box["column"] == column and not box["parent"]]
        if all(box["call"] in ("", "function") for box in outer):
            continue
        loose = [box["name"] for box in outer if box["kind"] == "op" and not box["isAdded"]]
        if len(loose) > 2:
            yield f"{len(loose)} operations outside any module stand alone: {', '.join(loose[:4])}"
    plain = [box["rect"][3] for box in screen["boxes"] if box["opening"] == "closed" and not box["isAdded"]]
    for box in screen["boxes"]:
        if box["isAdded"] and plain and box["rect"][3] >= max(plain):
            yield f"{box['name']}, which the recording added, is as large as the model's own"


def _repeats(screen: Mapping[str, Any]) -> Iterable[str]:
    """The repeat of modules that weighs most is open, or drawn at least where there is no room for its inside."""
    is_too_large = screen["ifOpen"] * NAME_PX < SMALLEST_PX
    heaviest = next((repeat for repeat in screen["repeats"] if repeat["share"] >= MUCH), None)
    if heaviest and not heaviest["isDrawn"]:
        yield f"the heaviest repeat {heaviest['name']} is not drawn"
    elif heaviest and heaviest["opening"] == "closed":
        if not is_too_large:
            yield f"the heaviest repeat {heaviest['name']} is closed, and there is room for its inside"
        return
    first = [box for box in screen["boxes"] if box["column"] == 0]
    total = sum(box["time"] or 0 for box in first if not box["parent"])
    folds = [box for box in first if box["isRepeat"] and (box["time"] or 0) >= MUCH * total]
    if folds:
        most = max(folds, key=lambda box: box["time"] or 0)
        if most["opening"] == "closed":
            yield f"the heaviest repeat {most['name']} is closed"
