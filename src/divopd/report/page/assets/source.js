"use strict";
// Where the views get their data: inside this file (a report), or from the server that sent it (a live page).
// What is asked for is a list of parts, such as ["run", NAME, "flow"].

const page = JSON.parse(document.getElementById("data").textContent);

const report = {
  live: false,
  has: (...parts) => parts.join("/") in page.views,
  async get(...parts) {
    if (report.has(...parts)) return page.views[parts.join("/")];
    throw new Error("this is not in the report");
  },
  runs: async () => page.views.runs.runs,
  updates: (run) => report.get("run", run, "updates"),
  async batches(run, first, count) {
    const all = await report.get("run", run, "batches");
    return { total: all.total, batches: all.batches.slice(first, first + count) };
  },
  async rollouts(run, { first, count, order, fate, text }) {
    const all = await report.get("run", run, "rollouts");
    const wanted = text.toLowerCase();
    const column = order.replace(/^-/, "");
    const value = (row) => (column in row.fates ? row.fates[column] : row[column]);
    const rows = all.rows.filter(
      (row) => (!fate || row.fates[fate]) && (!wanted || `${row.rollout}\n${row.task}`.toLowerCase().includes(wanted)),
    );
    if (column !== "arrival") rows.sort((a, b) => d3.ascending(value(a), value(b)));
    if (order.startsWith("-")) rows.reverse();
    return { rows: rows.slice(first, first + count), total: rows.length };
  },
};

const seenUpdates = new Map(); // run → its columns so far: journalled updates never change

const server = {
  live: true,
  has: () => true,
  async ask(parts, query = {}) {
    const answer = await fetch(`api/${parts.map(encodeURIComponent).join("/")}?${new URLSearchParams(query)}`, { cache: "no-store" });
    const made = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(made.error || `the server answered ${answer.status}`);
    return made;
  },
  get: (...parts) => server.ask(parts),
  runs: async () => (await server.get("runs")).runs,
  async updates(run) {
    const seen = seenUpdates.get(run) || { columns: {}, pressure: null, clock: null, count: 0 };
    seenUpdates.set(run, seen);
    for (let more = true; more; ) {
      const made = await server.ask(["run", run, "updates"], { after: seen.count - 1 });
      const length = (made.columns.update || []).length;
      if (made.first !== seen.count) break; // another view has asked for the same
      for (const name of new Set([...Object.keys(seen.columns), ...Object.keys(made.columns)])) {
        const before = seen.columns[name] || new Array(seen.count).fill(null);
        seen.columns[name] = before.concat(made.columns[name] || new Array(length).fill(null));
      }
      seen.count += length;
      if (length) Object.assign(seen, { pressure: made.pressure, clock: made.clock });
      more = made.more && length > 0;
    }
    return seen;
  },
  batches: (run, first, count) => server.ask(["run", run, "batches"], { first, count }),
  rollouts: (run, query) => server.ask(["run", run, "rollouts"], query),
};

const source = page.mode === "live" ? server : report;

// Columns as rows: what charts, tables and CSV files are made of.
function rowsOf(columns) {
  const names = Object.keys(columns);
  return (columns.update || []).map((_, place) => Object.fromEntries(names.map((name) => [name, columns[name][place]])));
}
