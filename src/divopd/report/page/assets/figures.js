"use strict";
// The frame of a figure: title, drawing, and its data as a table, a CSV file or an SVG file.

function download(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// A cell that begins like a formula would be one in a spreadsheet: an apostrophe keeps it a text.
function csv(rows) {
  const safe = (value) => (typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : value);
  return d3.csvFormat(rows.map((row) => Object.fromEntries(Object.entries(row).map(([name, value]) => [name, safe(value)]))));
}

// A drawing on its own: colours that come from the page's style are written into it.
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const style = getComputedStyle(svg);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.style.color = style.color;
  copy.style.background = getComputedStyle(document.body).getPropertyValue("--card").trim();
  copy.style.fontFamily = "system-ui, sans-serif";
  return new XMLSerializer().serializeToString(copy);
}

function figure({ title, note, name, rows, draw, height = 260, legend = [] }) {
  const body = el("div", { class: "drawing", style: { "min-height": rows.length ? `${height}px` : "0" } });
  const table = el("div", { class: "figure-table", hidden: true });
  const buttons = el("div", { class: "tools" });
  const key = el("div", { class: "legend" }, legend.map(([label, colour]) => el("span", {}, dot(colour), visible(label))));
  const node = el("figure", { class: "card", "aria-label": title },
    el("figcaption", {}, el("h3", {}, title), buttons, note ? el("p", {}, note) : null), legend.length && rows.length ? key : null, body, table);
  if (!rows.length) {
    body.append(empty("Nothing to draw", "The runs that are shown have not recorded it: it is too early, they are replays, or an older version made them."));
    return node;
  }
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (!now || now === width) return;
    width = now;
    body.replaceChildren(draw(width, height));
  }).observe(body);
  const toggle = el("button", { type: "button", class: "tool", "aria-expanded": "false", onclick: () => {
    table.hidden = !table.hidden;
    toggle.setAttribute("aria-expanded", String(!table.hidden));
    if (!table.hidden && !table.firstChild) table.append(plainTable(rows, title));
  } }, "Table");
  buttons.append(toggle,
    el("button", { type: "button", class: "tool", title: "the data of this figure", onclick: () => download(`${name}.csv`, "text/csv", csv(rows)) }, "CSV"),
    el("button", { type: "button", class: "tool", title: "this figure", onclick: () => download(`${name}.svg`, "image/svg+xml", standalone(body.querySelector("svg"))) }, "SVG"));
  return node;
}

// Settings that all charts share. Numbers on axes are short, and zero is shown.
function chart(width, height, options) {
  return Plot.plot({
    width, height, marginLeft: 52, marginRight: 18, marginTop: 22, marginBottom: 38,
    style: { background: "transparent", fontSize: "12px", fontFamily: "inherit", overflow: "visible" },
    ...options,
  });
}

// Ticks of an axis; where all values are whole there is nothing between two of them.
function countTicks(values, wanted) {
  const ticks = d3.ticks(...d3.extent(values), Math.max(3, wanted));
  return values.every(Number.isInteger) ? ticks.filter(Number.isInteger) : ticks;
}

const shortNumber = (value) => (value && Math.abs(value) < 0.001 ? String(Number(value.toPrecision(3)).toExponential()) : show.quantity(value).replace(" ", ""));

// ── over any axis ────────────────────────────────────────────────────────────────────────────────────────────────

// What has been spent or done so far; the first is what figures are drawn over unless another is chosen.
const AXES = {
  trained_tokens: "trained tokens",
  version: "updates",
  computed_tokens: "computed tokens",
  learner_s: "learner seconds",
  elapsed_s: "run seconds",
  scored_tokens: "teacher tokens",
  generated_tokens: "explorer tokens",
};
const SMOOTHINGS = { 1: "none", 5: "5 updates", 20: "20 updates", 50: "50 updates" };
const RANGES = { all: "whole run", half: "second half", quarter: "last quarter", 50: "last 50 updates" };
const PARTS = { all: 0, half: 0.5, quarter: 0.75 };

function segmented(label, options, chosen, onchoose) {
  return el("div", { class: "segments", role: "group", "aria-label": label },
    Object.entries(options).map(([key, text]) =>
      el("button", { type: "button", "aria-pressed": String(key === chosen), "data-key": `${label}/${key}`, onclick: () => onchoose(key) }, text)));
}

