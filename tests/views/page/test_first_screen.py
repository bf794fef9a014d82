"""What the first screen promises, in three sizes of windows; and what its lines tell."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.browser import Net, Page, needs_browser
from tests.kit.first_screen import SIZES, breaches, look, resize, shows_less

pytestmark = needs_browser


class Unrolled(nn.Module):
    """A cell that is called in a loop, and what it keeps from one turn to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Linear(4, 8), nn.GRUCell(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, state = self.embed(x), x.new_zeros(x.shape[1], 8)
        for row in x.unbind(0):
            state = self.cell(row, state)
        return self.head(state)


@pytest.fixture(autouse=True)
def usual_window(driver: Any) -> Iterator[None]:
    yield
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


class Recurrent(nn.GRU):
    """Few boxes in a wide window."""

    def __init__(self) -> None:
        super().__init__(4, 8)


class Masked(nn.Module):
    """Layers in a model in a model, which makes a mask before it calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.head = nn.Module(), nn.Linear(8, 2)
        self.model.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))
        self.model.forward = self.run

    def run(self, x: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(8).sub(1).cumsum(0).ne(3).to(x.dtype) + 0.5).sqrt().exp()
        for layer in self.model.layers:
            x = layer(x * mask)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.model(x))


class Heads(nn.Module):
    """More outputs than have room beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(4, 8), nn.ModuleList(nn.Linear(8, 2) for _ in range(5))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.body(x)
        return {f"output_of_head_{number}": head(x) for number, head in enumerate(self.heads)}


def keeps_its_promise(driver: Any, path: Path) -> None:
    screens = [look(driver, path, size) for size in SIZES]
    assert [breaches(screen) for screen in screens] == [[], [], []]
    assert [shows_less(*pair) for pair in pairwise(screens)] == [[], []]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "model, shape",
    [(Net, (3, 4)), (Unrolled, (6, 2, 4)), (Recurrent, (5, 2, 4)), (Heads, (3, 4)), (Masked, (3, 8))],
)
def test_the_first_screen_keeps_its_promise(
    driver: Any, tmp_path: Path, model: type[nn.Module], shape: tuple[int, ...], backward: bool
) -> None:
    torch.manual_seed(0)
    tv.trace(model(), torch.ones(shape), backward=backward).save(tmp_path / "run.html")
    keeps_its_promise(driver, tmp_path / "run.html")


