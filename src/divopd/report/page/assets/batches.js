"use strict";
// What is in the batches: slots by rollout, how concentrated they are, and one batch explained.

const BATCHES_SHOWN = 24;

const COMPOSITION = [
  ["effective_rollouts", "Effective rollouts", "1 / Σ p², p = a rollout's share of the batch's tokens", (v) => v, (v) => show.fixed(v, 1)],
  ["top1_share", "Largest rollout (% of tokens)", "The share of the rollout that has the most tokens", (v) => 100 * v, (v) => show.rate(v)],
  ["dead_share", "Dead rows (%)", "Rows without a valid token: they count in the loss and teach nothing", (v) => 100 * v, (v) => show.rate(v)],
  ["turns_per_rollout", "Turns per rollout", "Rows of the batch by its rollouts", (v) => v, (v) => show.fixed(v, 1)],
];

views.batches = {
  title: "Batches",
  about: "Each column is one learner batch; each stretch in it is one rollout, as tall as the slots it was given.",
  async load(context) {
    const longest = Math.max(0, ...context.shown.map((run) => run.updates));
    const last = Math.max(0, longest - BATCHES_SHOWN);
    const first = Math.min(last, Number(context.choice("first", last)));
    const batches = await Promise.all(context.shown.map((run) => source.batches(run.name, first, BATCHES_SHOWN)));
    const updates = await Promise.all(context.shown.map((run) => source.updates(run.name)));
    const [name, update] = [context.choice("of", ""), context.choice("batch", "")];
    const explained = name && update !== "" ? await source.get("run", name, "batch", update).catch((error) => ({ error: error.message })) : null;
    return { first, last, longest, batches, updates, explained, name, update };
  },
  render(context, made) {
    const { first, last, longest, batches, updates, explained, name, update } = made;
    return [
      pager("batches", first, BATCHES_SHOWN, longest, (place) => context.choose("first", String(Math.max(0, Math.min(last, place))))),
      ...context.shown.map((run, place) => anatomy(context, run, batches[place].batches, { first, chosen: name === run.name ? update : null })),
      el("p", { class: "note" }, el("span", { class: "hatch", "aria-hidden": "true" }), " dead rows. Colours only tell neighbours apart: the same colour in two columns is not the same rollout. Press a column to see why it is as it is."),
      explained ? explanation(context, name, explained) : null,
      lineControls(context),
      el("div", { class: "grid" }, COMPOSITION.map(([key, title, note, of, format]) => updateFigure(context, updates, { title, note, name: key, of: (row) => of(row[key]), format, height: 190 }))),
    ];
  },
};

function pager(what, first, size, total, go) {
  const end = Math.min(first + size, total);
  const button = (text, label, place, off) => el("button", { type: "button", class: "tool", "aria-label": label, disabled: off, "data-key": `${what}/${label}`, onclick: () => go(place) }, text);
  return el("div", { class: "pager", role: "group", "aria-label": `Which ${what}` },
    button("«", `first ${what}`, 0, first === 0), button("‹", `earlier ${what}`, first - size, first === 0),
    el("span", {}, total ? `${what} ${show.whole(first + (what === "batches" ? 0 : 1))} – ${show.whole(end - (what === "batches" ? 1 : 0))} of ${show.whole(total)}` : `no ${what}`),
    button("›", `later ${what}`, first + size, end >= total), button("»", `last ${what}`, Math.max(0, total - size), end >= total));
}

function anatomy(context, run, batches, { first, chosen }) {
  const rows = batches.flatMap((batch) => batch.slots.map(([rollout, live, dead, tokens]) => ({ update: batch.update, rollout, live_rows: live, dead_rows: dead, tokens })));
  const rollouts = d3.mean(batches, (batch) => batch.slots.length);
  return figure({
    title: visible(run.name), name: `batches-${run.method}`, rows, height: 210,
    note: batches.length ? `${visible(run.method)}: ${show.fixed(rollouts, 1)} rollouts a batch on average here, batch size ${run.batch_size}.` : `${visible(run.method)}: no batch in this range.`,
    draw: (width, height) => drawBatches(width, height, { batches, first, size: run.batch_size, chosen, open: (update) => context.chooseAll({ of: run.name, batch: String(update) }) }),
  });
}

