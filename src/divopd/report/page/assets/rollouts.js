"use strict";
// The rollouts of a run, and one of them to be read turn by turn.

const ROLLOUTS_SHOWN = 50;

views.rollouts = {
  title: "Rollouts",
  about: "Every rollout with the fates of its turns. Open one to read what was seen, answered and scored.",
  async load(context) {
    const run = context.runs.find((one) => one.name === context.choice("of", "")) || context.shown[0];
    const rollout = context.choice("rollout", "");
    if (rollout) return { run, rollout, read: await source.get("run", run.name, "rollout", rollout).catch((error) => ({ error: error.message })) };
    const query = { first: Number(context.choice("first", 0)), count: ROLLOUTS_SHOWN, order: context.choice("order", "-arrival"), fate: context.choice("fate", ""), text: context.choice("text", "") };
    return { run, query, page: await source.rollouts(run.name, query) };
  },
  render(context, made) {
    return made.rollout ? readerParts(context, made) : listParts(context, made);
  },
};

function listParts(context, { run, query, page: found }) {
  const search = el("input", { type: "search", value: query.text, placeholder: "id or task", "data-key": "rollout-search", "aria-label": "Search by id or task" });
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => context.chooseAll({ text: search.value, first: "0" }), 250);
  });
  const fates = FATES.map((fate) => ({
    key: fate, label: spoken(fate), value: (row) => row.fates[fate], format: (count) => (count ? show.whole(count) : "·"), title: `turns: ${FATE_TEXTS[fate]}`,
  }));
  const columns = [
    { key: "arrival", label: "rollout", text: true, node: (row) => rolloutLink(context, run.name, row.rollout), title: "in order of arrival" },
    { key: "task", label: "task", text: true, sorts: false },
    { key: "version", label: "version", sorts: false, title: "of the policy that acted" },
    { key: "success", label: "outcome", text: true, sorts: false, node: (row) => outcome({ success: row.success }) },
    { key: "turns", label: "turns", title: "rows put into the queue" },
    ...fates,
    { key: "disagreement", label: "disagreement", unit: "nats", format: (v) => show.fixed(v, 2), title: "the largest of its valid turns" },
  ];
  const sort = { key: query.order.replace(/^-/, ""), down: query.order.startsWith("-") };
  return [
    el("div", { class: "controls" },
      picker("Run", context.runs.map((one) => [one.name, one.name]), run.name, (name) => context.chooseAll({ of: name, first: "0" })),
      picker("With a turn that is", [["", "any"], ...FATES.map((fate) => [fate, spoken(fate)])], query.fate, (fate) => context.chooseAll({ fate, first: "0" })),
      el("label", { class: "picker" }, "Search", search)),
    leftOut(run),
    found.total ? card(visible(run.name), `${plural(found.total, "rollout")}${query.fate || query.text ? " fit" : ""}. Numbers of turns by fate; press a heading to sort.`,
      sortableTable({ columns, rows: found.rows, caption: "Rollouts", look: "dense", sort, onsort: ({ key, down }) => context.chooseAll({ order: `${down ? "-" : ""}${key}`, first: "0" }) }),
      pager("rollouts", query.first, ROLLOUTS_SHOWN, found.total, (first) => context.choose("first", String(Math.max(0, first)))))
      : empty(query.fate || query.text ? "No rollout fits" : "No rollout has arrived yet", query.fate || query.text ? "Take the filters away to see all." : "Rollouts appear when explorers have ended them and the teacher has scored them."),
  ];
}

// What a report leaves out to stay small, and where it is.
function leftOut(run) {
  if (source.live) return null;
  const all = page.views[`run/${run.name}/rollouts`];
  const readable = all.rows.filter((row) => source.has("run", run.name, "rollout", row.rollout)).length;
  if (readable === all.total) return null;
  return el("p", { class: "note" }, `This report holds the texts of ${show.whole(readable)} of ${show.whole(all.total)} rollouts (those with a link), spread over the whole run${all.rows.length < all.total ? `, and lists the first ${show.whole(all.rows.length)}` : ""}. To read all of them: `,
    el("code", {}, visible(`divopd watch ${run.folder}`)));
}

