"use strict";
// Draws the charts of a report, sorts its tables, and asks for new contents if it is served.

const DASHES = { "-": "solid", "--": "dash", "-.": "dashdot" };
const SYMBOLS = {
  o: "circle", s: "square", "^": "triangle-up", D: "diamond", v: "triangle-down", P: "cross",
  X: "x", "<": "triangle-left", ">": "triangle-right", "*": "star",
};
const GAPS = { "-": "", "--": "5 3", "-.": "6 2 2 2" };
const GLYPHS = {
  o: "●", s: "■", "^": "▲", D: "◆", v: "▼", P: "✚", X: "✖", "<": "◀", ">": "▶", "*": "★",
};
// Colours that are hard to see on a dark page, and what stands for them: wine is yellow again there.
const ON_DARK = {
  "#000000": "#f0f0f0", "#0072b2": "#3b82e6", "#56b4e9": "#a5defa", "#882255": "#f0e442",
};
const MOST_CURVES = 16; // that are shown before anybody asks for more
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const at = (id) => document.getElementById(id);

// What a person chose; it outlives a refresh.
const state = { task: 0, probe: "", smooth: true, bands: true, shown: {}, sorted: {} };
let values = { looks: {}, rounds: [], tasks: [] };

const task = () => values.tasks[state.task];
const colour = (method) => {
  const plain = values.looks[method].colour;
  return (dark.matches && ON_DARK[plain]) || plain;
};
const isShown = (method) => {
  if (!(method in state.shown)) return task().methods.indexOf(method) < MOST_CURVES;
  return state.shown[method];
};
// Plotly reads a few tags in its texts, and names are anybody's.
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const faint = (hex) => {
  const [r, g, b] = [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
  return `rgba(${r},${g},${b},0.15)`;
};

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function layout(xTitle, yTitle) {
  const style = getComputedStyle(document.documentElement);
  const [ink, rule] = ["--ink", "--rule"].map((name) => style.getPropertyValue(name).trim());
  const axis = { gridcolor: rule, zerolinecolor: rule, linecolor: rule, automargin: true };
  return {
    showlegend: false, hovermode: "closest", dragmode: "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, family: "system-ui, sans-serif", size: 12 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: ink, activecolor: ink },
    margin: { l: 55, r: 12, t: 8, b: 42 },
    xaxis: { ...axis, title: { text: xTitle } }, yaxis: { ...axis, title: { text: plain(yTitle) } },
  };
}

function curveTraces(method, curve, window) {
  const smooth = state.smooth && window > 1;
  const x = values.rounds[curve.rounds];
  const y = smooth ? curve.smooth : curve.mean;
  const std = smooth ? curve.smooth_std : curve.std;
  const [ink, look, traces] = [colour(method), values.looks[method], []];
  if (std && state.bands) {
    const upper = y.map((value, i) => value + std[i]);
    const lower = y.map((value, i) => value - std[i]);
    traces.push({
      x: [...x, ...x.slice().reverse()], y: [...upper, ...lower.reverse()], meta: method,
      fill: "toself", fillcolor: faint(ink), line: { width: 0 }, mode: "lines", hoverinfo: "skip",
    });
  }
  const spread = y.map((_, i) => (std && std[i] !== null ? ` ± ${std[i].toPrecision(3)}` : ""));
  const runs = curve.runs === 1 ? "1 run" : `${curve.runs} runs`;
  traces.push({
    x, y, meta: method, name: plain(method), customdata: spread, mode: "lines+markers",
    line: { color: ink, width: 2, dash: DASHES[look.line] },
    marker: { color: ink, symbol: SYMBOLS[look.marker], size: 7, maxdisplayed: 8 },
    hovertemplate: `<b>${plain(method)}</b>, ${runs}<br>%{x}: %{y:.5~g}%{customdata}<extra></extra>`,
  });
  return traces;
}

function place(holder, key, title, description) {
  const id = `${holder.id}-${key.replace(/[^\w]/g, "-")}`;
  let plot = at(id);
  if (!plot) {
    plot = make("div", { id, class: "plot", role: "group" });
    holder.append(make("figure", {}, make("figcaption", {}), plot));
  }
  plot.previousSibling.textContent = title;
  plot.setAttribute("aria-label", description);
  return plot;
}

function keepOnly(holder, plots) {
  for (const figure of [...holder.children]) {
    if (plots.includes(figure.lastChild)) continue;
    Plotly.purge(figure.lastChild);
    figure.remove();
  }
}

const CONFIG = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "resetScale2d"]] };

