// Draws the charts of a queue with uPlot, and draws them again when the page is updated or the colours change.
"use strict";

(() => {
  const place = document.querySelector("[data-charts]");
  if (!place || !window.uPlot) return;

  const lines = {
    rates: [["put", "put", "--in"], ["removed", "removed", "--out"]],
    messages: [["waiting", "waiting", "--waiting"], ["in flight", "in_flight", "--flight"], ["dead letters", "dead", "--dead"]],
  };
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const figure = (value) => value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 });
  const two = (number) => String(number).padStart(2, "0");
  const time = (seconds) => { const at = new Date(seconds * 1000); return `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`; };
  const moment = (seconds) => seconds == null ? "–" : `${time(seconds)}:${two(new Date(seconds * 1000).getUTCSeconds())} UTC`;
  const charts = {};
  let points = null;

  const axis = (more) => ({ stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "12px system-ui, sans-serif", ...more });
  const size = (box) => ({ width: box.clientWidth, height: box.clientHeight - (box.clientWidth < 480 ? 58 : 34) });

  const options = (box, series) => ({
    ...size(box),
    scales: { x: { time: true, range: () => [points.from, points.to] }, y: { range: (_, least, most) => [0, most > 0 ? most * 1.08 : 1] } },
    axes: [axis({ values: (_, ticks) => ticks.map(time), space: 60 }), axis({ values: (_, ticks) => ticks.map(figure), size: 58 })],
    cursor: { drag: { x: false, y: false }, points: { size: 7 } },
    hooks: { setCursor: [showLast] },
    series: [
      { label: "Time", value: (_, at) => moment(at) },
      ...series.map(([label, , name]) => ({ label, stroke: color(name), width: 1.6, points: { show: points.at.length < 3 }, value: (_, value) => figure(value) })),
    ],
  });

  const showLast = (chart) => { if (chart.cursor.idx == null) chart.setLegend({ idx: points.at.length - 1 }); };

  const draw = (fresh) => {
    for (const box of place.querySelectorAll("[data-chart]")) {
      const series = lines[box.dataset.chart];
      const data = [points.at, ...series.map(([, key]) => points[key])];
      const last = series.map(([label, key]) => `${label} ${figure(points[key].at(-1))}`).join(", ");
      box.setAttribute("aria-label", `${box.previousElementSibling.textContent}, now: ${last}`);
      if (fresh && charts[box.dataset.chart]) { charts[box.dataset.chart].destroy(); delete charts[box.dataset.chart]; }
      if (charts[box.dataset.chart]) charts[box.dataset.chart].setData(data);
      else charts[box.dataset.chart] = new uPlot(options(box, series), data, box);
      showLast(charts[box.dataset.chart]);
    }
  };

  const load = async () => {
    try {
      const answer = await fetch(place.dataset.charts, { credentials: "same-origin", cache: "no-store" });
      if (answer.ok) { points = await answer.json(); draw(false); }
    } catch {
      // The page tells that it could not be updated.
    }
  };

  document.addEventListener("updated", load);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (points) draw(true); });
  new ResizeObserver(() => {
    for (const box of place.querySelectorAll("[data-chart]")) charts[box.dataset.chart]?.setSize(size(box));
  }).observe(place);
  load();
})();
