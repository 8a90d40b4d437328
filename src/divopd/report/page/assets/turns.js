"use strict";
// Where turns go, how much of the experience is used, how deep and how old what is trained was.

// A dead row is in a batch like a trained turn, but teaches nothing; a gate discards the same turn as invalid.
const FATES = ["trained", "dead", "pending", "queued", "stale", "aged_out", "invalid"];
const FATE_TEXTS = {
  trained: "in a batch", dead: "in a batch without a valid token: it teaches nothing", pending: "read, waiting to be selected", queued: "not read yet", stale: "its policy version was too old",
  aged_out: "pending for too long", invalid: "discarded by the gate",
};

async function ofEach(context, view) {
  return Promise.all(context.shown.map((run) => source.get("run", run.name, view)));
}

views.flow = {
  title: "Flow of turns",
  about: "Every turn that was put into the queue, and where it is now. The parts add up to the whole.",
  async load(context) {
    return { flows: await ofEach(context, "flow"), updates: await Promise.all(context.shown.map((run) => source.updates(run.name))) };
  },
  render(context, { flows, updates }) {
    return [
      el("div", { class: "grid wide" }, context.shown.map((run, place) => flowFigure(run, flows[place]))),
      lineControls(context, { smooth: false, seeds: false }),
      el("div", { class: "grid" }, context.shown.map((run, place) => exitsFigure(context, run, rowsOf(updates[place].columns)))),
    ];
  },
};

function flowFigure(run, { account, fates, reasons, dead, programs }) {
  const byReason = { invalid: reasons, dead };
  const parts = FATES.flatMap((fate) => (fate in byReason
    ? Object.entries(byReason[fate]).map(([reason, turns]) => ({ fate, reason, turns }))
    : [{ fate, reason: null, turns: fates[fate] }]));
  const rows = parts.map((row) => ({ ...row, share: account.put ? row.turns / account.put : 0 }));
  const share = (fate) => show.percent(account.put ? fates[fate] / account.put : 0);
  return figure({
    title: visible(run.name), name: `flow-${run.method}`, rows: account.put ? rows : [], height: 320,
    note: `${plural(account.put, "turn")} put; ${share("trained")} trained so far${fates.dead ? `, ${share("dead")} in batches as dead rows, which teach nothing` : ""}.${programs ? ` ${programs.sentence}.` : ""}`,
    draw: (width, height) => drawFlow(width, height, account.put, rows.filter((row) => row.turns)),
  });
}

