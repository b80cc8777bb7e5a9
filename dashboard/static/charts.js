// Charts: an element with data-chart holds a <data> whose value is
//   {kind: "bars" | "area", x: [seconds], series: [{label, color, values}], marks: [{from, to, label}], unit}
// Series are stacked. The same figures stand on the page as words or a table, so
// the drawing is for the eye alone.
"use strict";
(() => {
  const plots = new Map();
  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = new Intl.NumberFormat();
  const short = new Intl.NumberFormat(undefined, { notation: "compact" });

  const stack = (series) => {
    const sums = [];
    return series.map((s) => s.values.map((v, i) => (sums[i] = (sums[i] ?? 0) + v)));
  };

  const days = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" });
  const clocks = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const localDays = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
  const xLabel = (bars, step) => (x) => (bars ? days : step >= 86400 ? localDays : step >= 60 ? clocks : seconds).format(x * 1000);

  // tip shows what lies under the pointer.
  const tip = (host, spec) => {
    const box = document.createElement("div");
    box.className = "chart-tip";
    box.hidden = true;
    host.append(box);
    const day = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", timeZone: "UTC" });
    const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
    return (u) => {
      const i = u.cursor.idx;
      box.hidden = i == null || u.cursor.left < 0;
      if (box.hidden) return;
      box.replaceChildren();
      const line = (text) => { const p = document.createElement("div"); p.textContent = text; box.append(p); };
      const at = new Date(spec.x[i] * 1000);
      line(spec.kind === "bars" ? day.format(at) : clock.format(at));
      for (const s of spec.series) line(`${s.label}: ${number.format(s.values[i])}${spec.unit ? " " + spec.unit : ""}`);
      const left = u.over.offsetLeft + u.cursor.left;
      box.style.left = `${Math.min(left + 12, host.clientWidth - box.offsetWidth)}px`;
      box.style.top = "0px";
      if (left + 12 + box.offsetWidth > host.clientWidth) box.style.left = `${Math.max(0, left - 12 - box.offsetWidth)}px`;
    };
  };

  // marks shades stretches of time and writes what happened there.
  const marks = (spec) => (u) => {
    const ctx = u.ctx, ratio = devicePixelRatio;
    for (const m of spec.marks ?? []) {
      const from = Math.max(u.valToPos(m.from, "x", true), u.bbox.left);
      const to = Math.min(u.valToPos(m.to, "x", true), u.bbox.left + u.bbox.width);
      ctx.save();
      ctx.fillStyle = token("--bad-fill");
      ctx.globalAlpha = 0.14;
      ctx.fillRect(from, u.bbox.top, Math.max(to - from, 2 * ratio), u.bbox.height);
      ctx.globalAlpha = 1;
      ctx.fillStyle = token("--bad");
      ctx.font = `${11 * ratio}px ${token("--font")}`;
      ctx.textAlign = from > u.bbox.left + u.bbox.width / 2 ? "right" : "left";
      ctx.fillText(m.label, ctx.textAlign === "left" ? from + 4 * ratio : to - 4 * ratio, u.bbox.top + 12 * ratio);
      ctx.restore();
    }
  };

  const draw = (host) => {
    const data = host.querySelector("data");
    if (!data || !window.uPlot) return;
    const spec = JSON.parse(data.value);
    plots.get(host)?.destroy();
    plots.delete(host);
    for (const old of host.querySelectorAll(".chart-tip")) old.remove();
    if (!spec.x?.length) return;
    const sums = stack(spec.series);
    const order = spec.series.map((_, i) => i).reverse(); // the tallest is painted first
    const axis = { stroke: token("--ink-2"), grid: { stroke: token("--line"), width: 1 }, ticks: { show: false }, font: `12px ${token("--font")}` };
    const spark = host.classList.contains("spark");
    const bars = spec.kind === "bars";
    const plot = new uPlot({
      width: host.clientWidth, height: host.clientHeight,
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      tzDate: (s) => (bars ? uPlot.tzDate(new Date(s * 1000), "Etc/UTC") : new Date(s * 1000)),
      padding: spark ? [2, 0, 0, 0] : [8, bars ? 4 : 38, 0, 0],
      scales: {
        x: { range: (u, min, max) => (bars ? [min - 43200, max + 43200] : min === max ? [min - 1, max + 1] : [min, max]) },
        y: { range: (u, min, max) => [0, Math.max(max * 1.08, 1)] },
      },
      axes: spark ? [{ show: false }, { show: false }] : [
        { ...axis, grid: { show: false }, size: 26, gap: 6, space: 80, values: (u, xs, i, space, step) => xs.map(xLabel(bars, step)) },
        { ...axis, size: 44, values: (u, vs) => vs.map((v) => (Number.isInteger(v) ? short.format(v) : "")) },
      ],
      series: [{}, ...order.map((i) => ({
        label: spec.series[i].label,
        stroke: bars ? undefined : token(spec.series[i].color), width: bars ? 0 : 1,
        fill: token(spec.series[i].color), points: { show: false },
        paths: bars ? uPlot.paths.bars({ size: [0.72, 40], radius: 0.12 }) : uPlot.paths.stepped({ align: 1 }),
      }))],
      hooks: { draw: [marks(spec)], setCursor: [tip(host, spec)] },
    }, [spec.x, ...order.map((i) => sums[i])], host);
    plots.set(host, plot);
  };
  const drawAll = () => { for (const host of document.querySelectorAll("[data-chart]")) draw(host); };

  document.addEventListener("DOMContentLoaded", () => {
    drawAll();
    const resized = new ResizeObserver((entries) => {
      for (const e of entries) plots.get(e.target)?.setSize({ width: e.target.clientWidth, height: e.target.clientHeight });
    });
    for (const host of document.querySelectorAll("[data-chart]")) resized.observe(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
    document.body.addEventListener("htmx:sseMessage", (e) => {
      const host = e.target.closest("[data-chart]");
      if (host) draw(host);
    });
  });
})();
