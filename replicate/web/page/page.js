"use strict";
// The page of `replicate web`. It shows what the server tells, and asks nobody else for anything. Every text is put in as
// text, never as markup. An element that is there stays there: focus, selection and a screen reader's place are kept.

const MARKS = { well: "●", busy: "◐", warning: "▲", error: "✖", off: "○", unknown: "·" };
const BEINGS = {
  "streaming": "well", "running": "well", "paused (XOFF)": "warning", "no stream": "error", "not running": "error",
  "passive": "off", "standing by": "off", "files": "busy",
};
const SVG = "http://www.w3.org/2000/svg";
const STALE_S = 5;
const place = { past: 900, source: null, frozen: false, lastSeen: 0, isOpen: false };
const byId = (id) => document.getElementById(id);

// Elements.

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawn(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function say(node, text) { if (node.textContent !== text) node.textContent = text; }
function style(node, className) { if (node.getAttribute("class") !== className) node.setAttribute("class", className); }

/** As many children of `parent` as there are `items`, each made once by its key and then updated. */
function keyed(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (child) known.delete(key);
    else { child = make(item); child.dataset.key = key; }
    const wanted = before ? before.nextElementSibling : parent.firstElementChild;
    if (wanted !== child) parent.insertBefore(child, wanted);
    update(child, item);
    before = child;
  }
  for (const child of known.values()) child.remove();
}

// Figures.

