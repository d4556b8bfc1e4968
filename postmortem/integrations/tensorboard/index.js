// The tab "Postmortem": findings of each run, each with a link to its step in the report below and to its series in
// TensorBoard's own charts. TensorBoard loads this module in an iframe of its own.

const STYLE = `
:root{color-scheme:light dark;--fg:#1d2127;--card:#fff;--line:#dfe2e7;--soft:#5b6470;--link:#1f5fbf;--error:#c62431;--warning:#9a5b00;--good:#1a7a42;
font:14px/1.5 -apple-system,BlinkMacSystemFont,"Segoe UI","Noto Sans",Helvetica,Arial,"Liberation Sans",sans-serif}
@media(prefers-color-scheme:dark){:root{--fg:#e4e7eb;--card:#171b21;--line:#2b313a;--soft:#9aa4af;--link:#7fb0ff;--error:#ff7b76;--warning:#e6ae52;--good:#57c98a}}
body{margin:0;display:flex;flex-direction:column;height:100vh;color:var(--fg);background:var(--card)}
header{display:flex;gap:1rem;align-items:baseline;padding:.7rem 1.2rem;font-weight:600}
button{font:inherit;font-size:.9em;font-weight:400;color:inherit;background:none;border:1px solid var(--line);border-radius:6px;padding:.15em .75em;cursor:pointer}
button:hover{border-color:var(--soft)}
#runs{max-height:38vh;overflow:auto;padding:0 1.2rem .5rem}
details{border-top:1px solid var(--line);padding:.45rem 0}summary{cursor:pointer;color:var(--soft)}summary b{color:var(--fg);margin:0 .3em}
.tag{display:inline-block;border-radius:99px;padding:.02em .7em;font-size:.86em;font-weight:600;color:var(--soft);background:color-mix(in srgb,currentColor 13%,transparent)}
.failed,.error{color:var(--error)}.suspect,.warning{color:var(--warning)}.healthy{color:var(--good)}
ul{list-style:none;margin:.3rem 0;padding-left:1.1rem}li{margin:.25rem 0}
a{margin-right:.8em;color:var(--link);text-decoration:none}a:hover{text-decoration:underline}iframe{flex:1;border:0;border-top:1px solid var(--line);width:100%}`;

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
      try {
        found = await (await fetch(`./findings${query}`)).json();
      } catch (error) { // TensorBoard was stopped, or the answer is none of ours
        told.textContent = `the findings could not be fetched: ${error.message}`;
        return;
      }
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
