// Keeps what is marked data-live up to date, every five seconds, until its reader pauses that.
"use strict";

(() => {
  const live = document.querySelector("[data-live]");
  const button = document.querySelector("[data-pause]");
  const told = document.querySelector("[data-told]");
  if (!live || !button || !told) return;

  let paused = false;
  let failed = false;
  button.hidden = false;

  const tell = (text) => { told.textContent = text; };

  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Resume updates" : "Pause updates";
    tell(paused ? "Updates are paused." : "Updates have resumed.");
  });

  const inUse = () => live.contains(document.activeElement) || String(document.getSelection()) !== "";

  const update = async () => {
    if (paused || document.hidden || inUse()) return;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store" });
      if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("[data-live]");
      if (!fresh || paused || inUse()) return;
      live.replaceChildren(...fresh.childNodes);
      if (failed) tell("Updates have resumed.");
      failed = false;
    } catch {
      if (!failed) tell("The page could not be updated; retrying.");
      failed = true;
    }
  };
  setInterval(update, 5000);
})();
