// The figure of docs/concepts/allocation.md: which turns of a queue enter a batch, rule by rule.
// It works without a network, in light and dark. Without JavaScript the page shows its table instead.
// tests/docs/test_figure.py compares `choose` with the composers of the package.
(() => {
  "use strict";

  // rollout → the disagreement of each of its turns; null: a turn without usable supervision
  const ROLLOUTS = {
    A: [0.4, 0.9, 0.3, 2.1, 0.2, 0.5, null, null, null],
    B: [1.2, 0.3],
    C: [0.2, 0.6, 1.8, 0.1, 0.4, 0.7, 0.3, null],
    D: [0.9, 0.2, 1.5],
    E: [0.3, 2.4],
    F: [0.8, 1.1],
  };
  const COLOURS = { A: "#8ab8e6", B: "#f0bd5a", C: "#74c9a5", D: "#e6a3c8", E: "#f2957a", F: "#bba9ea" };
  const STAGES = [
    ["vanilla", "Queue", "Arrival order: the batch takes the first turns that came. One long rollout fills it."],
    ["gate-only", "Gate", "Turns without usable supervision (×) are dropped. They would take a slot and teach nothing."],
    ["divopd-base", "Coverage", "Every rollout gives at most k turns, drawn at random. If slots are left, k rises by one."],
    ["divopd", "Focus", "The same slots for every rollout, but its turns with the largest disagreement go first."],
  ];

  const queue = Object.entries(ROLLOUTS).flatMap(([rollout, values]) =>
    values.map((value, turn) => ({ rollout, turn, value, key: rollout + turn })));

  // the turns that a method selects, in order; the same rules as the composers of the package
  function choose(method, size, cap) {
    if (method === "vanilla") return queue.slice(0, size);
    const valid = queue.filter((one) => one.value !== null);
    if (method === "gate-only") return valid.slice(0, size);
    const rank = method === "divopd" ? (a, b) => b.value - a.value || a.turn - b.turn : (a, b) => draw(a) - draw(b);
    const groups = Object.keys(ROLLOUTS).map((name) => valid.filter((one) => one.rollout === name).sort(rank));
    const selected = [];
    for (let given = 0, limit = cap; selected.length < Math.min(size, valid.length); given = limit, limit += 1)
      for (const group of groups) selected.push(...group.slice(given, Math.min(limit, given + size - selected.length)));
    return selected;
  }

  // a number that looks drawn and is the same every time
  const draw = (one) => (Math.sin(one.rollout.charCodeAt(0) * 12.9 + one.turn * 78.2) * 43758.5) % 1;

  function figures(selected) {
    const rows = {};
    for (const one of selected) rows[one.rollout] = (rows[one.rollout] || 0) + 1;
    const shares = Object.values(rows).map((count) => count / selected.length);
    return {
      rollouts: shares.length,
      effective: 1 / shares.reduce((sum, share) => sum + share * share, 0),
      largest: Math.max(...shares),
      dead: selected.filter((one) => one.value === null).length,
    };
  }

  function svg(tag, attributes, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  function html(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  const CELL = 34, GAP = 4, BAR = 20;

  // squares in rows: letter and turn, a bar for the disagreement, faded where a turn is not selected
  function squares(turns, width, chosen, label) {
    const columns = Math.max(4, Math.floor((width + GAP) / (CELL + GAP)));
    const height = Math.ceil(turns.length / columns) * (CELL + BAR + GAP * 2);
    const drawing = svg("svg", { width: columns * (CELL + GAP), height, role: "img", "aria-label": label });
    turns.forEach((one, place) => {
      const x = (place % columns) * (CELL + GAP), y = Math.floor(place / columns) * (CELL + BAR + GAP * 2);
      const picked = !chosen || chosen.has(one.key), fade = picked ? 1 : 0.25;
      const group = svg("g", {});
      const dead = one.value === null, bar = dead ? 0 : (one.value / 2.4) * BAR;
      const told = dead ? "no usable supervision" : `disagreement ${one.value}`;
      group.append(svg("title", {}, `rollout ${one.rollout}, turn ${one.turn}: ${told}`));
      group.append(svg("rect", { x: x + 8, y: y + BAR - bar, width: CELL - 16, height: bar, opacity: fade, class: "allocation-bar" }));
      group.append(svg("rect", { x, y: y + BAR + 2, width: CELL, height: CELL, rx: 5, fill: COLOURS[one.rollout],
        "fill-opacity": fade, class: chosen && picked ? "allocation-chosen" : "allocation-square" }));
      group.append(svg("text", { x: x + CELL / 2, y: y + BAR + 2 + CELL / 2 + 5, class: picked ? "allocation-letter" : "allocation-letter allocation-left" },
        dead ? `${one.rollout} ×` : one.key));
      drawing.append(group);
    });
    return drawing;
  }

  function draw_figure(root) {
    const state = { stage: 0, size: 8, cap: 2 };
    const buttons = STAGES.map(([, name], place) => {
      const button = html("button", { type: "button" }, `${place + 1} ${name}`);
      button.addEventListener("click", () => { state.stage = place; render(); });
      return button;
    });
    const slider = (name, key, most) => {
      const input = html("input", { type: "range", min: 1, max: most, value: state[key], id: `allocation-${key}` });
      const shown = html("output", { for: input.id }, String(state[key]));
      input.addEventListener("input", () => { state[key] = Number(input.value); shown.textContent = input.value; render(); });
      return { row: html("label", {}, `${name} `, input, " ", shown), input };
    };
    const size = slider("batch size B", "size", 16), cap = slider("cap k", "cap", 8);
    const told = html("p", { class: "allocation-told", "aria-live": "polite" });
    const above = html("div", {}), below = html("div", {});
    root.replaceChildren(
      html("div", { class: "allocation-controls" }, ...buttons), html("div", { class: "allocation-controls" }, size.row, cap.row),
      told, html("p", { class: "allocation-title" }, "The queue, in the order of arrival (a bar: how much student and teacher disagree)"),
      above, html("p", { class: "allocation-title" }, "The batch"), below);

    function render() {
      const [method, , sentence] = STAGES[state.stage];
      const selected = choose(method, state.size, state.cap), found = figures(selected);
      buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(place === state.stage)));
      cap.input.disabled = state.stage < 2;
      told.replaceChildren(sentence + " ", html("strong", {},
        `${method}: ${found.rollouts} of 6 rollouts, ${found.effective.toFixed(1)} effective, the largest has ` +
        `${Math.round(100 * found.largest)} % of the batch, ${found.dead} dead rows.`));
      const width = root.clientWidth - 24;
      above.replaceChildren(squares(queue, width, new Set(selected.map((one) => one.key)), "the queue; selected turns stand out"));
      below.replaceChildren(squares(selected, width, null, `the batch: ${selected.map((one) => one.key).join(" ")}`));
    }
    render();
    let width = root.clientWidth;
    new ResizeObserver(() => { if (root.clientWidth !== width) { width = root.clientWidth; render(); } }).observe(root);
  }

  window.allocationFigure = { ROLLOUTS, choose, figures };
  const start = () => { const root = document.getElementById("allocation-figure"); if (root) draw_figure(root); };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
})();
