"use strict";
// Learning curves, the standing of every run, and what it cost to reach a target.

const MISSED = "not reached";
const COSTS = Object.keys(AXES).filter((name) => name !== "version");

// What is probably wrong with the runs that are shown, with what to do about it.
function warningsCard(context, healths) {
  const told = context.shown.flatMap((run, place) => healths[place].warnings.map((one) => ({ run: run.name, ...one })));
  if (!told.length) return null;
  const when = ({ first, last }) => (last < 0 ? "" : first === last ? `, update ${first}` : `, updates ${first} – ${last}`);
  const listed = (some) => el("ul", {}, d3.groups(some, (one) => one.name).map(([name, own]) => el("li", {},
    el("span", {}, el("strong", {}, `${name[0].toUpperCase()}${name.slice(1)}: `), visible(own[0].sentence), "."),
    el("span", { class: "runs" }, own.map((one) => el("span", {}, dot(context.colours.get(one.run)), visible(`${one.run}${when(one)}`)))))));
  const [now, past] = [told.filter((one) => one.now), told.filter((one) => !one.now)];
  return el("section", { class: "card warnings", "aria-label": "Warnings" }, el("header", {}, el("h3", {}, now.length ? "Warnings" : "No warning holds now")),
    now.length ? listed(now) : null,
    past.length ? el("details", {}, el("summary", {}, `${plural(d3.groups(past, (one) => one.name).length, "warning")} that held earlier`), listed(past)) : null);
}

async function loadLearning(context) {
  const curves = await Promise.all(context.shown.map((run) => source.get("run", run.name, "learning")));
  const pressures = await Promise.all(context.shown.map((run) => source.updates(run.name)));
  const comparison = await source.get("comparison").catch((error) => ({ error: error.message }));
  const healths = await Promise.all(context.shown.map((run) => source.get("run", run.name, "health")));
  return { curves, pressures, comparison, healths };
}

function standingOf(comparison, run) {
  return (comparison.standings || []).find((one) => one.run === run.name);
}

function lastFive({ final_five: mean, final_five_sd: deviation }) {
  return deviation === null ? show.fixed(mean, 1) : `${show.fixed(mean, 1)} ± ${show.fixed(deviation, 1)}`;
}

function runCard(run, { comparison, pressure, colour }) {
  const standing = standingOf(comparison, run);
  const gain = run.evaluations > 1 ? run.last_rate - run.first_rate : null;
  const facts = [
    ["peak", show.rate(run.peak_rate)],
    ["last five", standing ? `${lastFive(standing)} %` : NONE],
    ["rollouts never used", standing ? show.percent(standing.never_selected) : NONE],
    ["bound of that", standing ? show.percent(standing.unreachable) : NONE],
    ["turns", show.whole(run.turns)],
  ];
  const planned = run.planned || run.updates;
  return el("article", { class: "card run-card", style: { "--run": colour } },
    el("header", {}, el("h3", {}, visible(run.name)),
      el("p", {}, visible([run.method, run.seed !== null && `seed ${run.seed}`, run.environment, run.clock && `${run.clock} clock`, run.kind === "replay" && "replay"].filter(Boolean).join(" · ")))),
    el("p", { class: "big" }, run.last_rate === null ? NONE : show.rate(run.last_rate),
      el("small", {}, run.last_rate === null ? "not evaluated" : gain === null ? "success rate" : `success rate (${gain >= 0 ? "+" : "−"}${Math.abs(gain).toFixed(1)})`)),
    el("div", { class: "progress", role: "img", "aria-label": `${run.updates} of ${planned} updates` },
      el("span", { style: { width: `${planned ? (100 * Math.min(1, run.updates / planned)) : 0}%` } })),
    el("p", { class: "small" }, `${show.whole(run.updates)} of ${show.whole(planned)} updates${run.changed_s === undefined || run.updates >= planned ? "" : run.changed_s < 60 ? " · going on" : ` · no change for ${show.seconds(run.changed_s)}`}`),
    el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]).flat()),
    el("p", { class: `verdict ${pressure ? pressure.verdict : ""}` }, pressure ? `Queue: ${pressure.sentence}.` : "Queue: too early to tell."));
}

const views = {};

