// The tab "Postmortem": findings of each run, each with a link to its step in the report below and to its series in
// TensorBoard's own charts. TensorBoard loads this module in an iframe of its own.

const STYLE = `
:root{color-scheme:light dark;font:14px/1.45 system-ui,sans-serif}
body{margin:0;display:flex;flex-direction:column;height:100vh}
header{display:flex;gap:1rem;align-items:baseline;padding:.5rem 1rem}
#runs{max-height:38vh;overflow:auto;padding:0 1rem .5rem}
details{border-top:1px solid #8886;padding:.3rem 0}summary{cursor:pointer}
.tag{border-radius:3px;padding:0 .45em;color:#fff;font-size:.85em;font-weight:600}
.failed,.error{background:#c22}.suspect,.warning{background:#a56a00}.healthy{background:#2a8a3e}.not-judged,.info{background:#6b6b6b}
ul{margin:.2rem 0;padding-left:1.3rem}a{margin-right:.8em}iframe{flex:1;border:0;border-top:1px solid #8886;width:100%}
.soft{opacity:.75}`;

function make(name, properties, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

const tag = (word) => make("span", { className: `tag ${word}`, textContent: word.replace("-", " ") });
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

function finding(run, found, show) {
  const item = make("li", {}, make("span", { className: `tag ${found.severity}`, textContent: found.code }), ` ${found.name}: ${found.message} `);
  if (found.step !== null) {
    const anchor = `${run.anchor}-step-${found.step}`;
    item.append(make("a", { href: `#${anchor}`, textContent: `step ${found.step}`, onclick: (event) => { event.preventDefault(); show(anchor); } }));
  }
  if (found.tag) {
    const query = new URLSearchParams({ tagFilter: `^${escaped(found.tag)}$` });
    item.append(make("a", { href: `../../../?${query}#timeseries`, target: "_top", textContent: `${found.tag} in Time Series` }));
  }
  return item;
}

function runEntry(run, show) {
  const open = run.verdict === "failed" || run.verdict === "suspect";
  const summary = make("summary", {}, tag(run.verdict), " ", make("b", { textContent: run.name }), ` ${run.headline}`);
  return make("details", { open }, summary, make("ul", {}, ...run.findings.map((f) => finding(run, f, show))));
}

export async function render() {
  document.head.append(make("style", { textContent: STYLE }));
  const told = make("span", { role: "status", textContent: "scanning the log folder …" });
  const again = make("button", { type: "button", textContent: "Scan again", onclick: () => load("?again=1") });
  const runs = make("div", { id: "runs" });
  const frame = make("iframe", { title: "Report" });
  document.body.append(make("header", {}, again, told), runs, frame);
  const show = (anchor) => {
    if (frame.src) frame.contentWindow.location.replace(`${frame.src.split("#")[0]}#${anchor}`);
  };
  const wait = () => new Promise((done) => setTimeout(done, 700));

  async function load(query) {
    let found;
    for (;;) {
      found = await (await fetch(`./findings${query}`)).json();
      if (!found.running) break;
      told.textContent = "scanning the log folder …";
      query = "";
      await wait();
    }
    if (found.state !== "ready") {
      told.textContent = `the log folder could not be scanned: ${found.message}`;
      return;
    }
    told.textContent = found.totals;
    runs.replaceChildren(...found.runs.map((run) => runEntry(run, show)));
    frame.src = new URL(`./page?${Date.now()}`, document.baseURI).href;
  }
  await load("");
}
