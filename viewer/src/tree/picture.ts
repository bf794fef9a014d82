/**
 * What is to be seen while some boxes are open: items, the edges among them, and the frames that hold them.
 *
 * An edge is drawn exactly when bytes pass between the two. Where a repeat shows one instance for all, what other instances
 * take from outside or hand out is drawn at their counterparts. What a turn of a loop hands to the next is an edge of its own
 * kind; what one of several modules in a row hands to the next is not drawn inside of it.
 */

import { Phase, Role, ROLES } from "../data/schema.gen.ts";
import type { FrameSpec } from "../layout/frames.ts";
import { Box } from "./box.ts";
import { FIRST, flowOf, LAST, type Flow } from "./flow.ts";
import type { Forest } from "./forest.ts";

export interface Item {
  box: Box;
  frame: number; // the frame it lies in
  cell: number; // its number there
  own: number; // the frame that it is, or -1
  tags: number[]; // sources (items) that are named here, with no line from them
}

export interface Line {
  source: number; // the item that the bytes come from
  from: number; // cells
  to: number;
  value: number;
  label: boolean;
  arrow: boolean;
  carried: boolean; // from one turn of a loop to the next
  side: number; // of a comparison: the run that alone has it, as a status; 0 for both
  exit: number; // the side of the frame at its beginning that it leaves through, and of the one at its end
  entry: number;
}

export interface Edge {
  source: number;
  target: number;
  value: number;
  count: number;
  hub: boolean;
  carried: boolean; // from one turn of a loop to the next
  side: number; // of a comparison: the run that alone has it, as a status; 0 for both
  lines: number[]; // frame and line in turn
}

export interface Frame {
  item: number; // -1 for the outermost
  parent: number;
  depth: number;
  items: number[]; // by cell; -1 for a port
  lines: Line[];
}

export interface Picture {
  forest: Forest;
  items: Item[];
  frames: Frame[];
  edges: Edge[];
  specs: FrameSpec[];
  /** By position the item that stands for it, -1 for a view that is not drawn. */
  leaf: Int32Array;
}

export interface Options {
  views: boolean;
  up: boolean;
  measure: (box: Box) => { w: number; h: number };
  header: number;
  headerWidth: (box: Box) => number;
}

const MANY_READERS = 7;
const MANY_READERS_OF_AN_INPUT = 4;
const MOST_INPUTS = 12;
const PARALLEL = 32; // instances side by side, from which on their lines end at the frame around them
const MOST_ITEMS = 4_194_304;
export const PAD = 12;
const KEPT = new Set(["parameter", "buffer", "gradient", "optimizer state"]);
const [TOP, BOTTOM] = [1, 2]; // sides of a frame, as it is read

interface Fold {
  box: Box;
  starts: Int32Array;
}

export function compose(root: Box, options: Options): Picture {
  const forest = root.forest;
  const items: Item[] = [];
  const frames: Frame[] = [{ item: -1, parent: -1, depth: 0, items: [], lines: [] }];
  const leaf = new Int32Array(forest.total).fill(-1);
  const folds: Fold[] = [];
  collect(root, items, frames, leaf, folds, options);
  const edges = connect(forest, root, items, frames, leaf, folds, options);
  nameHubs(items, edges);
  const flow = flowOf(items, frames, edges, forest.phases.length > 1);
  const ports = route(items, frames, edges, flow);
  return {
    forest,
    items,
    frames,
    edges,
    leaf,
    specs: frames.map((frame, i) => spec(frame, i, items, frames, ports, flow.order[i], options)),
  };
}

function add(items: Item[], frames: Frame[], box: Box, frame: number): number {
  items.push({ box, frame, cell: frames[frame].items.length, own: -1, tags: [] });
  frames[frame].items.push(items.length - 1);
  return items.length - 1;
}

function collect(root: Box, items: Item[], frames: Frame[], leaf: Int32Array, folds: Fold[], options: Options): void {
  const copies: [Box, Box][] = [];
  const stack: { boxes: Box[]; at: number; frame: number }[] = [{ boxes: root.children, at: 0, frame: 0 }];
  while (stack.length) {
    const top = stack[stack.length - 1];
    if (top.at === top.boxes.length) {
      stack.pop();
      continue;
    }
    const box = top.boxes[top.at++];
    if (box.isView && !options.views) continue;
    const number = add(items, frames, box, top.frame);
    if (box.opening === "closed" || !box.canOpen) {
      leaf.fill(number, box.start, box.end);
      continue;
    }
    items[number].own = frames.length;
    frames.push({ item: number, parent: top.frame, depth: frames[top.frame].depth + 1, items: [], lines: [] });
    if (box.opening === "one") {
      const shown = box.children[box.shown];
      folds.push({ box, starts: Int32Array.from(box.children, (child) => child.start) });
      copies.push([box, shown]);
    }
    stack.push({ boxes: box.inside, at: 0, frame: frames.length - 1 });
  }
  for (let i = copies.length - 1; i >= 0; i--) {
    const [box, shown] = copies[i]; // inner folds come later, and are copied first
    for (const other of box.children) {
      if (other !== shown && other.operations === shown.operations)
        leaf.copyWithin(other.start, shown.start, shown.end);
    }
  }
}