class Bottleneck(nn.Module):
    """More boxes than have room beside many others."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleDict({f"normalised_projection_{n}": nn.Linear(8, 8) for n in range(9)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for step in self.steps.values():
            y = step(y)
        return x + y


def stages() -> nn.Module:
    """Most of the work is in a repeat within the third of four stages, and not half of it."""
    parts = [(f"pooling_of_the_stem_{n}", nn.Linear(8, 8)) for n in range(4)]
    for number, blocks in enumerate((2, 2, 5, 2)):
        inner = [nn.Linear(8, 8), *(Bottleneck() for _ in range(blocks))]
        parts.append((f"stage_{number}", nn.Sequential(*inner)))
    return nn.Sequential(OrderedDict(parts))


@pytest.mark.parametrize("backward", [False, True])
def test_the_heaviest_repeat_is_drawn_wherever_it_is(driver: Any, tmp_path: Path, backward: bool) -> None:
    # without times of forward, so that operations say what is heaviest there
    tv.trace(stages(), torch.ones(2, 8), backward=backward, fake=True).save(tmp_path / "run.html")
    keeps_its_promise(driver, tmp_path / "run.html")
    for size in SIZES:
        boxes = look(driver, tmp_path / "run.html", size)["boxes"]
        assert any(box["isRepeat"] and box["column"] == 0 for box in boxes), size


def test_what_a_model_does_around_its_layers_is_one_box(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(Masked(), torch.ones(3, 8)))
    (box,) = page.boxes(kind="bundle")
    assert (box["name"], box["path"]) == ("own operations", "model")
    assert not {"cumsum", "ne", "sqrt"} & {other["name"] for other in page.boxes()}


@pytest.mark.parametrize("model", [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
def test_a_model_of_two_layers_takes_more_than_half_of_the_canvas(
    driver: Any, tmp_path: Path, model: nn.Module
) -> None:
    tv.trace(model, torch.ones(2, 4)).save(tmp_path / "run.html")
    keeps_its_promise(driver, tmp_path / "run.html")


def test_a_training_loop_keeps_the_promise(driver: Any, tmp_path: Path) -> None:
    """Gradients are added up and clipped: the model stands before what is done beside it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loop(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        for row in x:
            (model(row).square().mean() / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    trace = tv.trace(loop, torch.ones(4, 3, 4))
    trace.save(tmp_path / "run.html")
    keeps_its_promise(driver, tmp_path / "run.html")


def test_what_a_step_makes_of_nothing_between_its_models_is_one_box(show: Callable[[Any], Page]) -> None:
    """Noise and targets of two models that learn against each other."""
    maker, judge, loss = nn.Linear(4, 8), nn.Linear(8, 1), nn.BCEWithLogitsLoss()

    def step(real: torch.Tensor) -> torch.Tensor:
        fake = maker(torch.randn(3, 4))
        right = loss(judge(real), torch.ones(3, 1))
        wrong = loss(judge(fake), torch.zeros(3, 1))
        return right + wrong + loss(judge(fake), torch.ones(3, 1))

    page = show(tv.trace(step, torch.ones(3, 8)))
    (box,) = page.boxes(kind="bundle", name="randn, ones, zeros")
    assert box["operations"] == 4
    assert {other["name"] for other in page.boxes(kind="op")} <= {"add"}
    readers = {edge["to"] for edge in page.js("return P.edges()") if edge["from"] == box["name"]}
    assert {name.partition(" ")[0] for name in readers} == {"maker", "loss"}


class Layer(nn.Module):
    """Two branches that are added to what passes, as in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_of_attention, self.attention = nn.LayerNorm(8), nn.Linear(8, 8)
        self.norm_of_feed_forward, self.feed_forward = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_of_attention(x))
        return x + self.feed_forward(self.norm_of_feed_forward(x))


class Language(nn.Module):
    """Embeddings, layers and a head, each level of modules in another."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.drop = nn.Embedding(20, 8), nn.Embedding(20, 8), nn.Dropout(0.1)
        self.layers, self.last_norm = nn.ModuleList(Layer() for _ in range(6)), nn.LayerNorm(8)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1]) + 1
        x = self.drop(self.words(ids) + self.places(places))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.last_norm(x))