function outcome({ success, reward }) {
  if (success === null || success === undefined) return NONE;
  return el("span", { class: success ? "good" : "bad" }, success ? "✓ success" : "✗ failure", reward === null || reward === undefined ? "" : el("span", { class: "unit" }, ` reward ${show.fixed(reward, 2)}`));
}

// ── one rollout ──────────────────────────────────────────────────────────────────────────────────────────────────

function readerParts(context, { run, rollout, read }) {
  const back = el("a", { href: context.address("rollouts", { of: run.name, rollout: "" }), class: "back", "data-key": "back" }, "← all rollouts");
  if (read.error) return [back, empty("This rollout cannot be read here", visible(`${read.error}. In a report only some rollouts have their texts: divopd watch ${run.folder} shows all.`))];
  const turns = [...read.turns, ...read.teacher_turns.map((turn) => ({ ...turn, taught: true }))].sort((a, b) => a.turn - b.turn);
  const missing = (read.rollout_turns || 0) - (turns.at(-1).turn + 1);
  const last = turns.at(-1).taught ? null : "What was seen after the last turn is in no prompt, so the store does not have it.";
  return [
    back,
    el("section", { class: "card reader-head" },
      el("h3", { class: "mono" }, visible(rollout)),
      el("dl", { class: "facts" }, [
        ["task", visible(read.task)], ["run", visible(run.name)], ["policy version", String(read.version)], ["in the queue from update", String(read.available_at)],
        ["outcome", outcome(read)], ["student turns", String(read.turns.length)], ["turns of the teacher", String(turns.length - read.turns.length)], ["turns of the rollout", String(read.rollout_turns ?? NONE)],
      ].map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]).flat()),
      read.words_missing ? el("p", { class: "note" }, visible(`Token ids are shown as numbers: ${read.words_missing}.`)) : null,
      read.program ? el("ul", { class: "small" }, read.program.map((line) => el("li", {}, visible(line), "."))) : null,
      heatLegend()),
    el("ol", { class: "turns" }, turns.map((turn, place) => turnCard(context, run, turn, place ? turns[place - 1] : null))),
    el("p", { class: "note" }, missing > 0 ? `The rollout went on for ${plural(missing, "turn")} that are no rows and stand in no later prompt.` : last),
  ];
}

function heatLegend() {
  const swatch = (className, text) => el("span", {}, el("span", { class: `swatch ${className}` }), text);
  return el("p", { class: "legend heat-legend" }, swatch("warm", "the student was surer than the teacher (disagreement)"), swatch("cool", "the teacher was surer"), swatch("student", "upper strip: probability by the student"), swatch("teacher", "lower strip: by the teacher"), swatch("off", "token that does not count"));
}

function teacherCard(turn) {
  return el("li", { class: "turn taught", style: { "--fate": "var(--teacher-hue)" } },
    el("header", {}, el("h4", {}, `Turn ${turn.turn}`), el("span", { class: "badge" }, "the teacher's turn"), el("span", { class: "small" }, `recovery: no row, ${plural(turn.tokens, "token")}`)),
    el("div", { class: "turn-body" },
      el("div", {}, el("p", { class: "who" }, "response of the teacher"), el("div", { class: "seen" }, visible(turn.response)), el("p", { class: "action" }, el("span", { class: "who" }, "action"), turn.action === null ? el("em", {}, "none was found in the response") : el("code", {}, visible(turn.action)))),
      el("div", {}, el("p", { class: "who" }, "what was seen then"), el("div", { class: "seen" }, visible(turn.seen)))));
}

