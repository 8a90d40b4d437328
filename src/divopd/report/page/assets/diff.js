"use strict";
// Two runs side by side: every figure and its difference, their curves, and the settings in which they differ.

const MEASURES = [
  ["peak", "peak success rate", (v) => show.rate(v), "points", 1],
  ["final_five", "last five evaluations", (v) => show.rate(v), "points", 1],
  ["best_five", "best five evaluations", (v) => show.rate(v), "points", 1],
  ["nauc", "normalised area under the curve", (v) => show.rate(v), "points", 1],
  ["never_selected", "rollouts never used", (v) => show.percent(v), "points", 100],
  ["unreachable", "bound of that", (v) => show.percent(v), "points", 100],
  ["gini", "Gini of trained turns", (v) => show.fixed(v, 3), "", 1],
  ["scored_per_trained", "scored / trained tokens", (v) => show.fixed(v, 2), "", 1],
  ["effective_rollouts", "effective rollouts of late batches", (v) => show.fixed(v, 1), "", 1],
  ["top1_share", "largest rollout of late batches", (v) => show.percent(v), "points", 100],
  ["dead_share", "dead rows of late batches", (v) => show.percent(v), "points", 100],
];

views.diff = {
  title: "Two runs",
  about: "One run beside another: figures, differences, curves, settings.",
  async load(context) {
    const named = (key) => context.runs.find((run) => run.name === context.choice(key, ""));
    const a = named("a") || context.runs[0];
    const b = named("b") || context.runs.find((run) => run.method !== a.method && run.seed === a.seed) || context.runs.find((run) => run !== a) || a;
    if (a === b) return { a, b };
    const both = [a, b];
    return {
      a, b,
      comparison: await source.get("comparison", a.name, b.name).catch((error) => ({ error: error.message })),
      curves: await Promise.all(both.map((run) => source.get("run", run.name, "learning"))),
      flows: await Promise.all(both.map((run) => source.get("run", run.name, "flow"))),
      updates: await Promise.all(both.map((run) => source.updates(run.name))),
    };
  },
  render(context, { a, b, comparison, curves, flows, updates }) {
    const names = context.runs.map((run) => [run.name, run.name]);
    const controls = el("div", { class: "controls" }, picker("A", names, a.name, (name) => context.choose("a", name)), picker("B", names, b.name, (name) => context.choose("b", name)),
      el("button", { type: "button", class: "tool", "data-key": "swap", onclick: () => context.chooseAll({ a: b.name, b: a.name }) }, "Swap"));
    if (a === b) return [controls, empty("Two different runs are needed", context.runs.length < 2 ? source.live ? "This page has only one run: divopd watch takes a folder of several." : "This report has only one run: divopd report takes several." : "Choose another run for A or B.")];
    const both = [a, b];
    const colours = new Map(both.map((run) => [run.name, context.allColours.get(run.name)]));
    const legend = both.map((run, place) => [`${"AB"[place]}: ${run.name}`, colours.get(run.name)]);
    const pair = { ...context, shown: both, colours, groups: groupsOf(both), banded: false, lineColours: colours, lineLegend: legend };
    const rates = both.flatMap((run, place) => inRange(pair, curves[place].evaluations.map((one) => ({ run: run.name, x: one[pair.axis], y: one.success_rate, update: one.version }))));
    return [
      controls,
      lineControls(pair, { seeds: false }),
      el("div", { class: "grid wide" },
        figure({ title: "Success rate", note: `Percent, over ${AXES[pair.axis]}.`, name: "diff-success", rows: rates, legend, height: 240, draw: (width, height) => runLines(width, height, { rows: rates, context: pair, x: `${AXES[pair.axis]} →`, y: "↑ %", dots: true, tip: (row) => `${visible(row.run)}\nversion ${row.update}: ${show.rate(row.y)}` }) }),
        updateFigure(pair, updates, { title: "Effective rollouts of a batch", note: "1 / Σ p², p = a rollout's share of the batch's tokens", name: "diff-effective", height: 240, of: (row) => row.effective_rollouts, format: (v) => show.fixed(v, 1) })),
      measuresCard(both, comparison, flows),
      settingsCard(a, b),
    ];
  },
};