/** By position the innermost repeat that shows one instance for all, and the instance that it is in. */
interface Turns {
  fold: Int32Array;
  turn: Int32Array;
}

function turnsOf(forest: Forest, folds: Fold[]): Turns | null {
  if (!folds.length) return null;
  const [fold, turn] = [new Int32Array(forest.total).fill(-1), new Int32Array(forest.total)];
  folds.forEach(({ box, starts }, number) => {
    fold.fill(number, box.start, box.end); // outer ones come first
    starts.forEach((start, index) => turn.fill(index, start, starts[index + 1] ?? box.end));
  });
  return { fold, turn };
}

function connect(
  forest: Forest,
  root: Box,
  items: Item[],
  frames: Frame[],
  leaf: Int32Array,
  folds: Fold[],
  options: Options,
): Edge[] {
  const { source, target, value, side } = forest.edges(!options.views);
  const at = turnsOf(forest, folds);
  const outside = outsideItems(forest, root, items, frames, source);
  const results = new Map<number, Edge>();
  const edges: Edge[] = [];
  for (let i = 0; i < source.length; i++) {
    const from = source[i];
    const a = from >= 0 ? leaf[from] : (outside?.get(~from) ?? -1);
    const b = leaf[target[i]];
    if (a < 0 || b < 0) continue;
    const turns = at && from >= 0 ? apart(from, target[i], at, folds) : 0;
    if ((a === b && turns !== 1) || turns > 1) continue;
    const key = (turns ? -1 : 1) * (1 + a * MOST_ITEMS + b);
    const known = results.get(key);
    if (known) {
      known.count += 1;
      if (known.side !== side[i]) known.side = 0;
    } else {
      const carried = turns === 1;
      const edge = { source: a, target: b, value: value[i], count: 1, hub: false, carried, side: side[i], lines: [] };
      results.set(key, edge);
      edges.push(edge);
    }
  }
  addOutputs(forest, root, items, frames, leaf, edges, options);
  return edges;
}

/**
 * How many turns of a loop lie between two positions, of which a single turn is drawn; 0 in the same turn.
 *
 * Those of modules in a row are Infinity: what one hands to the next is the line between them, and no loop.
 */
function apart(a: number, b: number, { fold, turn }: Turns, folds: Fold[]): number {
  let number = Math.min(fold[a], fold[b]);
  if (number < 0) return 0;
  if (fold[a] === fold[b]) {
    const turns = turn[b] - turn[a];
    if (turns) return turns > 0 && folds[number].box.isLoop ? turns : Infinity;
    number -= 1;
  }
  for (; number >= 0; number--) {
    const { box, starts } = folds[number];
    if (a < box.start || a >= box.end || b < box.start || b >= box.end) continue;
    const turns = instance(starts, b) - instance(starts, a);
    if (turns) return turns > 0 && box.isLoop ? turns : Infinity;
  }
  return 0;
}

function instance(starts: Int32Array, position: number): number {
  let low = 0;
  let high = starts.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= position) low = middle;
    else high = middle;
  }
  return low;
}

/** Items for the inputs of the run: one each, or one for all where they are many. */
function outsideItems(
  forest: Forest,
  root: Box,
  items: Item[],
  frames: Frame[],
  source: Int32Array,
): Map<number, number> | null {
  if (!forest.phases.includes(Phase.FORWARD)) return null;
  const { run } = forest;
  const values = givenValues(run, source);
  const sorted = [...values].sort((a, b) => a - b);
  const results = new Map<number, number>();
  const together = sorted.length > MOST_INPUTS;
  let number = -1;
  for (const value of sorted) {
    if (number < 0 || !together) {
      const label = together
        ? `${sorted.length} inputs`
        : run.valueName[value] >= 0
          ? run.valueLabel(value)
          : "from outside";
      const box = new Box(
        forest,
        "input",
        root,
        Int32Array.of(value),
        -1,
        -1,
        label,
        together ? "" : run.typeText(value),
        0,
      );
      number = add(items, frames, box, 0);
    }
    results.set(value, number);
  }
  return results;
}