function picker(label, options, chosen, onchange) {
  return el("label", { class: "picker" }, label,
    el("select", { "data-key": `picker/${label}`, onchange: (event) => onchange(event.target.value) }, options.map(([value, text]) => el("option", { value, selected: value === chosen }, visible(text)))));
}

// How lines are drawn, for all views that have some: it stays when another view is chosen.
function lineControls(context, { smooth = true, seeds = true, more = null } = {}) {
  return el("div", { class: "controls" }, more,
    picker("Over", Object.entries(AXES), context.axis, (key) => context.choose("x", key)),
    smooth ? picker("Running mean", Object.entries(SMOOTHINGS), String(context.smooth), (key) => context.choose("smooth", key)) : null,
    picker("Range", Object.entries(RANGES), context.range, (key) => context.choose("range", key)),
    seeds && context.groups.some((group) => group.runs.length > 1)
      ? picker("Lines", [["methods", "mean and band of seeds"], ["runs", "every run"]], context.banded ? "methods" : "runs", (key) => context.choose("lines", key)) : null);
}

// The rows of one run that are in the range; `update` of a row says where it is.
function inRange(context, rows) {
  if (!rows.length) return rows;
  const last = rows.at(-1).update;
  const first = context.range in PARTS ? PARTS[context.range] * last : last - Number(context.range) + 1;
  return rows.filter((row) => row.update >= first);
}

function xOf(axis, row) {
  if (axis === "version") return row.update;
  return axis === "elapsed_s" ? row.elapsed_s : row[`cost.${axis}`];
}

// A figure of every update as lines: `of` takes a row of source.updates. Where a run has not counted what the axis
// counts, as a replay, all are drawn over updates.
function seriesOf(context, made, of, size = context.smooth) {
  const all = context.shown.map((run, place) => ({ run: run.name, rows: rowsOf(made[place].columns) }));
  const counted = all.every(({ rows }) => rows.every((row) => xOf(context.axis, row) !== null && xOf(context.axis, row) !== undefined));
  const axis = counted ? context.axis : "version";
  const rows = all.flatMap(({ run, rows: own }) => {
    const values = own.map((row) => { const value = of(row); return value === undefined ? null : value; });
    const means = smoothed(values, size);
    return inRange(context, own.map((row, place) => ({ run, update: row.update, x: xOf(axis, row), y: means[place], exact: values[place] }))).filter((row) => row.exact !== null);
  });
  return { axis, rows };
}

// One small figure over updates. `format` shows a value with its unit.
function updateFigure(context, made, { title, note, name, of, format, height = 200, marks = [], y = null, exact = false }) {
  const size = exact ? 1 : context.smooth;
  const { axis, rows } = seriesOf(context, made, of, size);
  const mean = size > 1 ? ` Running mean of ${size} updates.` : "";
  return figure({
    title, note: `${note}.${mean}`, name, height, legend: context.lineLegend,
    rows: rows.map((row) => ({ run: row.run, update: row.update, [axis === "version" ? "over" : axis]: row.x, value: row.exact })),
    draw: (width, tall) => runLines(width, tall, {
      rows, context, x: `${AXES[axis]} →`, y, marks,
      tip: (row) => `${visible(row.run)}\nupdate ${row.update}: ${format(row.exact)}${size > 1 ? `\nrunning mean: ${format(row.y)}` : ""}`,
    }),
  });
}

// ── bars over updates ────────────────────────────────────────────────────────────────────────────────────────────

// Where the bar of each update in the range begins and ends. What a run has not counted is drawn over updates.
function spansOf(context, updates) {
  const counted = updates.every((row) => xOf(context.axis, row) !== null && xOf(context.axis, row) !== undefined);
  const axis = counted ? context.axis : "version";
  const ends = updates.map((row) => (axis === "version" ? row.update + 1 : xOf(axis, row)));
  const first = axis === "version" && updates.length ? updates[0].update : 0;
  return { axis, spans: inRange(context, updates.map((row, place) => ({ update: row.update, from: place ? ends[place - 1] : first, to: ends[place] }))) };
}

