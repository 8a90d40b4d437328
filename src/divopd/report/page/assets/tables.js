"use strict";
// Tables that sort. A column is {key, label, unit?, value(row)?, format(value, row)?, node(row)?, text?, sorts?};
// `text` is true, or says how much room the texts take: wide or roomy.

function cellValue(column, row) {
  return column.value ? column.value(row) : row[column.key];
}

function sortableTable({ columns, rows, caption, sort = null, onsort = null, look = "" }) {
  let order = sort; // {key, down}
  const body = el("tbody");
  const heads = columns.map((column) => {
    const label = el("span", {}, column.label, column.unit ? [" ", el("span", { class: "unit" }, column.unit)] : null);
    const sorts = column.sorts !== false;
    const button = sorts ? el("button", { type: "button", class: "sort", onclick: () => choose(column) }, label) : el("span", { class: "sort" }, label);
    return el("th", { scope: "col", class: column.text ? `text ${column.text === true ? "" : column.text}` : "number", title: column.title }, button);
  });
  function choose(column) {
    const down = order && order.key === column.key ? !order.down : !column.text;
    order = { key: column.key, down };
    if (onsort) onsort(order);
    else fill();
  }
  function fill() {
    columns.forEach((column, place) => {
      const active = order && order.key === column.key;
      heads[place].setAttribute("aria-sort", active ? (order.down ? "descending" : "ascending") : "none");
    });
    const column = order && !onsort && columns.find((one) => one.key === order.key);
    const sorted = column ? [...rows].sort(comparing(column, order.down)) : rows;
    body.replaceChildren(...sorted.map((row) => el("tr", {}, columns.map((one, place) => cell(one, row, place)))));
  }
  fill();
  return el("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: look }, el("caption", { class: "hidden-caption" }, caption), el("thead", {}, el("tr", {}, heads)), body));
}

// What is unknown comes last, whichever way is sorted.
function comparing(column, down) {
  return (a, b) => {
    const [x, y] = [cellValue(column, a), cellValue(column, b)];
    const unknown = (value) => value === null || value === undefined;
    if (unknown(x) || unknown(y)) return unknown(x) - unknown(y);
    return down ? d3.descending(x, y) : d3.ascending(x, y);
  };
}

function cell(column, row, place) {
  const value = cellValue(column, row);
  const content = column.node ? column.node(row) : visible(column.format ? column.format(value, row) : (value ?? NONE));
  const tag = place === 0 ? "th" : "td";
  return el(tag, { class: column.text ? `text ${column.text === true ? "" : column.text}` : "number", ...(place === 0 ? { scope: "row" } : {}) }, content);
}

// The data of a figure, as it is.
function plainTable(rows, caption) {
  const columns = Object.keys(rows[0]).map((key) => ({
    key,
    label: spoken(key),
    text: rows.some((row) => typeof row[key] === "string"),
    format: (value) => (typeof value === "number" ? String(Number(value.toPrecision(6))) : (value ?? NONE)),
  }));
  return sortableTable({ columns, rows, caption });
}

function card(title, note, ...content) {
  return el("section", { class: "card" }, el("header", {}, el("h3", {}, title), note ? el("p", {}, note) : null), content);
}
