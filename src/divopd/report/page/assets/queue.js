"use strict";
// How full the queue was, and where the seconds went.

views.queue = {
  title: "Queue pressure",
  about: "Whether turns arrive faster than they are trained, what expires, and what to do about it. Over the last 20 updates each.",
  async load(context) {
    return {
      made: await Promise.all(context.shown.map((run) => source.updates(run.name))),
      healths: await Promise.all(context.shown.map((run) => source.get("run", run.name, "health"))),
    };
  },
  render(context, { made, healths }) {
    const measures = [
      ["pressure.load", "Load", "Turns that could be trained and arrive, for each one that is trained; 1 is balance", (v) => v, (v) => show.times(v), [1]],
      ["queued", "Turns waiting in the queue", "Not read by any update yet", (v) => v, (v) => plural(v, "turn"), []],
      ["pending", "Turns pending in the pool", "Read and valid, and not selected yet: what a composer could still choose", (v) => v, (v) => plural(v, "turn"), []],
      ["pressure.expiring_turns", "Turns that expire (%)", "Stale or aged out, of those that left the queue", (v) => 100 * v, (v) => show.rate(v), []],
      ["pressure.unused_rollouts", "Rollouts that expire unused (%)", "Of those that arrive, at least so many will never give a trained turn", (v) => 100 * v, (v) => show.rate(v), []],
      ["pressure.waiting", "Learner waits (% of its time)", "For a full batch", (v) => 100 * v, (v) => show.rate(v), []],
    ];
    return [
      el("div", { class: "cards" }, context.shown.map((run, place) => verdictCard(context, run, made[place].pressure))),
      lineControls(context),
      el("div", { class: "grid" }, measures.map(([key, title, note, of, format, rules]) => updateFigure(context, made, {
        title, note, name: key.replace("pressure.", ""), format, marks: [Plot.ruleY(rules, { strokeDasharray: "4 4" })],
        of: (row) => (row[key] === null || row[key] === undefined ? null : of(row[key])),
      }))),
      happenedCard(context, healths),
    ];
  },
};

// What held a run up: a teacher that could not be reached, waits in which there was nothing to train, lost rollouts.
function happenedCard(context, healths) {
  const rows = context.shown.flatMap((run, place) => healths[place].happened.map((one) => ({ run: run.name, clock: run.clock, ...one })));
  const columns = [
    { key: "run", label: "run", text: true, node: runCell(context) },
    { key: "what", label: "what", text: true },
    { key: "first", label: "at update", format: (v, row) => (v === null ? NONE : row.last === null || row.last === v ? show.whole(v) : `${show.whole(v)} – ${show.whole(row.last)}`) },
    { key: "seconds", label: "seconds", format: (v, row) => (v === null ? (row.what === "teacher away" ? "until the end, or not recorded" : NONE) : show.seconds(v)) },
    { key: "why", label: "why", text: "wide" },
  ];
  const note = "Teacher away (teacher_away in the store): it could not be reached, in real seconds; its rollouts waited and were scored afterwards, so no turn is lost. Starved: the part of a learner's wait in which nothing in the queue could be trained, on the run's clock; add explorers or a faster teacher where it is long. Rollouts broke off: their environment or program died or took too long; their turns are not trained.";
  return card("What held the runs up", note, rows.length ? sortableTable({ columns, rows, caption: "What held the runs up" }) : empty("Nothing", "No teacher was away, no learner starved, and no rollout broke off."));
}

function verdictCard(context, run, pressure) {
  const head = el("header", {}, el("h3", {}, visible(run.name)), el("p", {}, pressure ? pressure.verdict : "no verdict"));
  if (!pressure) return el("article", { class: "card run-card", style: { "--run": context.colours.get(run.name) } }, head, empty("Too early to tell", "Two updates are needed."));
  return el("article", { class: "card run-card", style: { "--run": context.colours.get(run.name) } }, head,
    el("p", { class: "big" }, show.times(pressure.load), el("small", {}, "turns arrive per turn trained")),
    el("p", { class: `verdict ${pressure.verdict}` }, `${pressure.situation}.`),
    pressure.advice.length ? el("div", {}, el("p", { class: "small" }, "What would help, in order:"), el("ol", {}, pressure.advice.map((text) => el("li", {}, text)))) : el("p", { class: "small" }, "Nothing needs to change."));
}