function turnCard(context, run, turn, before) {
  if (turn.taught) return teacherCard(turn);
  const skipped = before ? turn.turn - before.turn - 1 : turn.turn;
  const dead = turn.fate === "trained" && turn.reason;
  const colour = palette().fates[dead ? "dead" : turn.fate];
  const fate = `${dead ? "dead row" : spoken(turn.fate)}${turn.reason && turn.fate === "invalid" ? `: ${spoken(turn.reason)}` : ""}${turn.update !== null ? ` at update ${turn.update}` : ""}`;
  const whole = turn.context
    ? [el("div", { class: "turn-body" }, seen(turn.context), el("div", {}, el("p", { class: "who" }, "response of the student"), heatStrip(turn), el("p", { class: "action" }, el("span", { class: "who" }, "action"), turn.action === null ? el("em", {}, "none was found in the response") : el("code", {}, visible(turn.action)))))]
    : [empty("The tokens of this turn were dropped", "settle has freed their space after a durable checkpoint.")];
  return el("li", { class: "turn", style: { "--fate": colour } },
    skipped > 0 ? el("p", { class: "teacher-turns" }, `${plural(skipped, "turn")} before this one, no rows: they are part of the prompt, and the run has kept no more of them.`) : null,
    el("header", {}, el("h4", {}, `Turn ${turn.turn}`),
      turn.update !== null && turn.fate === "trained" ? el("a", { class: "badge", href: context.address("batches", { of: run.name, batch: String(turn.update), first: String(Math.max(0, turn.update - BATCHES_SHOWN / 2)) }) }, fate) : el("span", { class: "badge" }, fate),
      el("span", { class: "small" }, turn.reason ? `${plural(turn.tokens, "token")}` : `disagreement ${show.fixed(turn.disagreement)} nats over ${plural(turn.valid_tokens, "token")}; ${plural(turn.tokens, "token")} with the prompt`)),
    whole,
    el("p", { class: "small sentence" }, visible(turn.sentence), "."),
    turn.call ? el("p", { class: "small sentence" }, visible(turn.call), ".") : null);
}

function seen({ pieces, continued, tokens, truncated }) {
  const parts = pieces.map(({ kind, text, left_out: more }) => {
    const shown = `${visible(text)}${more ? ` […${show.whole(more)} characters more]` : ""}`;
    if (kind === "mark") return el("span", { class: "mark", title: "control token" }, visible(text));
    if (kind === "teacher") return el("span", { class: "teacher-text" }, el("span", { class: "who" }, "teacher"), shown);
    return el("span", {}, shown);
  });
  const about = `${continued ? "new in the prompt" : "prompt"} (${plural(tokens, "token")} in all${truncated ? ", cut: it did not fit" : ""})`;
  return el("div", {}, el("p", { class: "who" }, about), el("div", { class: "seen", tabindex: "0", role: "region", "aria-label": about }, parts));
}

function heatStrip(turn) {
  const { pieces, student, teacher, valid } = turn;
  const probability = (logprob) => (logprob === null || logprob === undefined ? 0 : Math.exp(Math.min(0, logprob)));
  const tokens = pieces.map((piece, place) => {
    const [s, t] = [student && student[place], teacher && teacher[place]];
    const both = typeof s === "number" && typeof t === "number";
    const gap = both ? s - t : 0;
    const strength = Math.min(1, Math.abs(gap) / 3);
    const counts = valid[place];
    return el("span", {
      class: counts ? "token" : "token off",
      title: `${visible(piece)}\nstudent ${show.fixed(s, 3)}, teacher ${show.fixed(t, 3)}${both ? `, disagreement ${show.fixed(gap, 3)} nats` : ""}${counts ? "" : "\ndoes not count"}`,
      style: { "--heat": counts ? `${Math.round(85 * strength)}%` : "0%", "--hue": gap >= 0 ? "var(--warm)" : "var(--cool)", "--student": `${Math.round(100 * probability(s))}%`, "--teacher": `${Math.round(100 * probability(t))}%` },
    }, el("span", { class: "piece" }, tokenText(piece)), el("i", { class: "s" }), el("i", { class: "t" }));
  });
  const rows = pieces.map((piece, place) => ({ token: piece, student: student ? student[place] : null, teacher: teacher ? teacher[place] : null, counts: valid[place] ? "yes" : "no" }));
  return el("div", {}, el("div", { class: "heat" }, tokens),
    rows.length ? el("details", { ontoggle: (event) => { if (event.target.open && event.target.children.length === 1) event.target.append(plainTable(rows, "Log probabilities, in nats")); } }, el("summary", {}, "Log probabilities as a table")) : null);
}

function tokenText(piece) {
  return visible(piece).replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ /, "\u00b7") || "∅";
}