function measuresCard(both, comparison, flows) {
  const rows = comparison.error ? [] : MEASURES.map(([key, label, format, unit, scale]) => {
    const [x, y] = comparison.standings.map((standing) => standing[key]);
    return { measure: label, a: format(x), b: format(y), difference: x === null || y === null ? null : scale * (y - x), unit };
  });
  const target = comparison.target;
  const addCost = (name, [x, y], goal) => {
    const format = (value) => (value === null ? MISSED : name.endsWith("_s") ? show.seconds(value) : show.quantity(value));
    rows.push({ measure: `${AXES[name]} to ${goal}`, a: format(x), b: format(y), difference: x === null || y === null ? null : y - x, unit: name.endsWith("_s") ? "s" : "" });
  };
  for (const [place, other] of (comparison.targets || []).entries()) {
    if (other !== target) addCost("trained_tokens", comparison.standings.map(({ to_targets: all }) => all[place].costs && all[place].costs.trained_tokens), `${other} %`);
  }
  for (const name of target > 0 ? COSTS : []) {
    addCost(name, comparison.standings.map(({ costs_to_target: costs }) => costs && costs[name]), `${target} % (τ)`);
  }
  for (const fate of FATES) {
    const [x, y] = flows.map(({ account, fates }) => (account.put ? fates[fate] / account.put : null));
    rows.push({ measure: fate === "dead" ? "turns as dead rows" : `turns ${spoken(fate)}`, a: show.percent(x), b: show.percent(y), difference: x === null || y === null ? null : 100 * (y - x), unit: "points" });
  }
  const signed = (value, row) => (value === null ? NONE : `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(value) >= 1000 ? show.quantity(Math.abs(value)) : Number(Math.abs(value).toPrecision(3))}${row.unit ? ` ${row.unit}` : ""}`);
  const columns = [
    { key: "measure", label: "figure", text: true },
    { key: "a", label: visible(`A: ${both[0].name}`), sorts: false },
    { key: "b", label: visible(`B: ${both[1].name}`), sorts: false },
    { key: "difference", label: "B − A", format: signed },
  ];
  return card("Figures", "Those of divopd compare A B; late batches are the last 40 % of updates.",
    comparison.error ? empty("Success and cost are not compared yet", visible(comparison.error)) : null,
    sortableTable({ columns, rows, caption: "Two runs" }),
    el("button", { type: "button", class: "tool", onclick: () => download("two-runs.csv", "text/csv", csv(rows)) }, "CSV"));
}

function settingsCard(a, b) {
  const names = [...new Set([...Object.keys(a.settings), ...Object.keys(b.settings)])];
  const text = (value) => (value === undefined ? "not set" : JSON.stringify(value));
  const always = [{ setting: "method", a: a.method, b: b.method }, { setting: "seed", a: String(a.seed), b: String(b.seed) }];
  const made = Object.keys(MADE_BY).filter((key) => !["began", "command"].includes(key)).map((key) => ({ setting: MADE_BY[key], a: (a.made_by || {})[key] || "not known", b: (b.made_by || {})[key] || "not known" }));
  const rows = [...always, ...made, ...names.map((setting) => ({ setting, a: text(a.settings[setting]), b: text(b.settings[setting]) }))].filter((row) => row.a !== row.b);
  const columns = [{ key: "setting", label: "setting", text: true }, { key: "a", label: "A", text: true }, { key: "b", label: "B", text: true }];
  return card("Settings that differ", "And the code, machine and packages that made the runs, where these do.", rows.length ? sortableTable({ columns, rows, caption: "Settings that differ" }) : empty("None", "Both runs have the same settings, method and seed."));
}