function drawBatches(width, height, { batches, first, size, chosen, open }) {
  const [left, right, top, bottom] = [40, 8, 8, 26];
  const x = d3.scaleBand(d3.range(first, first + BATCHES_SHOWN), [left, width - right]).paddingInner(0.14);
  const tallest = Math.max(size || 1, ...batches.map((batch) => d3.sum(batch.slots, (slot) => slot[1] + slot[2])));
  const y = d3.scaleLinear([0, tallest], [height - bottom, top]);
  const svg = el("svg:svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "slots", role: "group", "aria-label": "batches" });
  for (const tick of y.ticks(4)) {
    svg.append(el("svg:line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), stroke: "currentColor", "stroke-opacity": 0.1 }),
      el("svg:text", { x: left - 6, y: y(tick), dy: "0.32em", "text-anchor": "end", "font-size": 11, fill: "currentColor" }, String(tick)));
  }
  svg.append(el("svg:text", { x: 10, y: (top + height - bottom) / 2, transform: `rotate(-90 10 ${(top + height - bottom) / 2})`, "text-anchor": "middle", "font-size": 11, fill: "currentColor" }, "slots"));
  for (const batch of batches) svg.append(column(batch, { x, y, chosen: String(batch.update) === chosen, open }));
  for (const update of x.domain()) {
    if (update % (x.bandwidth() < 26 ? 4 : 2) === 0) svg.append(el("svg:text", { x: x(update) + x.bandwidth() / 2, y: height - 8, "text-anchor": "middle", "font-size": 11, fill: "currentColor" }, String(update)));
  }
  return svg;
}

function column(batch, { x, y, chosen, open }) {
  const rows = d3.sum(batch.slots, (slot) => slot[1] + slot[2]);
  const label = `update ${batch.update}: ${plural(rows, "row")} of ${plural(batch.slots.length, "rollout")}`;
  const press = (event) => {
    if (event.type === "click" || event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open(batch.update);
    }
  };
  const group = el("svg:g", { tabindex: "0", role: "button", class: chosen ? "column chosen" : "column", "aria-label": label, "data-key": `column/${batch.update}`, onclick: press, onkeydown: press });
  let filled = 0;
  const { slots, dead: grey } = palette();
  const stretch = (count, fill, title) => {
    const [high, low] = [y(filled + count), y(filled)];
    group.append(el("svg:rect", { x: x(batch.update), width: x.bandwidth(), y: high, height: Math.max(0.5, low - high - 0.8), fill }, el("svg:title", {}, title)));
    filled += count;
  };
  batch.slots.forEach(([rollout, live, , tokens], place) => {
    if (live) stretch(live, slots[place % slots.length], `update ${batch.update}\n${visible(rollout)}: ${plural(live, "slot")}, ${show.quantity(tokens)} tokens`);
  });
  const dead = d3.sum(batch.slots, (slot) => slot[2]);
  if (dead) stretch(dead, grey, `update ${batch.update}: ${plural(dead, "dead row")}`);
  group.prepend(el("svg:rect", { class: "halo", x: x(batch.update) - 2, width: x.bandwidth() + 4, y: y(filled) - 2, height: y(0) - y(filled) + 4, rx: 3 }));
  return group;
}

function rolloutLink(context, run, rollout) {
  const readable = source.has("run", run, "rollout", rollout);
  return readable
    ? el("a", { href: context.address("rollouts", { of: run, rollout }), class: "mono" }, visible(rollout))
    : el("span", { class: "mono", title: "its texts are not in this report; `divopd watch` shows all" }, visible(rollout));
}

function explanation(context, run, made) {
  if (made.error) return card("Batch", null, empty("This batch is not explained here", `${visible(made.error)}; divopd watch or divopd explain shows it.`));
  const count = (row) => row.selected.length;
  const selected = made.rollouts.filter(count);
  const passes = (row) => d3.groups(row.selected, (turn) => turn[2]).map(([pass, turns]) => el("div", {}, el("span", { class: "pass" }, `pass ${pass}`),
    turns.map(([turn, disagreement, , reason]) => el("span", { class: reason ? "slot dead" : "slot", title: reason ? `turn ${turn}: dead row (${spoken(reason)})` : `turn ${turn}, disagreement ${show.fixed(disagreement)}` }, `${turn}: ${reason ? "dead" : show.fixed(disagreement)}`))));
  const columns = [
    { key: "rollout", label: "rollout", text: true, node: (row) => rolloutLink(context, run, row.rollout) },
    { key: "task", label: "task", text: true },
    { key: "version", label: "version" },
    { key: "first_seen", label: "first seen" },
    { key: "slots", label: "slots", value: count },
    { key: "selected", label: "selected turns: disagreement", text: "wide", sorts: false, node: (row) => (row.selected.length ? el("div", {}, passes(row)) : NONE) },
    { key: "pending", label: "stayed pending", value: (row) => row.pending.length },
    { key: "fell_out", label: "fell out", text: "roomy", sorts: false, format: (out) => out.map(([why, turns]) => `${plural(turns, "turn")}: ${spoken(why)}`).join("; ") || NONE },
  ];
  const { method, cap, batch_size: size } = made.settings;
  return el("section", { class: "card", id: "explanation", "data-of": `${run} ${made.update}` },
    el("header", {}, el("h3", {}, visible(`Update ${made.update} of ${run}`)),
      el("p", {}, visible(`${method}, batch size ${size}, cap ${cap ?? "none"}: ${plural(d3.sum(selected, count), "turn")} of ${plural(selected.length, "rollout")} selected, ${d3.sum(made.rollouts, (row) => row.pending.length)} stayed pending.`))),
    sortableTable({ columns, rows: made.rollouts, caption: `Update ${made.update}` }));
}