const MOST_BARS = 120; // so many can be told apart

// Bars of parts that stand on one another. A row has an update, and what `part` and `value` name.
function stackFigure(context, updates, { title, note, name, rows, part, value, parts, colours, format, height = 240 }) {
  const { axis, spans } = spansOf(context, updates);
  const step = Math.max(1, Math.ceil(spans.length / MOST_BARS));
  const bars = d3.groups(spans, (_, place) => Math.floor(place / step)).map(([, own]) => ({ update: own[0].update, from: own[0].from, to: own.at(-1).to, updates: own.map((one) => one.update) }));
  const barOf = new Map(bars.flatMap((bar) => bar.updates.map((update) => [update, bar])));
  const inside = rows.filter((row) => barOf.has(row.update));
  const drawn = d3.rollups(inside, (own) => d3.mean(own, (row) => row[value]), (row) => barOf.get(row.update), (row) => row[part])
    .flatMap(([bar, own]) => own.map(([key, mean]) => ({ ...bar, part: key, mean })));
  return figure({
    title, note: step > 1 ? `${note} Means of ${step} updates.` : note, name, rows: inside, height, legend: parts.map((key, place) => [spoken(key), colours[place % colours.length]]),
    draw: (width, tall) => chart(width, tall, {
      x: { label: `${AXES[axis]} →`, tickFormat: shortNumber, ticks: countTicks(bars.flatMap((bar) => [bar.from, bar.to]), width / 90) }, y: { label: `↑ ${value}`, grid: true, tickFormat: shortNumber },
      color: { domain: parts, range: parts.map((_, place) => colours[place % colours.length]) },
      marks: [Plot.rectY(drawn, { x1: "from", x2: "to", y: "mean", fill: "part", order: parts, insetLeft: 0.4, insetRight: 0.4, title: (row) => `update ${row.update}\n${spoken(row.part)}: ${format(row.mean)}` }), Plot.ruleY([0])],
    }),
  });
}

// ── names beside rows ────────────────────────────────────────────────────────────────────────────────────────────

// Names of the rows of a chart: beside them; on a phone, where they would be cut, above them.
function rowNames(width, names) {
  const longest = 20 + 7 * d3.max(names, (name) => visible(name).length);
  if (longest <= 0.42 * width) return { marginLeft: longest, y: { label: null, domain: names, tickFormat: visible }, marks: [], above: false };
  const text = Plot.text(names, { y: (name) => name, text: visible, frameAnchor: "left", textAnchor: "start", dx: 2, dy: -15, fill: "currentColor", stroke: "var(--card)", strokeWidth: 4 });
  return { marginLeft: 12, y: { axis: null, domain: names }, marks: [text], above: true };
}

// A dot for every run in every row; those of equal value stand below one another.
function runDots(rows, { x, y, colours, r }) {
  const runs = [...colours.keys()].filter((run) => rows.some((row) => row.run === run));
  const apart = Math.min(4, 12 / runs.length);
  return runs.map((run, place) => Plot.dot(rows.filter((row) => row.run === run), { x, y, fill: colours.get(run), r, dy: apart * (place - (runs.length - 1) / 2) }));
}

// ── seeds of one method ──────────────────────────────────────────────────────────────────────────────────────────

// Runs that differ in their seed only belong together.
function groupsOf(runs) {
  const groups = d3.groups(runs, (run) => `${run.method} ${run.kind} ${JSON.stringify(run.settings)}`).map(([, own]) => ({ runs: own, method: own[0].method }));
  for (const group of groups) {
    const alike = groups.filter((other) => other.method === group.method);
    const apart = alike.length > 1 ? ` (${group.runs[0].name}${group.runs.length > 1 ? " …" : ""})` : "";
    group.label = group.runs.length > 1 ? `${group.method}${apart}, ${group.runs.length} seeds` : group.runs[0].name;
  }
  return groups;
}

function valueAt(points, x) {
  const place = d3.bisector((point) => point.x).left(points, x);
  if (place === 0) return points[0].y;
  const [before, after] = [points[place - 1], points[Math.min(place, points.length - 1)]];
  return after.x === before.x ? after.y : before.y + ((after.y - before.y) * (x - before.x)) / (after.x - before.x);
}

