"use strict";
// Navigation, the choice of runs, and on a live page the news. Everything that is chosen stands in the address.

const POLL_MS = 2000;
const MOST_SHOWN = 8; // runs, unless more are asked for
const nav = document.getElementById("nav");
const main = document.getElementById("main");
const content = el("div", { id: "content" });
const heading = el("h1", { tabindex: "-1" });
const about = el("p", { class: "about" });
const chips = el("div", { class: "chips", role: "group", "aria-label": "Runs" });
const banner = el("div", { class: "banner", role: "alert", hidden: true });
const now = el("div", { class: "now", "aria-label": "What the roles do now", hidden: true });
const status = el("p", { class: "live", role: "status" });

let runs = [];
let broken = []; // what looks like a run and cannot be read
let drawing = 0;
let drawn = null;
let lastExplained = null;

function readAddress() {
  const [view, query = ""] = location.hash.slice(1).split("?");
  return { view: view in views ? view : "learning", choices: new URLSearchParams(query) };
}

function addressOf(view, choices) {
  const text = choices.toString();
  return `#${view}${text ? `?${text}` : ""}`;
}

function makeContext({ view, choices }) {
  const hidden = new Set(choices.getAll("hide"));
  const asked = choices.has("hide");
  const [axis, range] = [choices.get("x"), choices.get("range")];
  const shown = runs.filter((run, place) => !hidden.has(run.name) && (asked || place < MOST_SHOWN));
  const colours = runColours(runs);
  const changed = (changes) => {
    const next = new URLSearchParams(choices);
    for (const [key, value] of Object.entries(changes)) next.set(key, value);
    for (const [key, value] of [...next]) if (value === "" && key !== "hide") next.delete(key);
    return next;
  };
  const groups = groupsOf(shown);
  const banded = (choices.get("lines") ?? (groups.some((group) => group.runs.length > 1) ? "methods" : "runs")) === "methods";
  const together = new Map(groups.flatMap((group) => group.runs.map((run) => [run.name, colours.get(group.runs[0].name)])));
  return {
    axis: axis in AXES ? axis : Object.keys(AXES)[0], range: range in RANGES ? range : "all",
    smooth: Number(choices.get("smooth") in SMOOTHINGS ? choices.get("smooth") : 5),
    groups, banded, lineColours: banded ? together : new Map(shown.map((run) => [run.name, colours.get(run.name)])),
    lineLegend: banded ? groups.map((group) => [group.label, colours.get(group.runs[0].name)]) : shown.map((run) => [run.name, colours.get(run.name)]),
    runs, shown, colours: new Map(shown.map((run) => [run.name, colours.get(run.name)])), allColours: colours,
    legend: shown.map((run) => [run.name, colours.get(run.name)]),
    choice: (key, usual) => choices.get(key) ?? usual,
    choose: (key, value) => { location.hash = addressOf(view, changed({ [key]: value })); },
    chooseAll: (changes) => { location.hash = addressOf(view, changed(changes)); },
    address: (to, changes) => {
      const kept = keptChoices(choices);
      for (const [key, value] of Object.entries(changes)) if (value !== "") kept.set(key, value);
      return addressOf(to, kept);
    },
  };
}

// What stays when another view is opened: the runs, and how lines are drawn.
const KEPT = ["hide", "x", "smooth", "range", "lines"];

function keptChoices(choices) {
  return new URLSearchParams(KEPT.flatMap((key) => choices.getAll(key).map((value) => [key, value])));
}

function drawNav(at) {
  const kept = keptChoices(at.choices);
  const links = Object.entries(views).map(([name, view]) =>
    el("li", {}, el("a", { href: addressOf(name, kept), "aria-current": name === at.view ? "page" : null, "data-key": `nav/${name}` }, view.short || view.title)));
  const chosen = document.documentElement.dataset.theme || "auto";
  const next = { auto: "light", light: "dark", dark: "auto" }[chosen];
  nav.replaceChildren(
    el("div", { class: "brand" }, el("strong", {}, "divopd"), el("span", {}, source.live ? "watch" : "report")),
    el("ul", {}, links),
    el("div", { class: "foot" }, status,
      el("button", { type: "button", class: "tool", "data-key": "theme", "aria-label": `Colours: ${chosen}. Change to ${next}`, onclick: () => chooseTheme(next) }, `Colours: ${chosen}`)));
}

function chooseTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  draw();
}