function drawCurves(holder, charts, xTitle = "round") {
  // All have their place before the first is drawn, as their number decides their width.
  const plots = charts.map((chart) => {
    const over = state.smooth && chart.window > 1 ? `, mean of ${chart.window} evaluations` : "";
    const names = Object.keys(chart.curves).filter(isShown).join(", ");
    const description = `Chart of ${chart.label} by ${xTitle}: ${names || "no method is shown"}`;
    return place(holder, chart.name, chart.label + over, description);
  });
  keepOnly(holder, plots);
  charts.forEach((chart, i) => {
    const shown = Object.entries(chart.curves).filter(([method]) => isShown(method));
    const traces = shown.flatMap(([method, curve]) => curveTraces(method, curve, chart.window));
    Plotly.react(plots[i], traces, layout(xTitle, chart.label), CONFIG);
  });
}

function drawHoldings() {
  const [holder, held] = [at("data-charts"), task().holdings];
  at("data-note").textContent = held.reason ? `Who holds what is not drawn: ${held.reason}` : "";
  if (held.reason) return keepOnly(holder, []);
  const clients = held.counts[0].length;
  const some = clients < held.clients ? `the first ${clients} of ${held.clients} clients` : `${clients} clients`;
  const title = `Examples of each class that a client holds: ${some}, seed ${held.seed}`;
  const plot = place(holder, "holdings", title, title);
  const classes = held.classes.map(plain);
  const trace = {
    type: "heatmap", z: held.counts, y: held.classes.map((_, place) => place),
    customdata: held.counts.map((row, place) => row.map(() => classes[place])),
    colorscale: dark.matches ? [[0, "#1b2128"], [0.02, "#16384f"], [1, "#7cc7ff"]] : [[0, "#f6f8fa"], [0.02, "#d5e8f5"], [1, "#0072b2"]],
    colorbar: { thickness: 10 }, xgap: 1, ygap: 1,
    hovertemplate: "client %{x}, %{customdata}: %{z} examples<extra></extra>",
  };
  const drawn = layout("client", "class");
  if (classes.length <= 30) Object.assign(drawn.yaxis, { title: {}, tickvals: trace.y, ticktext: classes });
  drawn.xaxis.showgrid = drawn.yaxis.showgrid = false;
  Plotly.react(plot, [trace], drawn, CONFIG);
  keepOnly(holder, [plot]);
}