// Mean, lowest and highest of the runs of a group, over what all of them have come to; between points linear.
function bandOf(group, rows) {
  const lines = group.runs.map((run) => d3.sort(rows.filter((row) => row.run === run.name), (row) => row.x)).filter((line) => line.length);
  if (lines.length < 2) return [];
  const [from, to] = [d3.max(lines, (line) => line[0].x), d3.min(lines, (line) => line.at(-1).x)];
  const places = [...new Set(lines.flat().map((point) => point.x).filter((x) => x >= from && x <= to))].sort(d3.ascending);
  const step = Math.max(1, Math.ceil(places.length / 150));
  return places.filter((_, place) => place % step === 0 || place === places.length - 1).map((x) => {
    const values = lines.map((line) => valueAt(line, x));
    return { group: group.label, x, mean: d3.mean(values), low: d3.min(values), high: d3.max(values) };
  });
}

// Lines of runs, one colour a run; or, where seeds are drawn together, one colour a method: thin lines for its runs, a
// thick one for their mean, and a band from the lowest to the highest.
function runLines(width, height, { rows, context, x, y, marks = [], dots = false, tip }) {
  if (!context.banded) return lines(width, height, { rows, colours: context.colours, x, y, marks, dots, tip });
  const many = context.groups.filter((group) => group.runs.length > 1);
  const bands = many.flatMap((group) => bandOf(group, rows).map((row) => ({ ...row, colour: context.lineColours.get(group.runs[0].name) })));
  const means = Plot.lineY(bands, { x: "x", y: "mean", z: "group", stroke: "colour", strokeWidth: 2.6 });
  const area = Plot.areaY(bands, { x: "x", y1: "low", y2: "high", z: "group", fill: "colour", fillOpacity: 0.16 });
  const alone = new Set(context.groups.filter((group) => group.runs.length === 1).map((group) => group.runs[0].name));
  return lines(width, height, { rows, colours: context.lineColours, x, y, marks: [...marks, area], over: [means], dots, tip, thin: (run) => !alone.has(run) });
}

// Lines over updates, one colour a run. `rows` have run, x and y. Runs that are `thin` are drawn so.
function lines(width, height, { rows, colours, x, y, marks = [], over = [], dots = false, tip, thin = () => false }) {
  const [faint, full] = [rows.filter((row) => thin(row.run)), rows.filter((row) => !thin(row.run))];
  const stroke = (row) => colours.get(row.run);
  const single = dots ? [] : d3.groups(rows, (row) => row.run).filter(([, own]) => own.length === 1).map(([, [row]]) => row); // no line yet
  return chart(width, height, {
    x: { label: x, tickFormat: shortNumber, ticks: countTicks(rows.map((row) => row.x), width / 90), ...(dots ? { insetLeft: 6, insetRight: 6 } : {}) },
    y: { label: y, grid: true, nice: true, ticks: Math.max(3, height / 45), tickFormat: shortNumber, ...(rows.some((row) => row.y) ? { zero: true } : { domain: [0, 1] }) },
    marks: [
      Plot.ruleY([0], { stroke: "currentColor", strokeOpacity: 0.25 }),
      ...marks,
      Plot.lineY(faint, { x: "x", y: "y", stroke, z: "run", strokeWidth: 1, strokeOpacity: 0.55 }),
      Plot.lineY(full, { x: "x", y: "y", stroke, z: "run", strokeWidth: 2, curve: "linear" }),
      Plot.dot(single, { x: "x", y: "y", fill: stroke, r: 3 }),
      dots ? Plot.dot(full, { x: "x", y: "y", fill: stroke, r: 3 }) : null,
      dots ? Plot.dot(faint, { x: "x", y: "y", fill: stroke, fillOpacity: 0.55, r: 2 }) : null,
      ...over,
      Plot.tip(rows, Plot.pointer({ x: "x", y: "y", title: tip, stroke, maxRadius: 60 })),
    ],
  });
}

// Means over the last few updates: a batch follows what arrived, so single ones jump. What is unknown does not count.
function smoothed(values, size = 5) {
  return values.map((value, place) => (value === null ? null : d3.mean(values.slice(Math.max(0, place + 1 - size), place + 1).filter((one) => one !== null))));
}
