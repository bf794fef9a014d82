/** What the keys do. */

import { PHASES } from "../data/schema.gen.ts";
import type { Mode } from "../app.ts";
import { saveSvg } from "../panels/exports.ts";
import type { Shell } from "../shell.ts";
import type { Actions } from "./keyboard.ts";
import { otherPhase } from "./tree_navigation.ts";

export function actionsOf(shell: Shell): Actions {
  const { app, view } = shell;
  return {
    search: () => shell.search.input.focus(),
    toggle: (box) => void shell.onZone("toggle", box),
    showAll: (box) => void shell.onZone("all", box),
    step: (box, by) => void shell.onZone(by > 0 ? "next" : "previous", box),
    depth: (depth) => void shell.setDepth(depth),
    openEverything: () => void shell.openEverything(),
    fit: () => void shell.fit(),
    zoomToSelection: () => {
      const hit = app.selected && app.scene?.find(app.selected);
      if (hit) view.fly(view.around(app.scene!.rect(hit), 1.6));
    },
    zoom: (factor) => view.zoom(factor),
    nextHeat: (off) => nextHeat(shell, off),
    nextMode: () => {
      const options = [...shell.mode.options].map((option) => option.value);
      void shell.setMode(options[(options.indexOf(app.mode) + 1) % options.length] as Mode);
    },
    jumpLink: () => jumpLink(shell),
    path: () => {
      app.wholePath = !app.wholePath;
      app.select(app.selected, app.node);
      shell.say(app.wholePath ? "whole path" : "direct neighbours");
    },
    views: () => {
      app.views = !app.views;
      void shell.refresh(app.selected);
      shell.say(app.views ? "views shown" : "views looked through");
    },
    dock: (name) => shell.toggleDock(name),
    theme: () => shell.switchTheme(),
    copy: () => void shell.copy(),
    saveSvg: () => saveSvg(app),
    escape: () => letGo(shell),
    help: () => shell.help.showModal(),
    undo: () => shell.undo(-1),
    redo: () => shell.undo(1),
    pick: (box) => {
      if (app.selected && app.selected.forest !== box.forest)
        shell.say(`${PHASES[box.forest.phases[0]]}: no line, but the same bytes`);
      app.select(box);
      view.reveal(box);
    },
  };
}

/** Of all that is brought out: the brush, the search, the selection. */
function letGo({ app, timeline, search }: Shell): void {
  timeline.clear();
  search.input.value = "";
  search.results.hidden = true;
  app.mark(null);
  app.select(null);
}

function nextHeat({ app, heat }: Shell, off: boolean): void {
  const ids = ["", ...app.measures.map((measure) => measure.id)];
  const next = off ? "" : ids[(ids.indexOf(app.heat?.id ?? "") + 1) % ids.length];
  heat.value = next;
  app.setHeat(next);
}

/** From an operation of forward to one of its backward, and back. */
function jumpLink(shell: Shell): void {
  const { app, view } = shell;
  const nodes =
    app.node >= 0
      ? [app.node]
      : app.selected && app.selected.start >= 0
        ? Array.from(app.selected.forest.order.subarray(app.selected.start, app.selected.end))
        : [];
  for (const node of nodes) {
    const others = app.run.nodeLink[node] >= 0 ? [app.run.nodeLink[node]] : app.run.linked(node);
    if (others.length) return void shell.goNode(others[0]);
  }
  const other = app.selected && app.scene ? otherPhase(app.scene, app.selected) : null;
  if (!other) return shell.say("no operation of another phase belongs to this one");
  app.select(other);
  view.reveal(other);
}
