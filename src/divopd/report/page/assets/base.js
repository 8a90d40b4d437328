"use strict";
// Elements, texts, numbers and colours. Texts of environments and names of runs reach the page as text nodes only.

function el(tag, attributes = {}, ...children) {
  const node = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, setting] of Object.entries(value)) node.style.setProperty(key, setting);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// Characters that would steer a terminal, hide, or turn the direction of what follows are shown by name.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

function visible(text) {
  return String(text).replace(UNSEEN, (letter) => {
    const code = letter.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}

// ── numbers, always with their unit ──────────────────────────────────────────────────────────────────────────────

const NONE = "–";

function known(format) {
  return (value, ...rest) => (value === null || value === undefined || Number.isNaN(value) ? NONE : format(value, ...rest));
}

const show = {
  whole: known((value) => Math.round(value).toLocaleString("en-US")),
  fixed: known((value, digits = 2) => value.toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1")), // no negative zero
  percent: known((share, digits = 1) => `${(100 * share).toFixed(digits)} %`), // of a share between 0 and 1
  rate: known((rate, digits = 1) => `${rate.toFixed(digits)} %`), // what is in percent already
  times: known((ratio) => `${ratio.toFixed(2)}×`),
  quantity: known((value) => {
    for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
      if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
    }
    return `${Number(value.toPrecision(3))}`;
  }),
  seconds: known((value) => {
    if (value < 60) return `${Number(value.toPrecision(3))} s`;
    const minutes = Math.floor(value / 60);
    if (minutes < 60) return `${minutes} min ${String(Math.round(value % 60)).padStart(2, "0")} s`;
    return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  }),
};

function plural(count, what) {
  return `${show.whole(count)} ${what}${count === 1 ? "" : "s"}`;
}

function spoken(name) {
  return String(name).replaceAll("_", " ");
}

// ── colours: Okabe and Ito's, told apart by colour-blind readers too, and lighter ones for the dark ────────────────

const THEMES = {
  light: {
    vanilla: "#d55e00", divopd: "#0072b2",
    others: ["#009e73", "#b5539c", "#c98a00", "#3d9bd4", "#6f5bb5", "#7a6a58"],
    slots: ["#e69f00", "#56b4e9", "#009e73", "#f0c808", "#0072b2", "#d55e00", "#cc79a7"],
    fates: { trained: "#15866a", dead: "#4d5563", pending: "#5b9bd5", queued: "#aab4c2", stale: "#d9772b", aged_out: "#c9a227", invalid: "#a34865" },
    stages: ["#0072b2", "#d55e00", "#009e73", "#b5539c", "#c98a00", "#3d9bd4"],
    dead: "#9aa2ad", quiet: "#66707f",
  },
  dark: {
    vanilla: "#ff8f4d", divopd: "#4fb3f6",
    others: ["#2fcb9f", "#e79ad0", "#f0b93a", "#93d6fb", "#b3a1f0", "#c9b8a2"],
    slots: ["#f0ad2a", "#74c7f7", "#22b98c", "#f4dc5a", "#3c8fd0", "#f07b35", "#dd8fbd"],
    fates: { trained: "#2fbf97", dead: "#c5ccd6", pending: "#74b4ee", queued: "#7c8798", stale: "#f0954a", aged_out: "#e2c04c", invalid: "#d9738f" },
    stages: ["#4fb3f6", "#ff8f4d", "#2fcb9f", "#e79ad0", "#f0b93a", "#93d6fb"],
    dead: "#6d7684", quiet: "#98a3b3",
  },
};

const darkness = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen || (darkness.matches ? "dark" : "light");
}

function palette() {
  return THEMES[theme()];
}

// Vanilla is orange and divopd blue wherever they appear first; the other runs take what is left, in order.
function runColours(runs) {
  const colours = new Map();
  const { vanilla, divopd, others } = palette();
  const free = [...others];
  for (const run of runs) {
    const fixed = { vanilla, divopd }[run.method];
    const taken = fixed && ![...colours.values()].includes(fixed);
    colours.set(run.name, taken ? fixed : free[(colours.size) % free.length]);
  }
  return colours;
}

function dot(colour) {
  return el("span", { class: "dot", style: { background: colour }, "aria-hidden": "true" });
}

function empty(title, text) {
  return el("div", { class: "empty", role: "status" }, el("strong", {}, title), el("span", {}, text));
}
