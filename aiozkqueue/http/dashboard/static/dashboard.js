// Keeps the parts marked data-live up to date, every five seconds, until the reader pauses that.
"use strict";

(() => {
  const every = 5000;
  const soon = 1000;
  const button = document.querySelector("[data-pause]");
  const told = document.querySelector("[data-told]");
  const tell = (text) => { told.textContent = text; };
  const parts = () => [...document.querySelectorAll("[data-live]")];

  let paused = false;
  let failed = false;

  const inUse = (part) => part.contains(document.activeElement)
    || (String(document.getSelection()) !== "" && part.contains(document.getSelection().anchorNode));

  const replace = (page) => {
    for (const part of parts()) {
      const fresh = page.querySelector(`[data-live="${part.dataset.live}"]`);
      if (!fresh || inUse(part)) continue;
      const open = new Set([...part.querySelectorAll("details[open] summary")].map((one) => one.closest("tr")?.firstElementChild.textContent));
      part.replaceChildren(...fresh.childNodes);
      for (const one of part.querySelectorAll("details")) one.open ||= open.has(one.closest("tr")?.firstElementChild.textContent);
    }
  };

  const update = async () => {
    if (paused || document.hidden) return;
    if ([...document.querySelectorAll("[data-soon]")].some((one) => !one.closest("[data-live]"))) {
      location.reload();
      return;
    }
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store" });
      if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (paused) return;
      replace(page);
      document.dispatchEvent(new Event("updated"));
      if (failed) tell("Updates have resumed.");
      failed = false;
    } catch {
      if (!failed) tell("The page could not be updated; retrying.");
      failed = true;
    }
  };

  const next = () => setTimeout(async () => { await update(); next(); }, document.querySelector("[data-soon]") ? soon : every);

  if (parts().length && button && told) {
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      button.textContent = paused ? "Resume updates" : "Pause updates";
      tell(paused ? "Updates are paused." : "Updates have resumed.");
    });
    next();
  }

  const all = document.querySelector("[data-select-all]");
  if (all) {
    const form = all.closest("form");
    const boxes = [...form.querySelectorAll("input[name=id]")];
    const selected = form.querySelector("input[name=every][value='']");
    const changed = () => {
      all.checked = boxes.every((one) => one.checked);
      all.indeterminate = !all.checked && boxes.some((one) => one.checked);
      if (boxes.some((one) => one.checked)) selected.checked = true;
    };
    all.addEventListener("change", () => { for (const one of boxes) one.checked = all.checked; changed(); });
    for (const one of boxes) one.addEventListener("change", changed);
  }
})();