function seconds(value) {
  if (value === null) return "unknown";
  if (value < 120) return `${(Math.ceil(Math.round(value * 10000) / 1000) / 10).toFixed(1)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

function rate(value) { return value >= 100 || value === 0 ? `${Math.round(value)}/s` : `${value.toFixed(1)}/s`; }

function figureText(figure) {
  if (figure.value === null) return "unknown";
  let text = String(figure.value);
  if (figure.unit === "seconds") text = seconds(figure.value);
  if (figure.unit === "percent") text = `${Math.round(figure.value)} %`;
  return figure.is_at_least ? `≥ ${text}` : text;
}

function curveText(value, unit, isAtLeast) {
  if (value === null) return "unknown";
  let text = unit === "seconds" ? seconds(value) : unit === "per second" ? rate(value) : String(Math.round(value));
  return isAtLeast ? `≥ ${text}` : text;
}

function time(us) { return `${new Date(us / 1000).toISOString().slice(11, 19)}`; }
function moment(us) { return `${new Date(us / 1000).toISOString().slice(0, 19).replace("T", " ")}`; }

// The street.

function makePart() {
  const made = element("li");
  made.append(element("strong"), element("span", "state"), element("dl"));
  return made;
}

function updatePart(node, part) {
  style(node, `part ${part.mood}`);
  node.dataset.part = part.part_key;
  const [title, state, figures] = node.children;
  say(title, part.title);
  style(state, `state ${part.mood}`);
  say(state, part.state || part.mood !== "unknown" ? `${MARKS[part.mood]} ${part.state || part.mood}` : "");
  keyed(figures, part.figures.flatMap((one) => [{ ...one, is: "dt" }, { ...one, is: "dd" }]),
    (one) => `${one.is}-${one.key}`, (one) => element(one.is),
    (child, one) => {
      if (one.is === "dt") { say(child, one.label); return; }
      child.dataset.figure = one.key;
      child.dataset.value = one.value === null ? "" : String(one.value);
      say(child, figureText(one));
    });
}

function makeWay() {
  const made = element("li");
  const line = drawn("svg", { viewBox: "0 0 100 14", preserveAspectRatio: "none", "aria-hidden": "true" });
  line.append(drawn("line", { x1: 0, y1: 7, x2: 92, y2: 7 }), drawn("path", { d: "M90 1 L100 7 L90 13 Z" }));
  made.append(element("span", "number"), line, element("span", "speed"), element("span", "state"), element("span", "waits"));
  return made;
}

function updateWay(node, way) {
  style(node, `way ${way.mood}${way.is_line ? " line" : ""}`);
  node.dataset.way = way.key;
  const [number, , speed, state, waits] = node.children;
  const seqno = way.seqno === null ? (way.is_line ? " unknown" : "") : ` ${way.is_at_least ? "≥ " : ""}${way.seqno}`;
  say(number, way.label + seqno);
  number.dataset.figure = way.key;
  number.dataset.value = way.seqno === null ? "" : String(way.seqno);
  say(speed, way.per_s === null ? "" : ` ${rate(way.per_s)} `);
  say(state, way.state ? ` ${way.mood === "well" ? "" : `${MARKS[way.mood]} `}${way.state} ` : "");
  say(waits, way.waiting ? ` ${way.waiting} wait` : "");
}

function streetItems(row) {
  return row.parts.flatMap((part, at) => [
    { ...part, is: "part", part_key: part.key, key: `part-${part.key}` },
    ...(at < row.ways.length ? [{ ...row.ways[at], is: "way", way_key: `way-${row.ways[at].key}` }] : []),
  ]);
}

function updateStreets(node, rows) {
  keyed(node, rows, (row) => `row-${row.name}`, () => element("ol", "street"), (street, row) => {
    street.setAttribute("aria-label", `The street ${row.name}`);
    keyed(street, streetItems(row), (one) => one.way_key || one.key, (one) => one.is === "part" ? makePart() : makeWay(),
      (child, one) => one.is === "part" ? updatePart(child, one) : updateWay(child, one));
  });
}

// Curves.

function makeCurve() {
  const made = element("figure");
  const caption = element("figcaption");
  caption.append(element("strong"), element("span", "now"), element("span", "most"));
  const svg = drawn("svg", { class: "curve", viewBox: "0 0 240 64", preserveAspectRatio: "none", role: "img" });
  svg.append(drawn("path", { class: "area" }), drawn("path", { class: "line" }));
  made.append(caption, svg);
  return made;
}

function updateCurve(node, curve, past) {
  const [caption, svg] = node.children;
  const known = [...curve.values, curve.now].filter((value) => value !== null);
  const most = known.length ? Math.max(...known) : null;
  const at = most === null ? -1 : curve.values.indexOf(most);
  const mostText = curveText(most, curve.unit, at < 0 ? curve.is_at_least : curve.at_least.includes(at));
  const now = curveText(curve.now, curve.unit, curve.is_at_least);
  say(caption.children[0], curve.label);
  say(caption.children[1], now);
  caption.children[1].dataset.curve = curve.key;
  say(caption.children[2], most === null ? "" : `most ${mostText}`);
  svg.setAttribute("aria-label", `${curve.label} over the last ${seconds(past)}: now ${now}, most ${mostText}`);
  const wide = 240 / curve.values.length;
  let area = "", line = "", pen = false;
  curve.values.forEach((value, number) => {
    if (value === null) { pen = false; return; }
    const y = (62 - (most > 0 ? value / most : 0) * 58).toFixed(1);
    const x = (number * wide).toFixed(1), until = ((number + 1) * wide).toFixed(1);
    area += `M${x} 64L${x} ${y}L${until} ${y}L${until} 64Z`;
    line += `${pen ? "L" : "M"}${x} ${y}L${until} ${y}`;
    pen = true;
  });
  svg.children[0].setAttribute("d", area);
  svg.children[1].setAttribute("d", line);
}

// What happened.

function updateLanes(node, picture) {
  const span = Math.max(1, picture.at_us - picture.from_us);
  const items = picture.lanes.flatMap((lane) => [{ ...lane, is: "name" }, { ...lane, is: "lane" }]);
  keyed(node, items, (one) => `${one.is}-${one.daemon}`,
    (one) => one.is === "name" ? element("span") : drawn("svg",
      { class: "lane", viewBox: "0 0 1000 18", preserveAspectRatio: "none", role: "img" }),
    (child, one) => {
      const now = one.spans.length ? one.spans[one.spans.length - 1][2] : "unknown";
      if (one.is === "name") { say(child, one.daemon); return; }
      child.setAttribute("aria-label", `${one.daemon}: ${[...new Set(one.spans.map((s) => s[2]))].join(", ")}; now ${now}`);
      child.replaceChildren(...one.spans.map(([from, until, what]) => {
        const rect = drawn("rect", {
          x: ((from - picture.from_us) / span * 1000).toFixed(2), y: what === "files" ? 12 : 2,
          width: Math.max(1, (until - from) / span * 1000).toFixed(2), height: what === "files" ? 6 : 14,
          class: BEINGS[what] || "off",
        });
        const title = drawn("title", {});
        title.textContent = `${moment(from)} to ${time(until)}: ${what}`;
        rect.append(title);
        return rect;
      }));
    });
}

function updateEvents(body, events) {
  const newest = events.slice(-50).reverse();
  const keys = new Map();
  for (const one of newest) {  // two of a kind at one moment
    const key = `${one.at_us}-${one.of}-${one.what}`;
    keys.set(one, `${key}-${[...keys.values()].filter((other) => other.startsWith(key)).length}`);
  }
  keyed(body, newest, (one) => keys.get(one), (one) => {
    const row = element("tr");
    const at = element("td");
    at.append(element("span", "date", `${moment(one.at_us).slice(0, 10)} `), time(one.at_us));
    row.append(at, element("td", "", one.of),
      element("td", one.mood === "well" ? "" : one.mood, one.mood === "well" ? one.what : `${MARKS[one.mood]} ${one.what}`),
      element("td", "text", one.text));
    return row;
  }, () => {});
}

// Findings.

async function copy(text) {
  let said = `Copied: ${text}`;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    said = "The browser lets nobody copy here; select the command instead";
  }
  byId("said").textContent = "";
  byId("said").textContent = said;
  return said;
}

function makeFinding(finding) {
  const isInfo = finding.severity === "info";
  const made = element("li", isInfo ? "busy info" : finding.severity);
  const mark = MARKS[isInfo ? "busy" : finding.severity];
  made.append(element("strong", "", `${mark} ${finding.code} ${finding.severity}`));
  const nothing = /^nothing(; )?/;
  if (nothing.test(finding.do)) made.append(element("p", "", finding.text + finding.do.replace(nothing, "$1")));
  else made.append(element("p", "", finding.text), element("p", "", `Next: ${finding.do}`));
  for (const command of finding.commands) {
    const line = element("div", "command");
    const button = element("button", "", "Copy");
    button.type = "button";
    button.setAttribute("aria-label", `Copy the command ${command}`);
    button.addEventListener("click", async () => {
      button.textContent = (await copy(command)).startsWith("Copied") ? "Copied" : "Not copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    line.append(element("code", "", command), button);
    made.append(line);
  }
  return made;
}

// Records.

async function loadRecords(details, number) {
  try {
    const answer = await fetch(`records?instance=${number}`);
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const told = await answer.json();
    keyed(details.lastElementChild, told.tables, (table) => table.key, (table) => {
      const made = element("section");
      made.append(element("h4", "", table.title), element("p", "faint", table.about), element("div", "scroll"));
      return made;
    }, (section, table) => {
      const shown = JSON.stringify([table.head, table.rows, table.why_not]);
      if (section.dataset.shown === shown) return;
      section.dataset.shown = shown;
      const box = section.lastElementChild;
      if (table.why_not) { box.replaceChildren(element("p", "", table.why_not)); return; }
      const made = element("table"), head = element("tr");
      made.setAttribute("aria-label", table.title);
      head.append(...table.head.map((text) => { const th = element("th", "", text); th.scope = "col"; return th; }));
      made.append(element("thead"), element("tbody"));
      made.firstElementChild.append(head);
      made.lastElementChild.append(...table.rows.map((row) => {
        const tr = element("tr");
        tr.append(...row.map((text) => element("td", "", text)));
        return tr;
      }));
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", table.title);
      box.replaceChildren(made);
    });
  } catch (error) {
    details.lastElementChild.replaceChildren(element("p", "alarm", `Not known now: ${error.message}`));
  }
}

// An instance.

function makeInstance(number) {
  const made = element("section", "instance");
  const head = element("h2");
  head.id = `instance-${number}`;
  made.setAttribute("aria-labelledby", head.id);
  const parts = {
    head, path: element("p", "faint"), bottleneck: element("p", "bottleneck"), findings: element("ul", "findings"),
    streets: element("div"), notes: element("p", "faint"), past: element("h3"), curves: element("div", "curves"),
    axis: element("div", "axis"), happened: element("h3", "", "What happened"), lanes: element("div", "lanes"),
    legend: element("ul", "legend"), tally: element("p", "tally"), events: element("div", "scroll"),
    records: element("details"),
  };
  parts.axis.setAttribute("aria-hidden", "true");
  parts.axis.append(element("span"), element("span"));
  for (const [words, mood] of [["streaming, running", "well"], ["paused", "warning"], ["no stream, not running", "error"],
    ["reads files", "busy"], ["passive, standing by", "off"]]) {
    const item = element("li");
    item.append(element("span", mood), document.createTextNode(words));
    parts.legend.append(item);
  }
  const table = element("table"), header = element("tr");
  for (const text of ["UTC", "daemon", "what", ""]) { const th = element("th", "", text || "more"); th.scope = "col"; header.append(th); }
  table.append(element("thead"), element("tbody"));
  table.firstElementChild.append(header);
  parts.events.append(table);
  parts.events.tabIndex = 0;
  parts.events.setAttribute("role", "region");
  parts.records.append(element("summary", "", "Checkpoint records, epochs, who has what of whom"), element("div"));
  parts.records.addEventListener("toggle", () => { if (parts.records.open) loadRecords(parts.records, number); });
  made.append(...Object.values(parts));
  made.parts = parts;
  return made;
}

function updateInstance(node, picture) {
  const { parts } = node;
  style(node, `instance ${picture.mood}`);
  node.dataset.instance = picture.name;
  node.dataset.mood = picture.mood;
  node.dataset.role = picture.role;
  const more = picture.incarnation ? ` (incarnation ${picture.incarnation})` : "";
  say(parts.head, `${MARKS[picture.mood]} ${picture.role} ${picture.name}${more}${picture.mode ? `, ${picture.mode}` : ""}`);
  const age = Math.floor(picture.age_us / 1e6);
  say(parts.path, `${picture.path}; as it was at ${time(picture.at_us)} UTC${age >= STALE_S ? `, ${age} s ago` : ""}`);
  style(parts.path, age >= STALE_S ? "alarm" : "faint");
  style(parts.bottleneck, picture.error ? "bottleneck alarm" : "bottleneck");
  say(parts.bottleneck, picture.error || `bottleneck: ${picture.headline || "none, everything is level"}`);
  keyed(parts.findings, picture.findings, (one) => JSON.stringify(one), makeFinding, () => {});
  updateStreets(parts.streets, picture.rows);
  say(parts.notes, picture.notes.join("; "));
  const span = Math.round((picture.at_us - picture.from_us) / 1e6);
  say(parts.past, `The last ${span < 120 ? `${span} s` : seconds(span)}`);
  keyed(parts.curves, picture.curves, (one) => one.key, makeCurve,
    (child, one) => updateCurve(child, one, (picture.at_us - picture.from_us) / 1e6));
  say(parts.axis.children[0], `${moment(picture.from_us)} UTC`);
  say(parts.axis.children[1], `${time(picture.at_us)}, now`);
  updateLanes(parts.lanes, picture);
  const tally = picture.tally.map(([what, number]) => number > 1 ? `${what} ×${number}` : what).join(", ");
  say(parts.tally, tally || (picture.events.length ? "" : "Nothing, in that time"));
  parts.events.setAttribute("aria-label", `What happened to ${picture.name}`);
  parts.events.hidden = picture.events.length === 0;
  updateEvents(parts.events.querySelector("tbody"), picture.events);
}

function show(told) {
  keyed(byId("instances"), told.instances.map((picture, number) => ({ picture, number })), (one) => `instance-${one.number}`,
    (one) => makeInstance(one.number), (node, one) => updateInstance(node, one.picture));
  const wrong = told.instances.filter((one) => one.is_wrong).map((one) => one.name);
  const title = wrong.length ? `▲ ${wrong.join(", ")}: Dualsite Replicate` : "Dualsite Replicate";
  if (document.title !== title) document.title = title;
}

// The server.

function listen() {
  if (place.source) place.source.close();
  place.source = new EventSource(`events?past=${place.past}`);
  place.source.addEventListener("pictures", (event) => {
    place.lastSeen = Date.now();
    place.isOpen = true;
    if (!place.frozen) show(JSON.parse(event.data));
    tellLink();
  });
  place.source.addEventListener("error", () => { place.isOpen = false; tellLink(); });
}

function tellLink() {
  const age = Math.floor((Date.now() - place.lastSeen) / 1000);
  const isWell = place.isOpen && age < STALE_S;
  style(byId("link"), isWell ? "" : "alarm");
  const since = place.lastSeen ? `no word of replicate web for ${age} s: what is shown is as old` : "connecting";
  say(byId("link"), place.frozen ? "frozen" : isWell ? "live" : since);
}

byId("past").addEventListener("change", () => { place.past = Number(byId("past").value); listen(); });
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("freeze").addEventListener("click", () => {
  place.frozen = !place.frozen;
  byId("freeze").setAttribute("aria-pressed", String(place.frozen));
  if (!place.frozen) listen();
  tellLink();
});
setInterval(() => {
  tellLink();
  if (place.frozen) return;
  for (const details of document.querySelectorAll("details[open]")) {
    loadRecords(details, Number(details.closest(".instance").dataset.key.split("-")[1]));
  }
}, 5000);
listen();
