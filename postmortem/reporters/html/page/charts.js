// The charts of a run (uPlot), what a code of a finding means, and the copy buttons of commands.
(() => {
  "use strict";
  const COLORS = ["#4a7fd4", "#d98200", "#2a9d5c", "#a05bc4", "#c2477f", "#5a8f9c"];
  const LABEL_ROWS = 4;
  const CHECKPOINTS = new Map([
    [true, { sign: "▲", color: "--good", words: "checkpoint, finite" }],
    [false, { sign: "▼", color: "--error", words: "checkpoint, non-finite" }],
    [null, { sign: "△", color: "--soft", words: "checkpoint, not looked into" }],
  ]);
  const MARKS = { error: "--error", warning: "--warning", info: "--info" };
  const MARKED = new Map([["error", "finding: error"], ["warning", "finding: warning"], ["info", "finding: info"]]);
  const css = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

  // --- charts

  function decoded(series) {
    let step = 0;
    const steps = series.step.map((delta) => (step += delta));
    const values = series.value.map((v) => (typeof v === "number" ? v : null));
    const nonfinite = new Map();
    series.value.forEach((v, i) => { if (typeof v === "string" && !nonfinite.has(steps[i])) nonfinite.set(steps[i], v); });
    return { panel: series.panel, label: series.label, steps, values, nonfinite, color: null };
  }

  // One table for uPlot: all steps of a panel, and for each series its value there or null.
  function aligned(list) {
    const steps = [...new Set(list.flatMap((s) => s.steps))].sort((a, b) => a - b);
    const row = new Map(steps.map((step, i) => [step, i]));
    const columns = list.map((s) => {
      const column = new Array(steps.length).fill(null);
      s.steps.forEach((step, i) => { if (s.values[i] !== null) column[row.get(step)] = s.values[i]; });
      return column;
    });
    return [steps, ...columns];
  }

  const colorOf = (s, i) => COLORS[(s.color ?? i) % COLORS.length];
  const shown = (v) => (v === null || v === undefined ? "–" : typeof v === "string" ? v : String(Number(v.toPrecision(6))));

  // The value at a step, or the last one before it.
  function valueAt(series, step) {
    let low = 0, high = series.steps.length;
    while (low < high) { const mid = (low + high) >> 1; if (series.steps[mid] <= step) low = mid + 1; else high = mid; }
    if (!low) return null;
    const at = series.steps[low - 1];
    return { step: at, value: series.nonfinite.get(at) ?? series.values[low - 1] };
  }

  // What a chart says that no pointer is on: NaN to the end of the log would tell nothing.
  function lastFinite(series) {
    const at = series.values.findLastIndex((v) => v !== null);
    return at < 0 ? null : { step: series.steps[at], value: series.values[at] };
  }

  const finiteValues = (list) => list.flatMap((s) => s.values.filter((v) => v !== null));
  function wideRange(list) {
    const values = finiteValues(list);
    let low = Infinity, high = -Infinity;
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
    return { positive: values.length > 0 && low > 0, wide: low > 0 && high / low > 50 };
  }

  // The steps at fault, shaded.
  function band(u, [first, last]) {
    const { ctx } = u, { left, top, width, height } = u.bbox;
    const at = (step) => Math.min(Math.max(u.valToPos(step, "x", true), left), left + width);
    ctx.save();
    ctx.fillStyle = css("--error"); ctx.globalAlpha = 0.1;
    ctx.fillRect(at(first), top, at(last) - at(first), height);
    ctx.restore();
  }

  function drawMarks(run, list, labels) {
    return (u) => {
      if (run.band) band(u, run.band);
      const { ctx } = u, { left, top, width, height } = u.bbox, px = devicePixelRatio || 1;
      const x = (step) => Math.round(u.valToPos(step, "x", true));
      const inside = (at) => at >= left && at <= left + width;
      const line = (at, color, dash) => {
        ctx.strokeStyle = color; ctx.lineWidth = px; ctx.setLineDash(dash.map((d) => d * px));
        ctx.beginPath(); ctx.moveTo(at, top); ctx.lineTo(at, top + height); ctx.stroke(); ctx.setLineDash([]);
      };
      ctx.save();
      ctx.font = `${11 * px}px ${getComputedStyle(document.body).fontFamily}`;
      ctx.textAlign = "left"; ctx.textBaseline = "alphabetic";
      for (const step of run.restarts) if (inside(x(step))) line(x(step), css("--soft"), [2, 4]);
      const taken = [], names = []; // of each row of labels, the places that have one
      for (const [step, name, severity] of run.marks) {
        const at = x(step), color = css(MARKS[severity]);
        if (!inside(at)) continue;
        line(at, color, [5, 3]);
        if (!labels) continue;
        const size = ctx.measureText(name).width + 6 * px;
        const start = at + size > left + width ? at - size : at + 3 * px;
        let row = 0;
        while (taken[row]?.some(([a, b]) => start < b && start + size > a)) row += 1;
        if (row >= LABEL_ROWS) continue;
        (taken[row] ??= []).push([start, start + size]);
        names.push([name, color, start, size, row]);
      }
      for (const [name, color, start, size, row] of names) { // above the lines, which would strike them out
        ctx.fillStyle = css("--bg"); ctx.fillRect(start - px, top + (1 + 12 * row) * px, size - 2 * px, 12 * px);
        ctx.fillStyle = color; ctx.fillText(name, start, top + (11 + 12 * row) * px);
      }
      for (const [step, finite] of run.checkpoints) {
        const at = x(step), kind = CHECKPOINTS.get(finite), base = top + height;
        if (!inside(at)) continue;
        const [tip, foot] = finite === false ? [base, base - 7 * px] : [base - 7 * px, base];
        ctx.fillStyle = ctx.strokeStyle = css(kind.color); ctx.lineWidth = px;
        ctx.beginPath(); ctx.moveTo(at, tip); ctx.lineTo(at - 4 * px, foot); ctx.lineTo(at + 4 * px, foot); ctx.closePath();
        finite === null ? ctx.stroke() : ctx.fill();
      }
      const under = (12 * taken.length + 11) * px; // below the labels
      ctx.textAlign = "center";
      list.forEach((s) => { ctx.fillStyle = s.color === null ? css("--error") : colorOf(s); for (const [step, kind] of s.nonfinite) {
        const at = x(step);
        if (inside(at)) ctx.fillText(kind === "nan" ? "×" : kind === "inf" ? "↑" : "↓", at, kind === "-inf" ? top + height - 10 * px : top + under);
      } });
      ctx.restore();
    };
  }

  function panel(run, name, list, width, group, first, last, range) {
    const readout = make("div", { className: "readout" });
    const box = make("div");
    const data = aligned(list), { positive, wide } = wideRange(list);
    let log = positive && wide && name !== "learning rate", plot;
    const show = (index) => {
      const step = index === null ? null : data[0][index];
      const cells = list.map((s, i) => {
        const at = step === null ? lastFinite(s) : valueAt(s, step);
        const dot = make("i"); dot.style.background = colorOf(s, i);
        return make("span", {}, dot, `${s.label} `, make("b", { textContent: at ? shown(at.value) : "–" }), at ? ` at ${run.unit} ${at.step}` : "");
      });
      const near = (mark) => Math.abs(plot.valToPos(mark[0], "x") - plot.valToPos(step, "x")) < 5;
      if (first && step !== null) {
        const said = run.marks.filter(near).slice(0, 2).map(([at, name, , words, code]) => make("div", {}, `${run.unit} ${at}: `, make("b", { textContent: name }), ` (${code}) ${words}`));
        if (said.length) cells.push(make("div", { className: "said" }, ...said)); // over the chart: it must not move under the pointer
      }
      readout.replaceChildren(...cells, ...(positive ? [toggle] : []));
    };
    const toggle = make("button", { type: "button", onclick: () => { log = !log; draw(); } });
    const family = getComputedStyle(document.body).fontFamily;
    const draw = () => {
      const kept = plot ? [plot.scales.x.min, plot.scales.x.max] : range;
      if (plot) plot.destroy();
      toggle.textContent = log ? "linear scale" : "log scale";
      const axis = { stroke: () => css("--soft"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { stroke: () => css("--grid"), width: 1 } };
      const few = data[0].length <= 80;
      const power = (v) => Math.abs(Math.log10(Math.abs(v)) % 1) < 1e-6; // the lines between fill a wide log scale
      const powers = (u, ticks) => (log && ticks.filter(power).length > 1 ? ticks.map((v) => (power(v) ? v : null)) : ticks);
      plot = new uPlot({
        width, height: (first ? 230 : 110) + (last ? 34 : 0), padding: [6, 12, 0, 0], legend: { show: false },
        cursor: { sync: { key: group }, y: false, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
        axes: [
          last ? { ...axis, size: 30, label: run.unit, labelSize: 16, labelFont: `12px ${family}`, font: `11px ${family}` }
            : { ...axis, size: 8, values: (u, ticks) => ticks.map(() => "") },
          { ...axis, grid: { ...axis.grid, filter: powers }, ticks: { ...axis.ticks, filter: powers }, size: 70, label: name, labelSize: 18, labelFont: `12px ${family}`, font: `11px ${family}`,
            values: (u, ticks) => ticks.map((v) => (v === null ? "" : Math.abs(v) >= 1e5 || (v && Math.abs(v) < 1e-3) ? v.toExponential(0) : shown(v))) },
        ],
        series: [{}, ...list.map((s, i) => ({ label: s.label, stroke: colorOf(s, i), width: 1.5, spanGaps: true,
          points: { show: few || s.steps.length <= 40 && s.steps.length < data[0].length, size: 5 } }))],
        hooks: {
          draw: [drawMarks(run, list, first)],
          setCursor: [(u) => show(u.cursor.idx ?? null)],
          setScale: [(u, key) => { if (first && key === "x") run.zoomed(u.scales.x); }],
        },
      }, data, box);
      if (kept) plot.setScale("x", { min: kept[0], max: kept[1] });
      show(null);
    };
    draw();
    const summary = list.map((s) => `${s.label}: ${shown(s.nonfinite.get(s.steps[0]) ?? s.values[0])} at ${run.unit} ${s.steps[0]}, ${shown(s.nonfinite.get(s.steps.at(-1)) ?? s.values.at(-1))} at ${run.unit} ${s.steps.at(-1)}` + (s.nonfinite.size ? `, first non-finite value at ${run.unit} ${s.nonfinite.keys().next().value}` : ""));
    const marked = first ? run.marks.map(([step, name, , words, code]) => `${name} (${code}) at ${run.unit} ${step}: ${words}`) : [];
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${name} over ${run.unit}s. ${[...summary, ...marked].join(". ")}`);
    box.tabIndex = 0;
    box.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (move === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const { min, max } = plot.scales.x, steps = data[0];
      const from = Math.max(steps.findIndex((s) => s >= min), 0), to = steps.findLastIndex((s) => s <= max);
      const now = plot.cursor.idx ?? (move > 0 ? from - 1 : to + 1);
      const at = Math.min(Math.max(now + move, from), to);
      readout.setAttribute("aria-live", "polite"); // a pointer that hovers is not read out
      plot.setCursor({ left: plot.valToPos(steps[at], "x"), top: 10 }, true, true); // of all charts of the run
    });
    return { nodes: [readout, box], get plot() { return plot; } };
  }

  function overlaid(indices) {
    const several = indices.length > 1, runs = indices.map((i) => RUNS[i]);
    if (!several) return { ...runs[0], list: runs[0].series.map(decoded) };
    const list = [];
    for (const [color, run] of runs.entries()) {
      const seen = new Set();
      for (const series of run.series) {
        if (seen.has(series.panel)) continue; // the main series of each chart
        seen.add(series.panel);
        list.push({ ...decoded(series), label: `${run.name}: ${series.label}`, color });
      }
    }
    const unit = runs.every((run) => run.unit === "epoch") ? "epoch" : "step";
    return { name: "", unit, onset: null, band: null, marks: [], restarts: [], checkpoints: [], list };
  }

  const widthIn = (holder) => Math.max(holder.clientWidth, 200);

  function legend(run) {
    const seen = new Set(run.checkpoints.map(([, finite]) => finite));
    const kinds = new Set(run.marks.map(([, , severity]) => severity));
    const signs = [...MARKED].filter(([severity]) => kinds.has(severity)).map(([severity, words]) => ["╎", MARKS[severity], words]);
    if (run.band) signs.push(["▒", "--error", `fault: ${run.unit}s ${run.band[0]} to ${run.band[1]}`]);
    if (run.list.some((s) => s.nonfinite.size)) signs.push(["× ↑ ↓", "--error", "NaN, infinite"]);
    for (const [finite, { sign, color, words }] of CHECKPOINTS) if (seen.has(finite)) signs.push([sign, color, words]);
    if (run.restarts.length) signs.push(["┊", "--soft", "restart"]);
    return make("div", { className: "legend" }, ...signs.map(([sign, color, words]) => {
      const drawn = make("b", { textContent: sign });
      drawn.style.color = `var(${color})`;
      return make("span", {}, drawn, words);
    }));
  }

  function chart(holder) {
    const run = overlaid(holder.dataset.run.split(" ").map(Number));
    const all = run.list.flatMap((s) => [s.steps[0], s.steps.at(-1)]);
    const whole = [Math.min(...all), Math.max(...all)];
    if (whole[0] === whole[1]) whole[1] += 1;
    const names = [...new Set(run.list.map((s) => s.panel))];
    const width = widthIn(holder), group = `charts-${holder.dataset.run}`;
    const views = []; // buttons, each with the steps that it shows
    run.zoomed = ({ min, max }) => views.forEach(([button, [from, to]]) => button.setAttribute("aria-pressed", min === from && max === to));
    const panels = names.map((name, i) =>
      panel(run, name, run.list.filter((s) => s.panel === name), width, group, i === 0, i === names.length - 1, whole));
    const zoom = (range) => panels.forEach((p) => p.plot.setScale("x", { min: range[0], max: range[1] }));
    const bar = make("div", { className: "bar" });
    const view = (textContent, range) => {
      const button = make("button", { type: "button", textContent, onclick: () => zoom(range) });
      views.push([button, range]);
      bar.append(button);
    };
    const around = Math.max(3, Math.min(60, Math.round((whole[1] - whole[0]) / 12)));
    const near = (step) => [Math.max(whole[0], step - around), Math.min(Math.max(whole[1], step + 1), step + around)];
    holder.near = (step) => zoom(near(step));
    view("whole run", whole);
    if (run.onset !== null) view(`around ${run.unit} ${run.onset}`, near(run.onset));
    run.zoomed(panels[0].plot.scales.x);
    bar.append(make("span", { className: "hint", textContent: "drag to zoom, double-click for all, arrow keys for single steps" }));
    holder.replaceChildren(bar, legend(run), ...panels.flatMap((p) => p.nodes));
    new ResizeObserver(() => {
      if (!holder.clientWidth) return; // closed or filtered out
      panels.forEach((p) => { if (p.plot.width !== widthIn(holder)) p.plot.setSize({ width: widthIn(holder), height: p.plot.height }); });
    }).observe(holder);
    if (holder.dataset.step) holder.near(Number(holder.dataset.step));
    holder.redraw = () => panels.forEach((p) => p.plot.redraw());
  }

  const ready = (holder) => {
    // Closed first: asking for a size inside makes the browser lay it out, which takes a minute for 500 runs.
    if (holder.redraw || holder.closest("details:not([open])") || !holder.clientWidth) return;
    try {
      chart(holder);
    } catch (error) { // a chart that cannot be drawn leaves the values in the table
      holder.textContent = `The chart could not be drawn: ${error.message}`;
      console.error(error);
    }
  };
  const every = (action) => document.querySelectorAll(".charts").forEach(action);
  every(ready);
  document.querySelectorAll("details").forEach((d) => d.addEventListener("toggle", () => d.querySelectorAll(".charts").forEach(ready)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => every((h) => h.redraw?.()));

  // --- codes of findings

  const codes = JSON.parse(document.getElementById("codes").textContent);
  document.querySelectorAll(".pm abbr").forEach((abbr) => { abbr.title ||= codes[abbr.textContent] ?? ""; });

  // --- commands

  document.querySelectorAll(".pm pre.command").forEach((pre) => {
    const button = make("button", { type: "button", textContent: "copy", title: "copy this command" });
    button.onclick = async () => {
      const text = pre.textContent.replace(/^\$ /, "");
      try {
        await navigator.clipboard.writeText(text);
      } catch { // no permission, or an old browser
        const area = make("textarea", { value: text });
        document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
      }
      button.textContent = "copied";
      setTimeout(() => (button.textContent = "copy"), 1500);
    };
    const box = make("div", { className: "cmd" });
    pre.replaceWith(box); box.append(pre, button);
  });
})();