/** What the run was given; of a recorded stretch of a program that names no inputs, the tensors it found outside. */
function givenValues(run: Forest["run"], source: Int32Array): Set<number> {
  const known = given.get(source);
  if (known) return known;
  const results = new Set<number>();
  const constants = new Set<number>();
  for (let i = 0; i < source.length; i++) {
    if (source[i] >= 0) continue;
    const role = run.valueRole[~source[i]];
    if (role === Role.INPUT) results.add(~source[i]);
    else if (role === Role.CONSTANT) constants.add(~source[i]);
  }
  if (!results.size && !run.valueRole.includes(Role.INPUT))
    for (const value of constants) if (run.type(value)[1].some((size) => size > 1)) results.add(value);
  given.set(source, results);
  return results;
}

const given = new WeakMap<Int32Array, Set<number>>();

function addOutputs(
  forest: Forest,
  root: Box,
  items: Item[],
  frames: Frame[],
  leaf: Int32Array,
  edges: Edge[],
  options: Options,
): void {
  const { run } = forest;
  if (!forest.phases.includes(Phase.FORWARD)) return;
  const root_ = options.views ? null : run.roots;
  const start = run.columns.get("result_start");
  const values = run.columns.get("result_value");
  if (!start || !values) return;
  const outputs = new Map<number, { label: string; value: number; count: number }>();
  run.tables.results.forEach(([name, kind], row) => {
    if (kind !== "output" || start[row] === start[row + 1]) return;
    const value = values[start[row]];
    const producer = run.producer[root_ ? root_[value] : value];
    if (producer >= 0 ? forest.position[producer] < 0 : KEPT.has(ROLES[run.valueRole[value]])) return; // made, or only kept, elsewhere
    const item = producer >= 0 && forest.position[producer] >= 0 ? leaf[forest.position[producer]] : -1;
    const known = outputs.get(item);
    if (known) known.count += 1;
    else outputs.set(item, { label: name, value, count: 1 });
  });
  for (const [item, { label, value, count }] of outputs) {
    const text = count > 1 ? `${label} and ${count - 1} more` : label;
    const box = new Box(forest, "output", root, Int32Array.of(value), -1, -1, text, run.typeText(value), 0);
    const number = add(items, frames, box, 0);
    const rest = { value, count, hub: false, carried: false, side: 0, lines: [] };
    if (item >= 0) edges.push({ source: item, target: number, ...rest });
  }
}

/** What very many read is named at each of its readers; the first keeps its line. */
function nameHubs(items: Item[], edges: Edge[]): void {
  const readers = new Map<number, Edge[]>();
  for (const edge of edges) {
    if (edge.carried) continue;
    const list = readers.get(edge.source);
    if (list) list.push(edge);
    else readers.set(edge.source, [edge]);
  }
  for (const [source, list] of readers) {
    const isInput = items[source].box.kind === "input";
    if (list.length <= (isInput ? MANY_READERS_OF_AN_INPUT : MANY_READERS)) continue;
    list.sort((a, b) => items[a.target].box.start - items[b.target].box.start);
    for (let i = isInput ? 0 : 1; i < list.length; i++) {
      list[i].hub = true;
      items[list[i].target].tags.push(source);
    }
  }
}

interface Ports {
  cells: { edge: number }[][]; // by frame, the ports after its items
}

/**
 * Take every edge through the frames between its ends; lines of one source share their ports.
 *
 * A line leaves a frame at its foot and enters the next at its head; one that runs against the order, the other way round.
 */