views.learning = {
  title: "Learning",
  about: "Success rate of the student over what it cost, one line a run.",
  load: loadLearning,
  render(context, { curves, pressures, comparison, healths }) {
    const by = context.axis;
    const rows = context.shown.flatMap((run, place) => inRange(context, curves[place].evaluations.map((one) => ({
      run: run.name, x: one[by], y: one.success_rate, update: one.version, tasks: one.tasks,
      ...Object.fromEntries(COSTS.map((name) => [name, one[name]])),
    }))));
    const target = comparison.target;
    const tip = (row) => `${visible(row.run)}\n${show.rate(row.y)} of ${row.tasks} tasks\nversion ${row.update}\n${show.quantity(row.trained_tokens)} trained tokens, ${show.seconds(row.elapsed_s)}`;
    const goal = target > 0 ? [Plot.ruleY([target], { stroke: "currentColor", strokeDasharray: "4 4", strokeOpacity: 0.6 }),
      Plot.text([target], { y: (value) => value, text: (value) => `τ = ${value} %`, frameAnchor: "right", dx: -2, dy: -7, textAnchor: "end", fill: "currentColor", fillOpacity: 0.75 })] : [];
    return [
      warningsCard(context, healths),
      lineControls(context, { smooth: false }),
      figure({
        title: "Success rate", name: "learning-curves", rows, height: 300, legend: context.lineLegend,
        note: `Fixed evaluation tasks, in percent, over ${AXES[by]}. An evaluation costs what its version had cost.${context.banded ? " Thick: the mean of a method's seeds. Band: from the lowest to the highest of them." : ""}`,
        draw: (width, height) => runLines(width, height, { rows, context, x: `${AXES[by]} →`, y: "↑ success rate (%)", marks: goal, dots: true, tip }),
      }),
      el("div", { class: "cards" }, context.shown.map((run, place) => runCard(run, { comparison, pressure: pressures[place].pressure, colour: context.colours.get(run.name) }))),
      kindsFigure(context, curves),
      ...[standingsTable(context, comparison)].flat(),
      methodsTable(comparison),
      madeByTable(context),
      ...(comparison.notes || []).map((note) => el("p", { class: "note" }, visible(`Note: ${note}.`))),
    ];
  },
};

function kindsFigure(context, curves) {
  const rows = context.shown.flatMap((run, place) => {
    const last = curves[place].evaluations.at(-1);
    return Object.entries((last && last.by_kind) || {}).map(([kind, rate]) => ({ run: run.name, kind: visible(kind), rate, version: last.version }));
  });
  const kinds = new Set(rows.map((row) => row.kind));
  if (kinds.size < 2) return null;
  return figure({
    title: "Success rate by kind of task", note: "The last evaluation of each run, in percent.", name: "success-by-kind", rows, legend: context.legend,
    height: 60 + 24 * kinds.size,
    draw: (width, height) => { const names = rowNames(width, [...kinds].sort()); return chart(width, height + (names.above ? 14 * kinds.size : 0), {
      marginLeft: names.marginLeft, y: names.y,
      x: { label: "success rate (%) →", domain: [0, 100], grid: true },
      marks: [
        Plot.ruleY(rows, Plot.groupY({ x1: "min", x2: "max" }, { y: "kind", x1: "rate", x2: "rate", strokeOpacity: 0.3 })),
        ...runDots(rows, { x: "rate", y: "kind", colours: context.colours, r: 4.5 }),
        ...names.marks,
        Plot.tip(rows, Plot.pointer({ x: "rate", y: "kind", title: (row) => `${visible(row.run)}\n${row.kind}: ${show.rate(row.rate)}\nversion ${row.version}` })),
      ],
    }); },
  });
}

function runCell(context) {
  return (row) => el("span", { class: "run-name" }, dot(context.colours.get(row.run) || palette().quiet), visible(row.run));
}

function standingsTable(context, comparison) {
  if (comparison.error) return card("Standings", null, empty("No comparison yet", visible(comparison.error)));
  const percent = (value) => show.percent(value);
  const run = { key: "run", label: "run", text: true, node: runCell(context) };
  const learning = [
    run,
    { key: "label", label: "method", text: true },
    { key: "seed", label: "seed" },
    { key: "peak", label: "peak", unit: "%", format: (v) => show.fixed(v, 1) },
    { key: "final_five", label: "last five", unit: "%", format: (_, row) => lastFive(row), title: "mean ± sample standard deviation" },
    { key: "best_five", label: "best five", unit: "%", format: (v) => show.fixed(v, 1) },
    { key: "nauc", label: `nAUC@${comparison.budget}`, unit: "%", format: (v) => show.fixed(v, 1), title: "area under the curve up to the smallest last evaluated version; runs of divopd-focus do not count for it" },
  ];
  const experience = [
    run,
    { key: "never_selected", label: "never used", format: percent, title: "valid rollouts without a trained turn" },
    { key: "unreachable", label: "bound", format: percent, title: "valid rollouts that no composer could have given a slot" },
    { key: "gini", label: "Gini", format: (v) => show.fixed(v, 2) },
    { key: "scored_per_trained", label: "scored / trained", format: (v) => show.fixed(v, 1), title: "valid tokens; dead rows are not trained" },
    { key: "arrival_per_drain", label: "arrival / drain", format: (v) => (v === null ? "n/a" : show.fixed(v, 2)), title: "turns put per second of the run, by turns read into the pool per second in which the learner did not wait" },
    { key: "effective_rollouts", label: "effective rollouts", format: (v) => show.fixed(v, 1), title: "mean of the last 40 % of updates" },
    { key: "top1_share", label: "largest rollout", format: percent, title: "share of the batch's tokens; mean of the last 40 % of updates" },
    { key: "dead_share", label: "dead rows", format: percent, title: "mean of the last 40 % of updates" },
  ];
  const rows = comparison.standings.filter((row) => context.shown.some((one) => one.name === row.run));
  return [
    card("Standings: success rate", "The figures of divopd compare. Press a heading to sort.", sortableTable({ columns: learning, rows, caption: "Success rates of the runs" })),
    card("Standings: use of experience", "Batches: means of the last 40 % of updates.", sortableTable({ columns: experience, rows, caption: "Use of experience by the runs" }),
      el("button", { type: "button", class: "tool", onclick: () => download("standings.csv", "text/csv", csv(rows.map(flat))) }, "CSV of both tables")),
  ];
}