function drawFlow(width, height, put, rows) {
  const narrow = width < 420; // a phone has room for the counts only
  const words = rows.map((row) => [row.reason ? `${row.fate === "dead" ? "dead row" : spoken(row.fate)}: ${spoken(row.reason)}` : spoken(row.fate), narrow ? show.whole(row.turns) : `${show.whole(row.turns)} (${show.percent(row.share)})`]);
  const longest = d3.max(words, ([name, count]) => name.length + count.length) ?? 0;
  const [top, gap, bar, label] = [10, 10, 14, Math.min((narrow ? 0.78 : 0.75) * width, 40 + 7 * longest)]; // 7 pixels a letter is ample
  const least = 16; // pixels, so that every part has room for its words
  const room = height - 2 * top - gap * (rows.length - 1) - least * rows.length;
  const start = { x: 58, y: top + (height - 2 * top - room) / 2 };
  const end = width - label;
  const svg = el("svg:svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "flow of turns" });
  const text = (x, y, content, more = {}) => el("svg:text", { x, y, "font-size": narrow ? 10.5 : 12, fill: "currentColor", dominant_baseline: "middle", dy: "0.35em", ...more }, content);
  svg.append(el("svg:rect", { x: start.x - bar, y: start.y, width: bar, height: room, fill: palette().quiet }),
    text(start.x - bar - 6, start.y + room / 2 - 8, "put", { "text-anchor": "end", "font-weight": 600 }),
    text(start.x - bar - 6, start.y + room / 2 + 8, show.quantity(put), { "text-anchor": "end" }));
  let [from, to] = [start.y, top];
  for (const [place, row] of rows.entries()) {
    const [name, count] = words[place];
    const thick = (room * row.turns) / put;
    const tall = thick + least;
    const middle = (start.x + end) / 2;
    const colour = palette().fates[row.fate];
    const y = to + least / 2;
    const path = `M${start.x},${from}C${middle},${from} ${middle},${y} ${end},${y}L${end},${y + thick}C${middle},${y + thick} ${middle},${from + thick} ${start.x},${from + thick}Z`;
    svg.append(el("svg:path", { d: path, fill: colour, "fill-opacity": 0.35 }, el("svg:title", {}, `${name}: ${show.whole(row.turns)} turns`)),
      el("svg:rect", { x: end, y, width: bar, height: Math.max(1.5, thick), fill: colour }),
      text(end + bar + 8, to + tall / 2, [el("svg:tspan", { "font-weight": 600 }, name), el("svg:tspan", { dx: 6 }, count)]));
    from += thick;
    to += tall + gap;
  }
  return svg;
}

function exitsFigure(context, run, updates) {
  const domain = ["trained", "dead", "stale", "aged_out", "invalid"];
  const rows = updates.flatMap((row) => {
    const dead = Math.round(row.dead_share * row.rows);
    const left = { ...row, dead, trained: row.rows - dead };
    return domain.map((fate) => ({ update: row.update, fate, turns: left[fate] }));
  });
  const { fates } = palette();
  return stackFigure(context, updates, {
    title: `What left the queue: ${visible(run.name)}`, name: `exits-${run.method}`, note: "Turns an update.", height: 220,
    rows, part: "fate", value: "turns", parts: domain, colours: domain.map((fate) => fates[fate]), format: (v) => plural(Number(v.toFixed(1)), "turn"),
  });
}

views.use = {
  title: "Use of experience",
  about: "How many valid rollouts gave at least one trained turn, beside the bound that no composer can beat.",
  load: (context) => ofEach(context, "experience"),
  render(context, made) {
    const rows = context.shown.flatMap((run, place) => (made[place].utilization ? [{ run: run.name, ...made[place].utilization }] : []));
    const columns = [
      { key: "run", label: "run", text: true, node: runCell(context) },
      { key: "rollouts", label: "valid rollouts", format: show.whole },
      { key: "never_selected", label: "never used", format: (v) => show.percent(v) },
      { key: "unreachable", label: "bound", format: (v) => show.percent(v), title: "could not be reached by any composer" },
      { key: "gini", label: "Gini", format: (v) => show.fixed(v, 3), title: "of trained turns over valid rollouts; 0: all gave equally many" },
      { key: "scored_per_trained", label: "scored / trained tokens", format: (v) => show.fixed(v, 2), title: "valid tokens; dead rows are not trained" },
    ];
    return [
      figure({
        title: "Valid rollouts that were never used", note: "Bars: no turn of them was trained. Tick: the offline bound, the share that no composer could have given a slot.",
        name: "never-used", rows, height: 64 + 40 * rows.length, legend: [],
        draw: (width, height) => { const names = rowNames(width, rows.map((row) => row.run)); return chart(width, height + (names.above ? 14 * rows.length : 0), {
          marginLeft: names.marginLeft, marginRight: width < 480 ? 60 : 150,
          x: { label: "share of valid rollouts (%) →", grid: true, domain: [0, Math.max(10, 100 * d3.max(rows, (row) => Math.max(row.never_selected, row.unreachable)))] },
          y: names.y,
          marks: [
            Plot.barX(rows, { x: (row) => 100 * row.never_selected, y: "run", fill: (row) => context.colours.get(row.run), insetTop: names.above ? 12 : 5, insetBottom: names.above ? 6 : 5, dy: names.above ? 5 : 0 }),
            Plot.tickX(rows, { x: (row) => 100 * row.unreachable, y: "run", strokeWidth: 3, stroke: "currentColor", insetTop: names.above ? 12 : 0, dy: names.above ? 5 : 0 }),
            Plot.text(rows, { x: (row) => 100 * Math.max(row.never_selected, row.unreachable), y: "run", text: (row) => (width < 480 ? show.percent(row.never_selected) : `${show.percent(row.never_selected)} (bound ${show.percent(row.unreachable)})`), textAnchor: "start", dx: 8, dy: names.above ? 8 : 0, fill: "currentColor" }),
            ...names.marks,
          ],
        }); },
      }),
      card("Utilization", "The figures of divopd compare.", rows.length ? sortableTable({ columns, rows, caption: "Utilization" }) : empty("No update yet", "Utilization is known after the first update.")),
      el("div", { class: "grid" }, context.shown.map((run, place) => trainedTurnsFigure(context, run, made[place]))),
    ];
  },
};

function trainedTurnsFigure(context, run, { trained_turns: counts, most }) {
  const rows = counts.map((rollouts, turns) => ({ trained_turns: turns === most ? `${turns}+` : String(turns), rollouts }));
  return figure({
    title: `Trained turns of a rollout: ${visible(run.name)}`, note: "How many valid rollouts gave so many.", name: `trained-turns-${run.method}`, rows, height: 200,
    draw: (width, height) => chart(width, height, {
      x: { label: "trained turns →", domain: rows.map((row) => row.trained_turns), ticks: rows.map((row) => row.trained_turns).filter((_, turns) => width > 420 || turns % 2 === 0) }, y: { label: "↑ rollouts", grid: true },
      marks: [Plot.barY(rows, { x: "trained_turns", y: "rollouts", fill: context.colours.get(run.name), title: (row) => `${plural(row.rollouts, "rollout")} gave ${row.trained_turns} turns` }), Plot.ruleY([0])],
    }),
  });
}

views.depth = {
  title: "Disagreement by depth",
  short: "Depth",
  about: "Turns by their place in the rollout: how much student and teacher disagree there, and what became of them.",
  load: (context) => ofEach(context, "depths"),
  render: (context, made) => [
    ...context.shown.flatMap((run, place) => [el("div", { class: "grid wide" }, depthFigures(run, made[place].depths)), depthTable(run, made[place].depths)]),
  ],
};

// Every count behind the two figures of a run.
function depthTable(run, tallies) {
  const shown = FATES.filter((fate) => tallies.some((tally) => tally.fate === fate));
  const rows = d3.groups(tallies, (tally) => tally.turn).map(([turn, own]) => {
    const valid = d3.sum(own, (one) => one.valid_turns);
    const counts = Object.fromEntries(shown.map((fate) => [fate, d3.sum(own.filter((one) => one.fate === fate), (one) => one.turns)]));
    const mean = valid ? d3.sum(own, (one) => one.disagreement) / valid : null;
    const tokens = valid ? d3.sum(own, (one) => one.valid_tokens) / valid : null;
    return { turn, turns: d3.sum(own, (one) => one.turns), valid, ...counts, disagreement: mean, tokens };
  });
  const columns = [
    { key: "turn", label: "turn" },
    { key: "turns", label: "rollouts that have it", format: show.whole },
    { key: "valid", label: "valid", format: show.whole },
    ...shown.map((fate) => ({ key: fate, label: spoken(fate), format: show.whole, title: FATE_TEXTS[fate] })),
    { key: "disagreement", label: "mean disagreement", unit: "nats", format: (v) => show.fixed(v) },
    { key: "tokens", label: "valid tokens a turn", format: (v) => show.fixed(v, 1) },
  ];
  return card(`Counts by depth: ${visible(run.name)}`, "Turns at each place of a rollout; means are over valid turns.", rows.length ? sortableTable({ columns, rows, caption: `Counts by depth: ${visible(run.name)}`, look: "dense" }) : empty("No turn yet", "Counts appear with the first rollout."));
}

function depthFigures(run, tallies) {
  const { fates, quiet } = palette();
  const perDepth = d3.groups(tallies, (tally) => tally.turn).map(([turn, own]) => {
    const trained = own.filter((tally) => tally.fate === "trained");
    const mean = (some) => { const turns = d3.sum(some, (one) => one.valid_turns); return turns ? d3.sum(some, (one) => one.disagreement) / turns : null; };
    const perToken = (some) => { const tokens = d3.sum(some, (one) => one.valid_tokens); return tokens ? d3.sum(some, (one) => one.disagreement) / tokens : null; };
    return { turn, all: mean(own), trained: mean(trained), all_per_token: perToken(own), trained_per_token: perToken(trained), turns: d3.sum(own, (one) => one.turns), trained_turns: d3.sum(trained, (one) => one.turns) };
  });
  const series = { all: "all valid turns", trained: "trained turns" };
  const drawn = perDepth.flatMap((row) => Object.keys(series).filter((key) => row[key] !== null).map((key) => ({ run: series[key], x: row.turn, y: row[key], turns: key === "all" ? row.turns : row.trained_turns })));
  const colours = new Map([[series.all, quiet], [series.trained, fates.trained]]);
  const dense = perDepth.length > 0 && d3.max(perDepth, (row) => String(row.turns).length);
  const share = tallies.map((tally) => ({ turn: tally.turn, fate: tally.fate, turns: tally.turns }));
  return [
    figure({
      title: `Mean disagreement by depth: ${visible(run.name)}`, note: "Student minus teacher log probability, summed over a turn's valid tokens, in nats.", name: `depth-${run.method}`, rows: perDepth, height: 240, legend: [...colours],
      draw: (width, height) => lines(width, height, { rows: drawn, colours, x: "turn of the rollout →", y: "↑ nats", dots: true, tip: (row) => `${row.run}\nturn ${row.x}: ${show.fixed(row.y)} nats\n${plural(row.turns, "turn")}` }),
    }),
    figure({
      title: `Turns by depth and fate: ${visible(run.name)}`, note: "How many turns there were at each depth, and where they went.", name: `depth-fates-${run.method}`, rows: share, height: 240, legend: FATES.map((fate) => [spoken(fate), fates[fate]]),
      draw: (width, height) => chart(width, height, {
        x: { label: "turn of the rollout →", ticks: countTicks(share.map((row) => row.turn), width / 90) }, y: { label: "↑ turns", grid: true },
        color: { domain: FATES, range: FATES.map((fate) => fates[fate]) },
        marks: [Plot.rectY(share, { x1: (row) => row.turn - 0.5, x2: (row) => row.turn + 0.5, y: "turns", fill: "fate", order: FATES, inset: 0.4, title: (row) => `turn ${row.turn}\n${spoken(row.fate)}: ${plural(row.turns, "turn")}` }), Plot.ruleY([0]),
          ...((width - 70) / perDepth.length > 8 * dense ? [Plot.text(perDepth, { x: "turn", y: "turns", text: (row) => show.whole(row.turns), dy: -7, fill: "currentColor", fillOpacity: 0.8, fontSize: 11 })] : [])],
      }),
    }),
  ];
}

views.age = {
  title: "Age of rows",
  about: "How old the rows of batches were, dead ones too: policy versions behind the learner, and updates spent waiting in the pool.",
  async load(context) {
    return { ages: await ofEach(context, "ages"), updates: await Promise.all(context.shown.map((run) => source.updates(run.name))) };
  },
  render(context, { ages, updates }) {
    const spread = (key) => context.shown.flatMap((run, place) => {
      const total = d3.sum(ages[place][key], ([, turns]) => turns);
      return ages[place][key].map(([age, turns]) => ({ run: run.name, age, turns, share: turns / total }));
    });
    return [
      el("div", { class: "grid wide" },
        ageFigure(context, spread("ages"), { title: "Policy versions behind", name: "ages", x: "update − policy version →", note: `A turn may be at most ${[...new Set(ages.map((one) => one.max_staleness))].join(" / ")} versions old.` }),
        ageFigure(context, spread("waits"), { title: "Updates spent pending", name: "waits", x: "update − first seen →", note: "0: trained by the update that first read it." })),
      lineControls(context),
      updateFigure(context, updates, { title: "Mean age of the batch's rows", note: "Policy versions", name: "age-over-updates", height: 240, y: "↑ versions", of: (row) => row.age, format: (v) => `${show.fixed(v)} versions` }),
    ];
  },
};

function ageFigure(context, rows, { title, name, x, note }) {
  return figure({
    title, note, name, rows, height: 240, legend: context.legend,
    draw: (width, height) => chart(width, height, {
      fx: { label: x, padding: 0.2 }, x: { axis: null, domain: [...context.colours.keys()], padding: 0.05 }, y: { label: "↑ % of rows", grid: true, percent: true },
      color: { domain: [...context.colours.keys()], range: [...context.colours.values()] },
      marks: [Plot.barY(rows, { fx: "age", x: "run", y: "share", fill: "run", title: (row) => `${visible(row.run)}\n${row.age}: ${plural(row.turns, "turn")} (${show.percent(row.share)})` }), Plot.ruleY([0])],
    }),
  });
}