function drawChips(context, at) {
  const flip = (run) => {
    const hidden = new Set(runs.filter((one) => !context.shown.includes(one)).map((one) => one.name));
    if (hidden.has(run.name)) hidden.delete(run.name);
    else hidden.add(run.name);
    const next = new URLSearchParams(at.choices);
    next.delete("hide");
    for (const name of hidden.size ? hidden : [""]) next.append("hide", name);
    location.hash = addressOf(at.view, next);
  };
  const many = runs.length > 1 && !["diff", "rollouts"].includes(at.view);
  chips.replaceChildren(...(many ? runs.map((run) => el("button", {
    type: "button", class: "chip", "aria-pressed": String(context.shown.includes(run)), "data-key": `run/${run.name}`, onclick: () => flip(run),
  }, dot(context.allColours.get(run.name)), visible(run.name))) : []));
}

async function readRuns() {
  const found = await source.runs();
  runs = found.filter((run) => !run.error);
  broken = found.filter((run) => run.error);
}

async function draw() {
  const mine = ++drawing;
  const at = readAddress();
  const view = views[at.view];
  const context = makeContext(at);
  drawNav(at);
  main.setAttribute("aria-busy", "true");
  let parts;
  try {
    if (!runs.length) parts = [empty("No run here yet", source.live ? "This page shows a run as soon as it has a store: start one with divopd train." : "The report was made of no run.")];
    else if (!context.shown.length) parts = [empty("No run is selected", "Choose one above.")];
    else parts = view.render(context, await view.load(context));
  } catch (error) {
    parts = [el("div", { class: "empty error", role: "alert" }, el("strong", {}, "This view could not be drawn"), el("span", {}, visible(error.message)))];
    if (!(error instanceof Error) || error instanceof TypeError && !source.live) console.error(error);
  }
  if (mine !== drawing) return; // something newer was asked for meanwhile
  const place = `${at.view} ${context.choice("rollout", "")}`;
  const moved = drawn !== place;
  const focus = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : null;
  const scroll = scrollY;
  heading.textContent = view.title;
  about.textContent = view.about;
  document.title = `${view.title} · divopd ${source.live ? "watch" : "report"}`;
  drawChips(context, at);
  const unreadable = broken.map((run) => el("p", { class: "note" }, el("strong", { class: "bad" }, visible(`${run.name} cannot be shown: `)), visible(run.error)));
  content.replaceChildren(...unreadable, ...parts.flat().filter(Boolean));
  main.removeAttribute("aria-busy");
  const kept = focus && [...document.querySelectorAll("[data-key]")].find((node) => node.dataset.key === focus);
  if (kept) keepFocus(kept);
  scrollTo({ top: moved ? 0 : scroll, behavior: "instant" });
  drawn = place;
  const explained = document.getElementById("explanation");
  if (explained && explained.dataset.of !== lastExplained) explained.scrollIntoView({ block: "nearest" });
  lastExplained = explained ? explained.dataset.of : null;
}

function keepFocus(node) {
  const [start, end] = node.type === "search" ? [document.activeElement.selectionStart, document.activeElement.selectionEnd] : [null, null];
  node.focus({ preventScroll: true });
  if (node.type === "search") node.setSelectionRange(start ?? node.value.length, end ?? node.value.length);
}

// ── news ─────────────────────────────────────────────────────────────────────────────────────────────────────────

let lastNews = null;

async function poll() {
  try {
    const { cursors, doing } = await server.get("news");
    const news = JSON.stringify(cursors);
    drawNow(doing);
    banner.hidden = true;
    status.className = "live on";
    status.textContent = "live";
    if (news !== lastNews) {
      lastNews = news;
      await readRuns();
      await draw();
    }
  } catch (error) {
    status.className = "live off";
    status.textContent = "no answer";
    banner.textContent = visible(`The server does not answer (${error.message}). It may have been stopped; what is shown is what was known. Trying again…`);
    banner.hidden = false;
  }
  setTimeout(poll, POLL_MS);
}

// What every process does at this moment; a run that is over says nothing.
function drawNow(doing) {
  const busy = Object.entries(doing).filter(([, said]) => said.length);
  now.hidden = !busy.length;
  now.replaceChildren(...busy.map(([run, said]) => el("p", {}, el("strong", {}, visible(busy.length > 1 || runs.length > 1 ? `${run} now: ` : "Now: ")),
    said.map(({ process, role, sentence, ago_s: ago }) => el("span", { class: ago > 60 ? "doing silent" : "doing" },
      el("b", {}, visible(process === "run" || process.startsWith(role) ? (process === "run" ? role : process) : `${process} (${role})`)), ` ${visible(sentence)}`, ago > 10 ? el("span", { class: "small" }, ` (${show.seconds(Math.round(ago))} ago)`) : null)))));
}

async function begin() {
  main.replaceChildren(banner, el("header", { class: "top" }, el("div", {}, heading, about), chips), now, content);
  addEventListener("hashchange", draw);
  darkness.addEventListener("change", draw);
  if (source.live) {
    await poll();
  } else {
    await readRuns();
    await draw();
  }
}

begin();