function flat(standing) {
  const { ratios, costs_to_target: costs, to_targets: all, fates, ...rest } = standing;
  const named = (prefix, values) => Object.fromEntries(Object.entries(values || {}).map(([name, value]) => [`${prefix}.${name}`, value]));
  const updates = Object.fromEntries(all.map((one) => [`update_at_${one.target}`, one.version]));
  const tokens = Object.fromEntries(all.map((one) => [`trained_tokens_to_${one.target}`, one.costs && one.costs.trained_tokens]));
  return { ...rest, ...updates, ...tokens, ...named("cost", costs), ...named("ratio", ratios), ...named("turns", fates) };
}

function methodsTable(comparison) {
  const methods = comparison.methods || [];
  if (!methods.length) return null;
  const shares = ["never_selected", "top1_share", "dead_share"];
  const interval = (name) => (row) => {
    const one = row.means[name];
    if (!one) return NONE;
    const scale = shares.includes(name) ? 100 : 1;
    return `${(scale * one.mean).toFixed(1)}${one.high === null ? "" : ` ± ${(scale * (one.high - one.mean)).toFixed(1)}`}`;
  };
  const measures = {
    peak: ["peak", "%"], final_five: ["last five", "%"], nauc: [`nAUC@${comparison.budget}`, "%"], never_selected: ["never used", "%"],
    effective_rollouts: ["effective rollouts", ""], top1_share: ["largest rollout", "%"], dead_share: ["dead rows", "%"],
  };
  const columns = [
    { key: "label", label: "method", text: true },
    { key: "seeds", label: "seeds" },
    ...Object.entries(measures).map(([key, [label, unit]]) => ({
      key, unit, label, value: (row) => row.means[key] && row.means[key].mean, format: (_, row) => interval(key)(row),
    })),
  ];
  return card("Methods over their seeds", "Mean ± half of the 95 % interval.", sortableTable({ columns, rows: methods, caption: "Methods over their seeds" }));
}

const MADE_BY = { command: "command", commit: "commit", lock: "lock", machine: "machine", gpus: "GPU", python: "Python", packages: "packages", began: "began" };

// The cards of the runs: which code on which machine made them, and how.
function madeByTable(context) {
  const rows = context.shown.map((run) => ({ run: run.name, ...run.made_by }));
  const shown = Object.keys(MADE_BY).filter((key) => rows.some((row) => row[key]));
  if (!shown.length) return card("What made the runs", null, empty("Not known", "These are replays, or an older version made them: they have no run.json."));
  const words = (text) => text.split(" ").flatMap((word) => [el("span", { class: "word" }, visible(word)), " "]); // not broken at hyphens
  const nodes = {
    began: (text) => el("span", { class: "moment" }, visible(text)),
    command: (text) => el("code", {}, words(text)),
    packages: (text) => el("details", {}, el("summary", {}, plural(text.split(", ").length, "package")), visible(text)),
  };
  const columns = [
    { key: "run", label: "run", text: true, node: runCell(context) },
    ...shown.map((key) => ({ key, label: MADE_BY[key], text: key === "command" ? "wide" : true, ...(key in nodes ? { node: (row) => (row[key] ? nodes[key](row[key]) : NONE) } : {}) })),
  ];
  return card("What made the runs", "The card of each run (run.json), written when it began. Lock: a digest of the locked versions.", sortableTable({ columns, rows, caption: "What made the runs", look: "dense" }));
}

