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
    el("figcaption", {}, el("h3", {}, title), buttons, note ? el("p", {}, note) : null), legend.length ? key : null, body, table);
  if (!rows.length) {
    body.append(empty("Nothing to draw yet", "There are no figures of this kind in the runs that are shown."));
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

const shortNumber = (value) => show.quantity(value).replace(" ", "");

// Lines over updates, one colour a run. `rows` have run, x and y.
function lines(width, height, { rows, colours, x, y, marks = [], dots = false, tip }) {
  return chart(width, height, {
    x: { label: x, tickFormat: shortNumber, ticks: countTicks(rows.map((row) => row.x), width / 90), ...(dots ? { insetLeft: 6, insetRight: 6 } : {}) },
    y: { label: y, grid: true, nice: true, ticks: Math.max(3, height / 45), tickFormat: shortNumber, ...(rows.some((row) => row.y) ? { zero: true } : { domain: [0, 1] }) },
    color: { domain: [...colours.keys()], range: [...colours.values()] },
    marks: [
      Plot.ruleY([0], { stroke: "currentColor", strokeOpacity: 0.25 }),
      ...marks,
      Plot.lineY(rows, { x: "x", y: "y", stroke: "run", z: "run", strokeWidth: 2, curve: "linear" }),
      dots ? Plot.dot(rows, { x: "x", y: "y", fill: "run", r: 3 }) : null,
      Plot.tip(rows, Plot.pointer({ x: "x", y: "y", title: tip, stroke: "run", maxRadius: 60 })),
    ],
  });
}

// Means over the last few updates: a batch follows what arrived, so single ones jump.
function smoothed(values, size = 5) {
  return values.map((_, place) => d3.mean(values.slice(Math.max(0, place + 1 - size), place + 1)));
}
