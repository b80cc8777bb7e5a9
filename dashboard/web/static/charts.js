// Charts: an element with data-chart holds a <data> whose value is
//   {kind, x: [seconds], series: [{label, color, values}], failed: [{label, values}], marks: [{from, to, label}], unit, step, max, list}
// bars has a bar per UTC day, or per week where there is no room for that, steps a bar per step; both are stacked, as is area.
// A click on a bar of a day or a week leads to the list behind it, if there is one.
// counts has a line for each series of numbers where they are not 0, and an area below the first.
// lines are durations in ms and have a gap where a value is 0; shares are lines in percent, with a
// gap where a value is negative. None of these is stacked. Steps in which something failed
// have a mark at the axis. The page has the same
// figures as text or as a table.
"use strict";
(() => {
  const plots = new Map();
  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = new Intl.NumberFormat();
  const percent = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });

  const stack = (series) => {
    const sums = [];
    return series.map((s) => s.values.map((v, i) => (sums[i] = (sums[i] ?? 0) + v)));
  };

  const days = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" });
  const clocks = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const localDays = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
  const xLabel = (utc, step) => (x) => (utc ? days : step >= 86400 ? localDays : step >= 60 ? clocks : seconds).format(x * 1000);

  // spell formats a duration in milliseconds.
  const spell = (ms) => {
    for (const [size, unit] of [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]]) {
      if (ms >= size) return `${Math.round(ms / size * 10) / 10} ${unit}`;
    }
    return `${Math.round(ms)} ms`;
  };
  const durations = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 144e5, 288e5, 864e5];

  // spans are the possible distances of labels of times, in seconds: labels show no fractions.
  const spans = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, ...[1, 2, 3, 5, 7, 14].map((d) => d * 86400)];

  // weeks adds up the days of each week, from Monday to Sunday. ends has the first and the last day of each.
  const weeks = (spec) => {
    const x = [], ends = [], series = spec.series.map((s) => ({ ...s, values: [] }));
    spec.x.forEach((day, i) => {
      const monday = day - (new Date(day * 1000).getUTCDay() + 6) % 7 * 86400;
      if (x.at(-1) !== monday) {
        x.push(monday);
        ends.push([day, day]);
        for (const s of series) s.values.push(0);
      }
      ends.at(-1)[1] = day;
      series.forEach((s, k) => { s.values[x.length - 1] += spec.series[k].values[i]; });
    });
    return { ...spec, x, ends, series };
  };

  // tip shows the values under the pointer.
  const tip = (host, spec) => {
    const box = document.createElement("div");
    box.className = "chart-tip";
    box.hidden = true;
    host.append(box);
    const day = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", timeZone: "UTC" });
    const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });
    const moment = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
    return (u) => {
      const i = u.cursor.idx;
      box.hidden = i == null || u.cursor.left < 0;
      if (box.hidden) return;
      box.replaceChildren();
      const line = (text) => { const p = document.createElement("div"); p.textContent = text; box.append(p); };
      const at = new Date(spec.x[i] * 1000);
      line(spec.ends ? day.formatRange(...spec.ends[i].map((s) => new Date(s * 1000))) : spec.kind === "bars" ? day.format(at) : spec.step ? moment.format(at) : clock.format(at));
      for (const s of spec.series) {
        if (spec.kind === "shares") line(`${s.label}: ${s.values[i] < 0 ? "–" : percent.format(s.values[i] / 100)}`);
        else if (spec.kind === "lines") line(`${s.label}: ${s.values[i] ? spell(s.values[i]) : "–"}`);
        else line(`${s.label}: ${number.format(s.values[i])}${spec.unit ? " " + spec.unit : ""}`);
      }
      for (const f of spec.failed ?? []) {
        if (f.values[i]) line(`${f.label}: ${number.format(f.values[i])} failed`);
      }
      const left = u.over.offsetLeft + u.cursor.left;
      box.style.left = `${Math.min(left + 12, host.clientWidth - box.offsetWidth)}px`;
      box.style.top = "0px";
      if (left + 12 + box.offsetWidth > host.clientWidth) box.style.left = `${Math.max(0, left - 12 - box.offsetWidth)}px`;
    };
  };

  // marks shades ranges of time and labels them.
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

  // failures draws a triangle at each step in which something failed.
  const failures = (spec) => (u) => {
    const ctx = u.ctx, size = 5 * devicePixelRatio, bottom = u.bbox.top + u.bbox.height;
    ctx.save();
    ctx.fillStyle = token("--bad");
    for (let i = 0; i + 1 < spec.x.length; i++) {
      if (!(spec.failed ?? []).some((f) => f.values[i])) continue;
      const x = u.valToPos((spec.x[i] + spec.x[i + 1]) / 2, "x", true);
      ctx.beginPath();
      ctx.moveTo(x, bottom - 2 * size);
      ctx.lineTo(x + size, bottom);
      ctx.lineTo(x - size, bottom);
      ctx.fill();
    }
    ctx.restore();
  };

  // perWeek says that a bar is a week.
  const perWeek = (u) => {
    const ctx = u.ctx, ratio = devicePixelRatio;
    ctx.save();
    ctx.fillStyle = token("--ink-2");
    ctx.font = `${12 * ratio}px ${token("--font")}`;
    ctx.textAlign = "left";
    ctx.fillText("per week, from Monday", u.bbox.left, u.bbox.top - 8 * ratio);
    ctx.restore();
  };

  const draw = (host) => {
    const data = host.querySelector("data");
    if (!data || !window.uPlot) return;
    let spec = JSON.parse(data.value);
    plots.get(host)?.destroy();
    plots.delete(host);
    for (const old of host.querySelectorAll(".chart-tip")) old.remove();
    if (!spec.x?.length) return;
    if (spec.kind === "bars" && spec.x.length * 3 > host.clientWidth) spec = weeks(spec);
    const half = spec.ends ? 302400 : 43200; // of what a bar of days stands for
    const shares = spec.kind === "shares", counts = spec.kind === "counts", lines = shares || counts || spec.kind === "lines", steps = spec.kind === "steps";
    const sums = lines ? spec.series.map((s) => s.values.map((v, i, all) => (counts ? (v || all[i - 1] || all[i + 1] ? v : null) : shares ? (v < 0 ? null : v) : v || null))) : stack(spec.series);
    const order = spec.series.map((_, i) => i);
    if (!counts) order.reverse(); // paint the tallest first
    const axis = { stroke: token("--ink-2"), grid: { stroke: token("--line"), width: 1 }, ticks: { show: false }, font: `12px ${token("--font")}` };
    const days = spec.kind === "bars", bars = days || steps;
    // lone draws a point for a value without neighbours.
    const lone = (u, k) => u.data[k].map((v, i, all) => (v != null && all[i - 1] == null && all[i + 1] == null ? i : -1)).filter((i) => i >= 0);
    const plot = new uPlot({
      width: host.clientWidth, height: host.clientHeight,
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      tzDate: (s) => (days ? uPlot.tzDate(new Date(s * 1000), "Etc/UTC") : new Date(s * 1000)),
      padding: [spec.ends ? 24 : 8, days ? 4 : spec.step ? 30 : 38, 0, 0],
      scales: {
        x: { range: (u, min, max) => (days ? [min - half, max + half] : spec.step ? [min, max + spec.step] : min === max ? [min - 1, max + 1] : [min, max]) },
        y: { range: (u, min, max) => [0, Math.max((spec.max ?? max) * (spec.marks ? 1.2 : 1.08), 1)] },
      },
      axes: [
        { ...axis, ...(days ? {} : { incrs: spans }), grid: { show: false }, size: 26, gap: 6, space: days || spec.step ? 80 : 110, values: (u, xs, i, space, step) => xs.map(xLabel(days, step)) },
        { ...axis, size: (u, values) => Math.max(44, 14 + 7 * Math.max(0, ...(values ?? []).map((v) => v.length))), ...(shares ? { values: (u, vs) => vs.map((v) => percent.format(v / 100)) } : lines && !counts ? { incrs: durations, values: (u, vs) => vs.map((v) => (v ? spell(v) : "0")) }
          : { values: (u, vs) => vs.map((v) => (Number.isInteger(v) ? number.format(v) : "")) }) },
      ],
      series: [{}, ...order.map((i) => ({
        label: spec.series[i].label,
        stroke: bars ? undefined : token(spec.series[i].color), width: lines ? 2 : bars ? 0 : 1,
        fill: counts && i === 0 ? token("--sunk") : lines ? undefined : token(spec.series[i].color),
        points: lines ? { show: true, size: 5, fill: token(spec.series[i].color), filter: lone } : { show: false },
        paths: lines ? uPlot.paths.linear() : days ? uPlot.paths.bars({ size: [0.72, 40], radius: 0.12 }) : steps ? uPlot.paths.bars({ size: [0.8, 40], align: 1 })
          : uPlot.paths.stepped({ align: 1 }),
      }))],
      hooks: { draw: [marks(spec), failures(spec), ...(spec.ends ? [perWeek] : [])], setCursor: [tip(host, spec)] },
    }, [spec.x, ...order.map((i) => sums[i])], host);
    if (spec.list) {
      plot.over.style.cursor = "pointer";
      plot.over.addEventListener("click", (e) => {
        const i = plot.posToIdx(e.offsetX);
        const [from, to] = (spec.ends?.[i] ?? [spec.x[i], spec.x[i]]).map((s) => new Date(s * 1000).toISOString().slice(0, 10));
        location.href = `${spec.list}${spec.list.includes("?") ? "&" : "?"}from=${from}&to=${to}`;
      });
    }
    plots.set(host, plot);
    resized.observe(host);
  };
  const resized = new ResizeObserver((entries) => {
    for (const e of entries) plots.get(e.target)?.setSize({ width: e.target.clientWidth, height: e.target.clientHeight });
  });
  const drawAll = (within) => { for (const host of within.querySelectorAll("[data-chart]")) draw(host); };

  document.addEventListener("DOMContentLoaded", () => {
    drawAll(document);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document));
    document.body.addEventListener("htmx:sseMessage", (e) => {
      const host = e.target.closest("[data-chart]");
      if (host) draw(host);
      else drawAll(e.target); // charts may have been replaced
      for (const [gone, plot] of plots) {
        if (gone.isConnected) continue;
        plot.destroy();
        plots.delete(gone);
        resized.unobserve(gone);
      }
    });
  });
})();
