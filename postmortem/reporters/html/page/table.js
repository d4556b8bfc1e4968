// The table of runs: small curves, sorting, filtering, and the way from a row to its run.
(() => {
  "use strict";
  const table = document.getElementById("runs");
  if (!table) return;
  const body = table.tBodies[0], original = [...body.rows];
  const rows = original.filter((r) => r.dataset.run !== undefined);
  addCurves();
  const tools = document.getElementById("tools");
  const filter = make("input", { type: "search", placeholder: "filter: text or code ( / )" });
  filter.setAttribute("aria-label", "filter runs by text or code");
  const counted = make("span", { className: "hint" });
  counted.setAttribute("aria-live", "polite");
  const verdicts = new Map();
  rows.forEach((r) => verdicts.set(r.dataset.verdict, (verdicts.get(r.dataset.verdict) ?? 0) + 1));
  const chosen = new Set();
  const buttons = [...verdicts].map(([verdict, n]) => {
    const name = rows.find((r) => r.dataset.verdict === verdict).cells[0].textContent;
    const button = make("button", { type: "button", textContent: `${name} ${n}` });
    button.setAttribute("aria-pressed", "false");
    button.onclick = () => {
      chosen.has(verdict) ? chosen.delete(verdict) : chosen.add(verdict);
      button.setAttribute("aria-pressed", String(chosen.has(verdict)));
      apply();
    };
    return button;
  });
  tools.append(filter, ...buttons, counted);

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const row of rows) {
      const text = `${row.textContent} ${row.dataset.codes}`.toLowerCase();
      const fits = (!chosen.size || chosen.has(row.dataset.verdict)) && words.every((w) => text.includes(w));
      row.classList.toggle("hidden", !fits);
      document.getElementById(`run-${row.dataset.run}`).classList.toggle("hidden", !fits);
      left += fits;
    }
    let heading = null; // a heading without a run is hidden
    for (const row of original) {
      if (row.classList.contains("group")) { heading = row; heading.classList.add("hidden"); }
      else if (heading && !row.classList.contains("hidden")) heading.classList.remove("hidden");
    }
    counted.textContent = left === rows.length ? "" : `${left} of ${rows.length} runs`;
  }
  filter.addEventListener("input", apply);

  // The reports of the runs, in the order of their rows.
  const sectionOf = new Map(rows.map((row) => [row, document.getElementById(`run-${row.dataset.run}`)]));
  const main = document.querySelector("main"), after = [...sectionOf.values()].at(-1).nextSibling;
  const arrange = (order) => order.forEach((row) => main.insertBefore(sectionOf.get(row), after));

  let sorted = { column: -1, up: true };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (head.className.includes("spark")) return; // curves have no order
    const button = make("button", { type: "button", textContent: head.textContent, title: "sort by this column" });
    head.replaceChildren(button);
    button.onclick = () => {
      const up = sorted.column === column ? !sorted.up : true;
      if (sorted.column === column && !sorted.up) { // third click: grouped as before
        sorted = { column: -1, up: true };
        body.append(...original);
        arrange(rows);
      } else {
        sorted = { column, up };
        const key = (row) => {
          const text = column === 0 ? row.dataset.verdict : row.cells[column].textContent;
          return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
        };
        const compare = (a, b) => {
          const [p, q] = [key(a), key(b)];
          if (p === "" || q === "") return (p === "") - (q === ""); // empty cells last
          const order = typeof p === "number" && typeof q === "number" ? p - q : String(p).localeCompare(String(q), undefined, { numeric: true });
          return up ? order : -order;
        };
        const order = [...rows].sort(compare);
        body.replaceChildren(...order);
        arrange(order);
      }
      [...table.tHead.rows[0].cells].forEach((h, i) =>
        h.setAttribute("aria-sort", i === sorted.column ? (sorted.up ? "ascending" : "descending") : "none"));
      apply();
    };
  });

  const open = (index) => {
    const section = document.getElementById(`run-${index}`);
    section.open = true;
    section.scrollIntoView();
  };
  rows.forEach((row) => (row.onclick = (event) => { // anywhere in the row, like its link; not where text was selected
    if (event.target.closest("a")) open(row.dataset.run);
    else if (getSelection().isCollapsed) { open(row.dataset.run); history.replaceState(null, "", `#run-${row.dataset.run}`); }
  }));
  const toHash = () => {
    const m = /^#run-(\d+)(?:-step-(\d+))?$/.exec(location.hash);
    if (!m || !document.getElementById(`run-${m[1]}`)) return;
    open(m[1]);
    const holder = document.querySelector(`.charts[data-run="${m[1]}"]`);
    if (!holder || m[2] === undefined) return;
    holder.dataset.step = m[2]; // for charts that are not drawn yet
    holder.near?.(Number(m[2]));
  };
  addEventListener("hashchange", toHash);
  toHash();
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === filter) {
      if (event.key === "Escape") { filter.value = ""; apply(); filter.blur(); }
      return;
    }
    if (event.key === "/") { event.preventDefault(); filter.focus(); return; }
    if (event.key !== "j" && event.key !== "k") return;
    const visible = [...body.rows].filter((r) => r.dataset.run !== undefined && !r.classList.contains("hidden"));
    const now = visible.findIndex((r) => r.classList.contains("current"));
    const next = visible[Math.min(Math.max(now + (event.key === "j" ? 1 : -1), 0), visible.length - 1)];
    visible.forEach((r) => r.classList.toggle("current", r === next));
    next?.querySelector("a").focus();
  });

  // A column with the first curve of each run, its loss as a rule; a red line where its root finding is.
  function addCurves() {
    if (!RUNS.some((run) => run?.series.length)) return;
    const at = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent === "step");
    const place = (row, cell) => row.insertBefore(cell, row.cells[at]);
    place(table.tHead.rows[0], make("th", { className: "spark wide", scope: "col", textContent: "curve" }));
    original.forEach((row) => {
      if (row.dataset.run === undefined) row.cells[0].colSpan += 1;
      else place(row, make("td", { className: "spark wide" }, ...curve(RUNS[row.dataset.run])));
    });
  }

  function curve(run) {
    const width = 132, height = 26, edge = 2;
    const series = run?.series.find((s) => s.step.length > 1);
    if (!series) return [];
    let step = 0;
    const points = series.step.map((delta, i) => [(step += delta), series.value[i]]);
    const finite = points.map(([, v]) => v).filter((v) => typeof v === "number");
    if (!finite.length) return [];
    const low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
    const log = low > 0 && high / low > 50 ? Math.log : (v) => v;
    const [first, last] = [points[0][0], step], span = log(high) - log(low);
    const x = (s) => edge + ((s - first) / (last - first || 1)) * (width - 2 * edge);
    const y = (v) => height - edge - (span ? (log(v) - log(low)) / span : 0.5) * (height - 2 * edge);
    const shape = (kind, given) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", kind);
      for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
      return element;
    };
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
    svg.setAttribute("aria-label", `${series.label}: ${points[0][1]} at step ${first}, ${points.at(-1)[1]} at step ${last}`);
    if (run.band) {
      const [from, to] = run.band.map((s) => Math.min(Math.max(x(s), edge), width - edge));
      svg.append(shape("rect", { x: from, y: 0, width: Math.max(to - from, 1), height, fill: "var(--error)", "fill-opacity": 0.13 }));
    }
    const every = Math.ceil(points.length / width); // extremes between two drawn points are kept: a spike is what is looked for
    let path = "", pen = "M";
    for (let i = 0; i < points.length; i += every) {
      const part = points.slice(i, i + every).filter(([, v]) => typeof v === "number");
      if (!part.length) { pen = "M"; continue; }
      const extremes = part.length > 2 ? [part.reduce((a, b) => (b[1] < a[1] ? b : a)), part.reduce((a, b) => (b[1] > a[1] ? b : a))] : part;
      for (const [s, v] of extremes.sort((a, b) => a[0] - b[0])) { path += `${pen}${x(s).toFixed(1)} ${y(v).toFixed(1)}`; pen = "L"; }
    }
    svg.append(shape("path", { d: path, fill: "none", stroke: "#4a7fd4", "stroke-width": 1.3, "stroke-linejoin": "round" }));
    if (run.onset !== null && run.onset >= first && run.onset <= last) {
      svg.append(shape("line", { x1: x(run.onset), x2: x(run.onset), y1: 0, y2: height, stroke: "var(--error)", "stroke-width": 1 }));
    }
    return [svg];
  }
})();
