// Keeps the parts marked data-live up to date, every five seconds, until the reader pauses that.
"use strict";

(() => {
  const every = 5000;
  const soon = 1000;
  const longest = 20000;
  const button = document.querySelector("[data-pause]");
  const told = document.querySelector("[data-told]");
  const tell = (text) => { told.textContent = text; };
  const parts = () => [...document.querySelectorAll("[data-live]")];

  let paused = false;
  let failed = "";

  const reasons = { 403: "The page is not updated: sign in again.", 404: "The page is not updated: it no longer exists." };
  const fail = (status) => {
    const reason = reasons[status] ?? "The page could not be updated; retrying.";
    if (failed !== reason) tell(reason);
    failed = reason;
  };

  const selected = (part) => String(document.getSelection()) !== "" && part.contains(document.getSelection().anchorNode);

  const row = (node) => (node.querySelector("th a") ?? node.firstElementChild)?.textContent;
  const rowOf = (node) => node.closest("tr") && row(node.closest("tr"));

  // The rows and links of a part, in their order: if they stay the same, each element stays the same for its reader.
  const outline = (part) => [...part.querySelectorAll("tbody tr, a")].map((node) => node.getAttribute("href") ?? row(node)).join("\n");

  // Changes a node where it is, so that it keeps its focus, its position of scrolling, and whether it is open.
  const change = (old, fresh) => {
    if (old.nodeName !== fresh.nodeName) { old.replaceWith(fresh); return; }
    if (old.nodeType !== Node.ELEMENT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
    for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    changeAll(old, fresh);
  };
  const changeAll = (old, fresh) => {
    const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
    for (const node of before.slice(after.length)) node.remove();
    after.forEach((node, at) => { if (at < before.length) change(before[at], node); else old.append(node); });
  };

  const regions = (part) => new Map([...part.querySelectorAll(".scroll")].map((node) => [node.getAttribute("aria-label"), node]));
  const place = (node) => [node.nodeName, node.getAttribute("href"), node.getAttribute("aria-label"), rowOf(node)].join("\n");

  // Replaces a part whose rows have changed, and returns to the place of its reader.
  const rebuild = (part, fresh) => {
    const focused = part.contains(document.activeElement) ? place(document.activeElement) : null;
    const scrolled = [...regions(part)].map(([label, node]) => [label, node.scrollLeft]);
    const open = new Set([...part.querySelectorAll("details[open]")].map(rowOf));
    part.replaceChildren(...fresh.childNodes);
    for (const node of part.querySelectorAll("details")) node.open ||= open.has(rowOf(node));
    for (const [label, left] of scrolled) regions(part).get(label)?.scrollTo(left, 0);
    if (focused === null) return;
    const again = [...part.querySelectorAll("a, summary, .scroll")].find((node) => place(node) === focused);
    (again ?? part.querySelector(".scroll, a"))?.focus({ preventScroll: true });
  };

  const replace = (page) => {
    for (const part of parts()) {
      const fresh = page.querySelector(`[data-live="${part.dataset.live}"]`);
      if (!fresh || selected(part)) continue;
      if (outline(part) === outline(fresh)) changeAll(part, fresh);
      else rebuild(part, fresh);
    }
  };

  const update = async () => {
    if (paused || document.hidden) return;
    if ([...document.querySelectorAll("[data-soon]")].some((one) => !one.closest("[data-live]"))) {
      location.reload();
      return;
    }
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store", signal: AbortSignal.timeout(longest) });
      if (!answer.ok || answer.redirected) { fail(answer.status); return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (paused) return;
      replace(page);
      document.dispatchEvent(new Event("updated"));
      if (failed) tell("Updates have resumed.");
      failed = "";
    } catch {
      fail(0);
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