views.time = {
  title: "Seconds by stage",
  about: "Where an update's time went: the learner's own stages in real seconds, and the run's clock.",
  load: (context) => Promise.all(context.shown.map((run) => source.updates(run.name))),
  render(context, made) {
    return [
      lineControls(context, { smooth: false, seeds: false }),
      el("div", { class: "grid wide" }, context.shown.map((run, place) => stagesFigure(context, run, rowsOf(made[place].columns)))),
      el("div", { class: "grid wide" }, context.shown.map((run, place) => clockFigure(context, run, made[place]))),
      stagesTable(context, made),
    ];
  },
};

const STAGES = ["pack", "forward", "backward", "step"]; // in the order in which they happen

function stagesOf(columns) {
  const stages = Object.keys(columns).filter((name) => name.startsWith("seconds.")).map((name) => name.slice(8));
  return d3.sort(stages, (stage) => (STAGES.includes(stage) ? STAGES.indexOf(stage) : STAGES.length));
}

function stagesFigure(context, run, updates) {
  const stages = updates.length ? stagesOf(updates[0]) : [];
  const rows = updates.flatMap((row) => stages.map((stage) => ({ update: row.update, stage, seconds: row[`seconds.${stage}`] || 0 })));
  return stackFigure(context, updates, { title: `Learner: ${visible(run.name)}`, note: "Real seconds of one update by stage.", name: `stages-${run.method}`, rows, part: "stage", value: "seconds", parts: stages, colours: palette().stages, format: show.seconds });
}

function clockFigure(context, run, { columns, clock }) {
  const updates = rowsOf(columns);
  const stages = ["nothing to train", "waiting for a full batch", "updating"];
  const rows = clock ? updates.flatMap((row, place) => {
    const whole = row.elapsed_s - (place ? updates[place - 1].elapsed_s : 0);
    const waited = Math.min(whole, row.waited_s || 0);
    const starved = Math.min(waited, row.starved_s || 0);
    return [starved, waited - starved, whole - waited].map((seconds, stage) => ({ update: row.update, stage: stages[stage], seconds }));
  }) : [];
  return stackFigure(context, updates, { title: `Clock: ${visible(run.name)}`, note: clock === "virtual" ? "Virtual seconds from one update to the next (the simulated clock)." : "Wall seconds from one update to the next.", name: `clock-${run.method}`, rows, part: "stage", value: "seconds", parts: stages, colours: [palette().fates.stale, palette().fates.queued, palette().stages[0]], format: show.seconds });
}

function stagesTable(context, made) {
  const rows = context.shown.map((run, place) => {
    const { columns } = made[place];
    const sums = Object.fromEntries(stagesOf(columns).map((stage) => [stage, d3.sum(columns[`seconds.${stage}`])]));
    return { run: run.name, updates: (columns.update || []).length, elapsed: (columns.elapsed_s || []).at(-1), waited: d3.sum(columns.waited_s || []), starved: d3.sum(columns.starved_s || []), clock: made[place].clock, ...sums };
  });
  const stages = [...new Set(made.flatMap(({ columns }) => stagesOf(columns)))];
  const columns = [
    { key: "run", label: "run", text: true, node: runCell(context) },
    { key: "updates", label: "updates", format: show.whole },
    { key: "elapsed", label: "elapsed", format: (v, row) => (row.clock ? `${show.seconds(v)} (${row.clock})` : NONE) },
    { key: "waited", label: "waited", format: (v, row) => (row.clock ? show.seconds(v) : NONE) },
    { key: "starved", label: "of it with nothing to train", format: (v, row) => (row.clock ? show.seconds(v) : NONE) },
    ...stages.map((stage) => ({ key: stage, label: stage, unit: "real", format: (v) => show.seconds(v) })),
  ];
  return card("Totals", null, sortableTable({ columns, rows, caption: "Seconds by stage" }));
}