def test_of_a_training_step_the_model_is_shown_from_its_beginning(driver: Any, tmp_path: Path) -> None:
    """Beside what backward and the optimizer do, and not cut for their sake."""
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step(ids: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        return loss

    tv.trace(step, torch.ones(2, 5, dtype=torch.long)).save(tmp_path / "run.html")
    for size in SIZES:
        screen = look(driver, tmp_path / "run.html", size)
        assert breaches(screen) == []
        left, top, _, _ = screen["state"]["canvas"]
        (frame,) = [box for box in screen["boxes"] if box["name"] == "Language" and box["column"] == 0]
        assert frame["opening"] != "closed" and frame["rect"][0] >= left and frame["rect"][1] >= top, size
        optimizing, backward = (
            next(box for box in screen["boxes"] if box["phase"] == phase)
            for phase in ("optimizer", "backward")
        )
        assert optimizing["rect"][1] < backward["rect"][1] or optimizing["rect"][0] > backward["rect"][0]


class Shifted(nn.Module):
    """Every second one rolls what it gets."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by, self.inner = by, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.roll(x, self.by, -1) if self.by else x)


def test_blocks_that_alternate_are_called_by_their_class_and_numbers(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(nn.Sequential(*(Shifted(place % 2) for place in range(6))), torch.ones(2, 8)))
    (fold,) = page.boxes(kind="fold")
    assert (fold["name"], fold["count"]) == ("Shifted 0–5", 3)


def test_a_function_without_modules_shows_what_it_runs(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(lambda x: (x @ x.T).softmax(-1).relu().sum(), torch.ones(3, 4)))
    assert {box["call"] for box in page.boxes()} <= {"", "function"}
    assert {"softmax", "relu", "sum"} <= {box["name"] for box in page.boxes()}
    assert {box["path"] for box in page.boxes()} == {""}


def test_a_breach_is_found() -> None:
    """What the check says of a screen that keeps nothing of it."""
    box = {
        "id": "0", "column": 0, "parent": "", "kind": "module", "name": "fc", "type": "Linear", "shape": "f32[2]",
        "opening": "closed", "rect": [0, 0, 40, 20], "time": 5, "fontPx": 9, "hasOutput": True, "isAdded": False,
        "isRepeat": True, "operations": 1, "call": "module", "phase": "forward",
    }  # fmt: skip
    text = {"text": "fc", "x": 5, "y": 5, "size": 9.0}
    state = {"canvas": [0, 0, 1000, 500], "canOpen": True}
    screen = {"boxes": [box], "texts": [text], "small": [], "state": state, "columns": [{}]}
    screen |= {"repeats": [], "ifOpen": 0}
    found = " ".join(breaches(screen))
    for words in ("its name 'Linear'", "its shape", "9.0 px", "of the canvas", "repeat fc is closed"):
        assert words in found
    assert shows_less(screen, {**screen, "boxes": []})
    repeat = {"name": "layers", "share": 0.2, "isDrawn": False, "opening": "closed"}
    assert "the heaviest repeat layers is not drawn" in breaches({**screen, "repeats": [repeat]})
    drawn = {**screen, "repeats": [{**repeat, "isDrawn": True}]}
    assert "there is room for its inside" in " ".join(breaches({**drawn, "ifOpen": 1}))
    assert "heaviest repeat" not in " ".join(breaches({**drawn, "ifOpen": 0.5}))


def test_what_the_recording_added_is_told_from_the_model(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(Net(), torch.ones(3, 4), backward=True))
    assert {box["name"] for box in page.boxes(isAdded=True)} == {"summed outputs", "gradient of 1"}
    page = show(tv.trace(Heads(), torch.ones(3, 4), backward=True))
    assert {box["name"] for box in page.boxes(isAdded=True, phase="backward")} == {"gradient of 1"}
    page = show(tv.trace(Net(), torch.ones(3, 4), loss=lambda y: y.mean()))
    assert {box["name"] for box in page.boxes(isAdded=True)} == {"gradient of 1"}


def test_a_line_tells_its_tensor_and_both_ends(show: Callable[[Any], Page]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    page = show(tv.trace(Net(), torch.ones(3, 4)))
    edge = next(edge for edge in page.js("return P.edges()") if edge["from"] == "stem")
    assert edge["shape"] == "f32[3, 8]" and edge["bytes"] == 96
    (x0, y0), (x1, y1) = edge["points"][:2]
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    chain = ActionChains(page.driver).w3c_actions
    chain.pointer_action.move_to_location(int(x), int(y))
    chain.pointer_action.click()
    chain.perform()
    page.until("return P.selectedEdges().length")
    assert page.js("return P.selectedEdges()")[0]["from"] == "stem"
    text = page.text(".details")
    assert "f32[3, 8]" in text and "96 B" in text and "stem" in text and "blocks.0" in text


def test_what_a_loop_hands_to_its_next_turn_is_drawn(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(Unrolled(), torch.ones(6, 2, 4)))
    page.js("return P.open('cell', 'one')")
    carried = [edge for edge in page.js("return P.edges()") if edge["isCarried"]]
    assert carried and {edge["shape"] for edge in carried} == {"f32[2, 8]"}
    layers = show(tv.trace(Net(), torch.ones(3, 4)))
    assert not any(edge["isCarried"] for edge in layers.js("return P.edges()")), "layers in a row are no loop"


def test_memory_and_time_stand_on_one_clock(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(Net(), torch.ones(3, 4), backward=True))
    page.press("m", "t")
    page.until("return P.state().dock === 'memory+time' && P.flame() && P.memory()")
    left, right = page.js(
        "return [...document.querySelectorAll('.dock canvas')].map(c => c.getBoundingClientRect())"
        ".map(({left, width}) => [left, width])"
    )
    assert left == right, "the two charts begin and end at one place"
    page.press("m")
    page.until("return P.state().dock === 'time'")


def test_a_bar_of_backward_selects_backward(show: Callable[[Any], Page]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    page = show(tv.trace(Net(), torch.ones(3, 4), backward=True))
    page.js("P.dock('time')")
    bars = page.until("return P.flame()")
    model = [bar for bar in bars if bar["scope"] >= 0 and bar["row"] == 0]
    last = max(model, key=lambda bar: bar["x"])
    chain = ActionChains(page.driver).w3c_actions
    chain.pointer_action.move_to_location(int(last["x"] + last["w"] / 2), int(last["y"] + last["h"] / 2))
    chain.pointer_action.click()
    chain.perform()
    page.until("return P.selection()")
    assert page.js("return P.selection().phase") == "backward"


# ---------------------------------------------------------------- what it tells besides


class Writer(nn.Module):
    """Writes a text: a prompt first, then one token after another, with a cache of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor, cache: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        keys = self.mix(self.embed(tokens))
        cache = keys if cache is None else torch.cat([cache, keys], 1)
        return self.head(keys + cache.mean(1, keepdim=True)), cache


def test_a_run_that_writes_a_text_shows_its_tokens(driver: Any, tmp_path: Path) -> None:
    model = Writer().eval()

    def write() -> torch.Tensor:
        tokens, cache = torch.zeros(1, 5, dtype=torch.long), None
        for _ in range(6):
            logits, cache = model(tokens, cache)
            tokens = logits[:, -1:].argmax(-1)
        return tokens

    with torch.no_grad():
        t = tv.trace(write)
    last = t.memory().timeline["KV cache"][-1]
    assert last == 10 * 8 * 4, "five tokens of the prompt and five of those that were written"
    t.save(tmp_path / "run.html")
    resize(driver, SIZES[1])
    page = Page(driver, tmp_path / "run.html").open()
    names = page.labels()
    assert "Writer prefill" in names and any(name.startswith("Writer decode") for name in names)
    assert page.js("return P.state().dock") == "tokens"
    steps = page.js("return P.tokens()")
    assert [step["tokens"] for step in steps] == [5, 1, 1, 1, 1, 1]
    assert [step["cacheBytes"] for step in steps] == [tokens * 32 for tokens in range(5, 11)]
    assert sum(step["flops"] for step in steps) <= t.metrics["flops"].total()
    assert "prefill of 5 tokens" in page.js("return document.querySelector('.dock').innerText")


def test_lines_of_one_run_of_a_comparison_are_told_apart(driver: Any, tmp_path: Path) -> None:
    def net(middle: nn.Module) -> nn.Module:
        model = nn.Sequential()
        for name, layer in (("first", nn.Linear(4, 4)), ("middle", middle), ("last", nn.Linear(4, 4))):
            model.add_module(name, layer)
        return model

    traces = [tv.trace(net(middle), torch.ones(2, 4)) for middle in (nn.Identity(), nn.LayerNorm(4))]
    tv.compare(*traces, names=("plain", "normed")).save(tmp_path / "run.html")
    page = Page(driver, tmp_path / "run.html").open()
    sides = {(edge["from"], edge["to"]): edge["side"] for edge in page.js("return P.edges()")}
    assert sides["first", "last"] == "plain"
    assert sides["first", "middle"] == sides["middle", "last"] == "normed"
    assert "only in normed" in page.js("return document.querySelector('.legend').innerText")
