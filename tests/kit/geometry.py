"""What is wrong with a picture, found from its coordinates: boxes that overlap, lines that cross boxes or frames."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from torch_vis.views.figure.plotly import flattened
from torch_vis.views.figure.scene import Scene

Rectangle = tuple[float, float, float, float]  # left, top, right, bottom
Point = tuple[float, float]
TOUCH = 0.6  # so far into a box, in pixels, is still its edge


def overlap(one: Rectangle, two: Rectangle) -> bool:
    return (
        one[0] < two[2] - TOUCH
        and two[0] < one[2] - TOUCH
        and one[1] < two[3] - TOUCH
        and two[1] < one[3] - TOUCH
    )


def within(inner: Rectangle, outer: Rectangle) -> bool:
    return (
        inner[0] >= outer[0] - TOUCH
        and inner[1] >= outer[1] - TOUCH
        and inner[2] <= outer[2] + TOUCH
        and inner[3] <= outer[3] + TOUCH
    )


def crosses(start: Point, end: Point, box: Rectangle) -> bool:
    """Whether a straight piece passes through the inside of a box (Liang and Barsky's clipping)."""
    left, top, right, bottom = box[0] + TOUCH, box[1] + TOUCH, box[2] - TOUCH, box[3] - TOUCH
    enter, leave = 0.0, 1.0
    dx, dy = end[0] - start[0], end[1] - start[1]
    for p, q in (
        (-dx, start[0] - left),
        (dx, right - start[0]),
        (-dy, start[1] - top),
        (dy, bottom - start[1]),
    ):
        if p == 0:
            if q < 0:
                return False
        elif p < 0:
            enter = max(enter, q / p)
        else:
            leave = min(leave, q / p)
    return enter < leave


def line_crosses(points: Sequence[Point], box: Rectangle) -> bool:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if not overlap((min(xs) - 1, min(ys) - 1, max(xs) + 1, max(ys) + 1), box):
        return False
    return any(crosses(a, b, box) for a, b in itertools.pairwise(points))


def overlapping(boxes: Sequence[Rectangle]) -> list[tuple[int, int]]:
    order = sorted(range(len(boxes)), key=lambda number: boxes[number][0])
    found = []
    for place, one in enumerate(order):
        for two in order[place + 1 :]:
            if boxes[two][0] >= boxes[one][2]:
                break
            if overlap(boxes[one], boxes[two]):
                found.append((one, two))
    return found


def problems(drawn: Scene) -> list[str]:
    """Everything that is wrong with a scene, in words."""
    boxes = [(box.x, box.y, box.x + box.width, box.y + box.height) for box in drawn.boxes]
    frames = [(frame.x, frame.y, frame.x + frame.width, frame.y + frame.height) for frame in drawn.frames]
    found = [f"{drawn.boxes[a].title} overlaps {drawn.boxes[b].title}" for a, b in overlapping(boxes)]
    page = (0.0, 0.0, drawn.width, drawn.height)
    found += [
        f"{drawn.boxes[n].title} is off the page" for n, box in enumerate(boxes) if not within(box, page)
    ]
    for number, frame in enumerate(frames):
        for other, box in enumerate(boxes):
            if overlap(box, frame) and not within(box, frame):
                found.append(f"{drawn.boxes[other].title} lies across {drawn.frames[number].title}")
        for other, inner in enumerate(frames[number + 1 :], number + 1):
            if overlap(inner, frame) and not (within(inner, frame) or within(frame, inner)):
                found.append(f"frames {drawn.frames[number].title} and {drawn.frames[other].title} cross")
    for wire in drawn.wires:
        ends = [(end.x, end.y, end.x + end.width, end.y + end.height) for end in (wire.source, wire.target)]
        name = f"{wire.source.title} → {wire.target.title}"
        for part in wire.parts:
            points = numbers(flattened(part))
            found += [
                f"{name} goes through {drawn.boxes[n].title}"
                for n, b in enumerate(boxes)
                if line_crosses(points, b)
            ]
            for number, frame in enumerate(frames):
                if not any(within(end, frame) for end in ends) and line_crosses(points, frame):
                    found.append(f"{name} goes through the frame {drawn.frames[number].title}")
        x, y = wire.parts[0][0]
        if not any(
            abs(y - edge) < TOUCH and ends[0][0] <= x <= ends[0][2] for edge in (ends[0][1], ends[0][3])
        ):
            found.append(f"{name} does not begin at its source")
        x, y = wire.parts[-1][-1]
        if not any(
            abs(y - edge) < TOUCH and ends[1][0] <= x <= ends[1][2] for edge in (ends[1][1], ends[1][3])
        ):
            found.append(f"{name} does not end at its target")
    return found


def numbers(points: Iterable[tuple[float | None, float | None]]) -> list[Point]:
    return [(x, y) for x, y in points if x is not None and y is not None]