views.cost = {
  title: "Cost to a target",
  about: "What each run had spent when it first reached a success rate, in every currency.",
  load: () => source.get("comparison").catch((error) => ({ error: error.message })),
  render(context, comparison) {
    if (comparison.error) return [empty("No comparison yet", visible(comparison.error))];
    const standings = comparison.standings.filter((row) => context.shown.some((run) => run.name === row.run));
    const goals = Object.fromEntries(comparison.targets.map((target) => [String(target), `${target} %${target === comparison.target ? " (τ)" : ""}`]));
    const wanted = context.choice("target", String(comparison.target));
    const chosen = wanted in goals ? wanted : Object.keys(goals)[0];
    const currency = COSTS.includes(context.choice("in", "")) ? context.choice("in", "") : "trained_tokens";
    const rows = standings.map((row) => ({ run: row.run, peak: row.peak, ...row.to_targets.find((one) => String(one.target) === chosen) }));
    return [
      segmented("Currency", Object.fromEntries(COSTS.map((name) => [name, AXES[name]])), currency, (key) => context.choose("in", key)),
      targetsCard(context, comparison, standings, goals, currency),
      segmented("Target", goals, chosen, (key) => context.choose("target", key)),
      costCard(context, rows, goals[chosen]),
      ratiosFigure(context, rows, goals[chosen]),
      ...rows.filter((row) => row.costs === null).map((row) => el("p", { class: "note" }, visible(`${row.run} did not reach ${row.target} %: its peak was ${show.rate(row.peak)}.`))),
    ];
  },
};

function targetsCard(context, comparison, standings, goals, currency) {
  const columns = [
    { key: "run", label: "run", text: true, node: runCell(context) },
    { key: "nauc", label: `nAUC@${comparison.budget}`, unit: "%", format: (v) => show.fixed(v, 1), title: "area under the curve up to the smallest last evaluated version; runs of divopd-focus do not count for it" },
    ...Object.values(goals).map((label, place) => ({
      key: label, label, value: (row) => row.to_targets[place].costs && row.to_targets[place].costs[currency],
      node: (row) => costCell(row.to_targets[place], currency),
    })),
  ];
  const tau = comparison.target > 0 ? ` τ = ${comparison.target} %, ${comparison.target_origin}: a run that peaks a little lower does not reach it.` : "";
  const cost = AXES[currency];
  return card(`${cost[0].toUpperCase()}${cost.slice(1)} to each target, and the area under the curve`,
    visible(`×: ${cost} of ${comparison.reference} by ${cost} of the run; above 1 favours the run.${tau}`), sortableTable({ columns, rows: standings, caption: `${cost} to each target` }));
}

function costCard(context, rows, goal) {
  const columns = [
    { key: "run", label: "run", text: true, node: runCell(context) },
    { key: "version", label: "update", format: (v) => (v === null ? MISSED : show.whole(v)) },
    ...COSTS.map((name) => ({ key: name, label: AXES[name], value: (row) => row.costs && row.costs[name], node: (row) => (row.costs ? costCell(row, name) : NONE) })),
  ];
  return card(`Cost of the first evaluation at or above ${goal}`, "×: cost of the reference divided by the cost of the run; above 1 favours the run.", sortableTable({ columns, rows, caption: "Cost to the target" }));
}

function ratiosFigure(context, standings, goal) {
  const rows = standings.flatMap((row) => COSTS.filter((name) => row.ratios[name]).map((name) => ({ run: row.run, currency: AXES[name], ratio: row.ratios[name], cost: row.costs[name] })));
  return figure({
    title: `Cost of the reference ÷ cost of the run, to ${goal}`, note: "Above 1 (to the right) the run was cheaper.", name: "cost-ratios", rows, legend: context.legend, height: 70 + 34 * COSTS.length,
    draw: (width, height) => chart(width, height, {
      marginLeft: 124,
      x: { label: "ratio →", grid: true, zero: true }, y: { label: null, domain: COSTS.map((name) => AXES[name]) },
      marks: [Plot.ruleX([1], { strokeDasharray: "4 4" }), ...runDots(rows, { x: "ratio", y: "currency", colours: context.colours, r: 5 }),
        Plot.tip(rows, Plot.pointer({ x: "ratio", y: "currency", title: (row) => `${visible(row.run)}\n${row.currency}: ${show.times(row.ratio)}` }))],
    }),
  });
}

function costCell({ costs, ratios }, name) {
  if (!costs) return MISSED;
  return el("span", {}, name.endsWith("_s") ? show.seconds(costs[name]) : show.quantity(costs[name]), el("span", { class: "ratio" }, ratios[name] ? show.times(ratios[name]) : ""));
}