function drawn(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function swatch(method) {
  const [ink, look] = [colour(method), values.looks[method]];
  return drawn("svg", { width: 30, height: 14, "aria-hidden": "true" },
    drawn("path", { d: "M0 7H30", stroke: ink, "stroke-width": 2, "stroke-dasharray": GAPS[look.line] }),
    drawn("text", { x: 15, y: 11, fill: ink, "font-size": 12, "text-anchor": "middle" }, GLYPHS[look.marker]));
}

function drawLegend() {
  const methods = task().methods;
  at("legend").replaceChildren(...methods.map((method) => {
    const button = make("button", { type: "button", "aria-pressed": isShown(method) }, swatch(method), method);
    button.addEventListener("click", () => {
      state.shown[method] = !isShown(method);
      button.setAttribute("aria-pressed", state.shown[method]);
      drawCharts();
    });
    return button;
  }));
  for (const [id, shown] of [["show-all", true], ["hide-all", false]]) {
    at(id).onclick = () => {
      for (const method of methods) state.shown[method] = shown;
      drawLegend();
      drawCharts();
    };
  }
  const many = methods.length > MOST_CURVES;
  at("legend-note").textContent = many
    ? `There are ${methods.length} methods, of which the first ${MOST_CURVES} are shown: press the others to see them.`
    : "Press a method to hide its curves, and again to show them.";
}

function drawCharts() {
  drawCurves(at("round-charts"), task().rounds);
  drawCurves(at("client-charts"), task().clients ? [task().clients] : [], "share of clients (%)");
  drawCurves(at("probe-charts"), task().probes.filter((chart) => chart.name === state.probe));
  drawHoldings();
}

function fillSelect(select, entries, chosen, choose) {
  select.replaceChildren(...entries.map(([value, text]) => make("option", { value }, text)));
  select.value = chosen;
  select.onchange = () => { choose(select.value); draw(); };
}

function showPart(name, is_there) {
  for (const part of document.querySelectorAll(`[data-for="${name}"]`)) part.hidden = !is_there;
}

function draw() {
  const probes = task().probes.map((chart) => chart.name);
  if (!probes.includes(state.probe)) state.probe = probes[0] || "";
  const titles = values.tasks.map((each, place) => [String(place), each.title || "all runs"]);
  at("task-choice").hidden = titles.length < 2;
  fillSelect(at("task"), titles, String(state.task), (value) => { state.task = Number(value); });
  fillSelect(at("probe"), probes.map((name) => [name, name]), state.probe, (value) => { state.probe = value; });
  showPart("clients", values.tasks.some((each) => each.clients));
  showPart("probes", values.tasks.some((each) => each.probes.length));
  const window = Math.max(1, ...task().rounds.map((chart) => chart.window));
  at("smooth-label").textContent = window > 1 ? `Smooth: the mean of ${window} evaluations` : "Smooth (these runs are too short)";
  at("smooth").disabled = window === 1;
  for (const name of ["smooth", "bands"]) {
    at(name).checked = state[name];
    at(name).onchange = () => { state[name] = at(name).checked; drawCharts(); };
  }
  drawLegend();
  drawCharts();
}

// A cell counts by the number that it begins with; what has none comes last.
function number(text) {
  const found = /^[<+]?\s*(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)/i.exec(text);
  return found ? parseFloat(found[1].replace(/,/g, "")) : NaN;
}

function sortBy(table, column, order) {
  for (const head of table.tHead.rows[0].cells) head.setAttribute("aria-sort", "none");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => {
    const text = row.cells[column].textContent.trim();
    return { row, text, value: number(text) };
  });
  const lacks = (each) => isNaN(each.value);
  const numeric = !rows.every(lacks) && rows.every((each) => !lacks(each) || /^(-|failed|not reached)/.test(each.text));
  rows.sort((a, b) => {
    if (!numeric) return sign * a.text.localeCompare(b.text, "en", { numeric: true });
    return lacks(a) || lacks(b) ? lacks(a) - lacks(b) : sign * (a.value - b.value);
  });
  table.tBodies[0].append(...rows.map((each) => each.row));
}

function sortAsPressed(button) {
  const [head, table] = [button.closest("th"), button.closest("table")];
  const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  state.sorted[table.caption.textContent] = [head.cellIndex, order];
  sortBy(table, head.cellIndex, order);
}

function begin() {
  const found = at("values");
  if (!found) return;
  const title = task()?.title;
  values = JSON.parse(found.textContent);
  state.task = Math.max(0, values.tasks.findIndex((each) => each.title === title));
  draw();
}

const FOCUSABLE = "a, button, select, input, summary, [tabindex]";

function replaceContents(html) {
  const main = at("main");
  const focus = [...main.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  const [top, open] = [window.scrollY, !!main.querySelector("details[open]")];
  for (const plot of document.querySelectorAll(".plot")) Plotly.purge(plot);
  main.innerHTML = html;
  begin();
  for (const table of main.querySelectorAll("table")) {
    const chosen = state.sorted[table.caption.textContent];
    if (chosen && chosen[0] < table.tHead.rows[0].cells.length) sortBy(table, ...chosen);
  }
  for (const details of main.querySelectorAll("details")) details.open = open;
  const again = main.querySelectorAll(FOCUSABLE)[focus];
  if (again) again.focus({ preventScroll: true });
  window.scrollTo(0, top);
}

async function refresh(seconds, stamp) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    try {
      const answer = await fetch(`/contents?since=${encodeURIComponent(stamp)}`);
      if (answer.status === 200) {
        stamp = answer.headers.get("X-Stamp") || "";
        replaceContents(await answer.text());
        at("live").textContent = `This page refreshes by itself; last change seen at ${new Date().toLocaleTimeString()}.`;
      }
    } catch {
      at("live").textContent = "The server does not answer: what you see is the last that it said.";
    }
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("thead button");
  if (button) sortAsPressed(button);
});
dark.addEventListener("change", () => { if (values.tasks.length) draw(); });
// Plotly takes a second to start: the tables are shown before it.
window.requestAnimationFrame(() => setTimeout(() => {
  document.head.append(make("script", {}, at("plotly").textContent));
  begin();
  const live = document.body.dataset;
  if (live.refresh) refresh(Number(live.refresh), live.stamp);
}));
