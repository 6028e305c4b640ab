// Fetches the page again and again, and puts what changed in place of what is shown.
"use strict";

const EVERY_MS = 5000;
const status = document.getElementById("status");
const button = document.getElementById("refresh");
let running = true;

async function refresh() {
  if (!running || document.hidden) {
    return;
  }
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.redirected) {
      location.reload();
      return;
    }
    if (!answer.ok) {
      throw new Error(`status ${answer.status}`);
    }
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    const shown = document.getElementById("live");
    for (const details of shown.querySelectorAll("details[open]")) {
      fresh.querySelector(`#${CSS.escape(details.id)}`)?.setAttribute("open", "");
    }
    const focused = shown.contains(document.activeElement) ? document.activeElement.id : "";
    shown.replaceWith(fresh);
    if (focused) {
      document.getElementById(focused)?.focus({ preventScroll: true });
    }
    status.textContent = `as of ${new Date().toLocaleTimeString()}`;
  } catch {
    status.textContent = "the server does not answer";
  }
}

button.hidden = false;
button.addEventListener("click", () => {
  running = !running;
  button.textContent = running ? "Pause" : "Go on";
  refresh();
});
document.addEventListener("visibilitychange", refresh);
setInterval(refresh, EVERY_MS);
