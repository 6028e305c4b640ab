// Refreshes the shown content from the server at an interval. Shows the values under the pointer.
"use strict";

const EVERY_MS = 5000;
const PLOT_WIDTH = 560;
// The plot with the crosshair, and the pixel of the crosshair from the left.
let picked = null;
const status = document.getElementById("status");
const button = document.getElementById("refresh");
let running = true;

async function refresh() {
  if (!running || document.hidden) {
    return;
  }
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" } });
    if (response.redirected) {
      location.reload();
      return;
    }
    if (!response.ok) {
      throw new Error(`status ${response.status}`);
    }
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("live");
    const shown = document.getElementById("live");
    for (const details of shown.querySelectorAll("details[open]")) {
      fresh.querySelector(`#${CSS.escape(details.id)}`)?.setAttribute("open", "");
    }
    const focused = shown.contains(document.activeElement) ? document.activeElement.id : "";
    shown.replaceWith(fresh);
    enhance();
    if (focused) {
      document.getElementById(focused)?.focus({ preventScroll: true });
    }
    status.textContent = `as of ${fresh.dataset.at}`;
  } catch {
    status.textContent = "the server does not respond";
  }
}

// Makes plots reachable by the Tab key and gives each a line of text for its values.
function enhance() {
  for (const plot of document.querySelectorAll(".plot")) {
    plot.tabIndex = 0;
    const values = document.createElement("p");
    values.className = "values";
    values.setAttribute("aria-live", "polite");
    plot.after(values);
  }
  const plot = picked && document.getElementById(picked.plot);
  if (plot) {
    pick(plot, picked.pixel);
  }
}

function rowsOf(plot) {
  return plot.dataset.points.split("\n").map((row) => row.split("\t"));
}

function clear() {
  document.querySelector(".crosshair")?.remove();
  const values = picked && document.getElementById(picked.plot)?.nextElementSibling;
  if (values) {
    values.textContent = "";
  }
  picked = null;
}

// Moves the crosshair to the point that is next to `pixel`.
function pick(plot, pixel) {
  clear();
  const away = (row) => Math.abs(row[0] - pixel);
  const [at, time, ...values] = rowsOf(plot).reduce((best, row) => (away(row) < away(best) ? row : best));
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const ends = { class: "crosshair", x1: at, x2: at, y1: 8, y2: 196, stroke: "#555552" };
  Object.entries(ends).forEach(([name, value]) => line.setAttribute(name, value));
  plot.querySelector("svg").append(line);
  const labels = plot.dataset.labels.split("\t");
  const shown = labels.map((label, index) => `${label} ${values[index]}`);
  plot.nextElementSibling.textContent = [time, ...shown].join(" · ");
  picked = { plot: plot.id, pixel: Number(at) };
}

document.addEventListener("pointermove", (event) => {
  const plot = event.target.closest?.(".plot");
  if (plot) {
    const box = plot.getBoundingClientRect();
    pick(plot, ((event.clientX - box.left) / box.width) * PLOT_WIDTH);
  } else if (picked && document.activeElement?.id !== picked.plot) {
    clear();
  }
});
document.addEventListener("keydown", (event) => {
  const plot = event.target.closest?.(".plot");
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (event.key === "Escape") {
    clear();
  }
  if (!plot || !step) {
    return;
  }
  event.preventDefault();
  const rows = rowsOf(plot);
  const now = picked?.plot === plot.id ? rows.findIndex((row) => Number(row[0]) === picked.pixel) : rows.length;
  pick(plot, rows[Math.min(Math.max(now + step, 0), rows.length - 1)][0]);
});

enhance();
button.hidden = false;
button.addEventListener("click", () => {
  running = !running;
  button.textContent = running ? "Pause" : "Continue";
  refresh();
});
document.addEventListener("visibilitychange", refresh);
setInterval(refresh, EVERY_MS);