function route(items: Item[], frames: Frame[], edges: Edge[], { against }: Flow): Ports {
  const ports: Ports = { cells: frames.map(() => []) };
  const portOf = new Map<number, number>();
  const lineOf = frames.map(() => new Map<number, number>());
  const crowded = crowdedFrames(items, frames, edges);
  const port = (frame: number, edge: number, source: number): number => {
    const key = portKey(frame, edge, source);
    let cell = portOf.get(key);
    if (cell === undefined) {
      cell = frames[frame].items.length;
      frames[frame].items.push(-1);
      ports.cells[frame].push({ edge });
      portOf.set(key, cell);
    }
    return cell;
  };
  const line = (
    edge: Edge,
    sides: [number, number],
    frame: number,
    from: number,
    to: number,
    label: boolean,
    arrow: boolean,
  ): void => {
    const shared =
      crowded && items[frames[frame].items[from]]?.own >= 0 && crowded[items[frames[frame].items[from]].own];
    const key = shared ? -1 - (from * 1_048_576 + to) : (edge.source * 1_048_576 + to) * 2 + Number(edge.carried); // where a source's bytes come from is one cell in every frame
    let number = lineOf[frame].get(key);
    if (number === undefined) {
      number = frames[frame].lines.length;
      frames[frame].lines.push({
        source: edge.source,
        from,
        to,
        value: edge.value,
        label,
        arrow,
        carried: edge.carried,
        side: edge.side,
        exit: sides[0],
        entry: sides[1],
      });
      lineOf[frame].set(key, number);
    } else if (frames[frame].lines[number].side !== edge.side) frames[frame].lines[number].side = 0;
    edge.lines.push(frame, number);
  };
  edges.forEach((edge, number) => {
    if (edge.hub || edge.source === edge.target) return;
    const sides: [number, number] = against[number] ? [TOP, BOTTOM] : [BOTTOM, TOP];
    let a = items[edge.source].frame;
    let b = items[edge.target].frame;
    let from = items[edge.source].cell;
    let to = items[edge.target].cell;
    let arrow = true;
    while (a !== b) {
      if (frames[a].depth >= frames[b].depth) {
        if (!crowded?.[a]) line(edge, sides, a, from, port(a, sides[0], edge.source), false, false);
        from = items[frames[a].item].cell;
        a = frames[a].parent;
      } else {
        if (!crowded?.[b]) {
          line(edge, sides, b, port(b, sides[1], edge.source), to, false, arrow);
          arrow = false;
        }
        to = items[frames[b].item].cell;
        b = frames[b].parent;
      }
    }
    line(edge, sides, a, from, to, true, arrow);
  });
  portsOf.set(frames, portOf);
  return ports;
}

/** Repeats of very many that have nothing to do with one another: with a line to each, all would stand in one endless row. */
function crowdedFrames(items: Item[], frames: Frame[], edges: Edge[]): boolean[] | null {
  const results = frames.map(
    ({ item, items: cells }) => item >= 0 && items[item].box.kind === "fold" && cells.length > PARALLEL,
  );
  if (!results.includes(true)) return null;
  for (const { source, target } of edges) {
    let [a, b] = [items[source].frame, items[target].frame];
    while (a !== b) {
      if (frames[a].depth >= frames[b].depth) a = frames[a].parent;
      else b = frames[b].parent;
    }
    results[a] = false; // they hand something to each other
  }
  return results;
}

const portsOf = new WeakMap<Frame[], Map<number, number>>();

function portKey(frame: number, edge: number, source: number): number {
  return (frame * 4 + edge) * MOST_ITEMS + source;
}

function spec(
  frame: Frame,
  number: number,
  items: Item[],
  frames: Frame[],
  ports: Ports,
  placed: Int32Array,
  options: Options,
): FrameSpec {
  const count = frame.items.length;
  const portOf = portsOf.get(frames)!;
  const w = new Float64Array(count).fill(8);
  const h = new Float64Array(count);
  const order = new Int32Array(count);
  const edge = new Uint8Array(count);
  const child = new Int32Array(count).fill(-1);
  let next = 0;
  for (let cell = 0; cell < count; cell++) {
    const item = frame.items[cell] >= 0 ? items[frame.items[cell]] : null;
    if (!item) {
      edge[cell] = ports.cells[number][next++].edge;
      order[cell] = edge[cell] === TOP ? FIRST : LAST;
      continue;
    }
    const { box } = item;
    order[cell] = placed[cell];
    if (item.own >= 0) child[cell] = item.own;
    else ({ w: w[cell], h: h[cell] } = options.measure(box));
  }
  const portAt = (cell: number, side: number, source: number): number =>
    child[cell] >= 0 ? (portOf.get(portKey(child[cell], side, source)) ?? -1) : -1;
  const { lines } = frame;
  return {
    w,
    h,
    order,
    edge,
    child,
    src: Int32Array.from(lines, (line) => line.from),
    dst: Int32Array.from(lines, (line) => line.to),
    key: Int32Array.from(lines, (line) => (line.carried ? ~line.source : line.source)),
    srcPort: Int32Array.from(lines, (line) => portAt(line.from, line.exit, line.source)),
    dstPort: Int32Array.from(lines, (line) => portAt(line.to, line.entry, line.source)),
    up: options.up,
    header: frame.item < 0 ? 0 : options.header,
    least: frame.item < 0 ? 0 : options.headerWidth(items[frame.item].box),
    pad: PAD,
  };
}
