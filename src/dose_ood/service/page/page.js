import { distribution, element, history, picture, short } from "./charts.js";

const $ = (id) => document.getElementById(id);
const KEY = "dose-token";
const TYPES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", bmp: "image/bmp", npy: "application/x-npy",
  parquet: "application/vnd.apache.parquet", csv: "text/csv" };
let detector = null;
let token = sessionStorage.getItem(KEY);
let timer = null;

class Unwelcome extends Error {}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The service cannot be reached, or ended the connection.");
  }
  if (answer.status === 401) throw new Unwelcome();
  const found = await answer.json().catch(() => ({ error: `The service answered with status ${answer.status}.` }));
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function lock(message) {
  clearTimeout(timer);
  $("main").hidden = $("ways").hidden = true;
  $("gate").hidden = false;
  $("gate-error").hidden = !message;
  $("gate-error").textContent = message;
  $("about").textContent = "";
  $("token").focus();
}

async function open() {
  try {
    detector = await ask("/detector");
  } catch (error) {
    if (error instanceof Unwelcome) {
      lock(token ? "That is not the service's token." : "");
      sessionStorage.removeItem(KEY);
      token = null;
    } else {
      $("about").textContent = error.message;
    }
    return;
  }
  if (token) sessionStorage.setItem(KEY, token);
  describe();
  $("gate").hidden = true;
  $("main").hidden = $("ways").hidden = false;
  watch();
}

function describe() {
  const { name, method, statistics, rows, shape, limits, discard } = detector;
  document.title = `${name}: is it typical?`;
  $("name").textContent = name;
  $("about").textContent = `${method.toUpperCase()} over ${statistics.join(", ")}; learned from ` +
    `${rows.train.toLocaleString("en")} samples, calibrated on ${rows.held_out.toLocaleString("en")} held out`;
  const images = shape ? `PNG, JPEG or BMP of ${shape[2]}×${shape[1]} ${shape[0] === 1 ? "grey" : "RGB"}, .npy of such images, ` : "";
  $("takes").textContent = `${images}${shape ? "or a" : "A"} Parquet or CSV table of ${statistics.join(", ")}; at most ${Math.round(limits.body / 2 ** 20)} MiB`;
  $("foot").textContent = `Atypical means: no more typical than the least typical ${short(100 * discard)} % of held-out data.`;
}

function kindOf(file) {
  return TYPES[file.name.split(".").pop().toLowerCase()] || (Object.values(TYPES).includes(file.type) ? file.type : "application/octet-stream");
}

function complain(message) {
  $("problem").hidden = !message;
  $("problem").textContent = message;
}

async function check(files) {
  complain("");
  const problems = [];
  for (const file of files) {
    $("busy").hidden = false;
    $("busy").textContent = `Checking ${file.name}…`;
    try {
      if (file.size > detector.limits.body) throw new Error(`expected at most ${detector.limits.body.toLocaleString("en")} bytes, got ${file.size.toLocaleString("en")}`);
      const found = await ask("/score?reconstruct=true&explain=20", { method: "POST", body: file, headers: { "Content-Type": kindOf(file) } });
      $("results").prepend(report(file.name, found));
      while ($("results").children.length > 30) $("results").lastChild.remove();
    } catch (error) {
      if (error instanceof Unwelcome) { lock("The token is no longer taken."); break; }
      problems.push(`${file.name}: ${error.message}`);
      complain(problems.join("\n"));
    }
  }
  $("busy").hidden = true;
  watch();
}

function report(name, found) {
  const count = found.rows.toLocaleString("en");
  const text = found.rows === 1 ? "" : `${count} samples, ${found.atypical.toLocaleString("en")} atypical` +
    (found.bad ? `, ${found.bad.toLocaleString("en")} not measurable` : "") +
    (found.samples.length < found.rows ? `; the ${found.samples.length} least typical are shown` : "");
  return element("article", { class: "file" },
    element("div", { class: "row" }, element("h3", {}, name), element("span", { class: "soft" }, text)),
    ...found.samples.map((sample) => card(sample, found.rows > 1)));
}

function card(sample, numbered) {
  const guilty = sample.is_typical ? null : sample.parts[0].name;
  const pictures = sample.image && element("div", { class: "pictures" },
    element("figure", {}, picture(sample.image, "The sample"), element("figcaption", {}, "sample")),
    sample.reconstruction && element("figure", {}, picture(sample.reconstruction, "Its reconstruction"), element("figcaption", {}, "the model's version")));
  const words = element("div", { class: "words" },
    element("div", { class: "row head" },
      element("span", { class: "verdict" }, sample.is_typical ? "✓ typical" : "✕ atypical"),
      element("span", { class: "p" }, `p = ${Number(sample.p_value.toPrecision(2))}`),
      numbered ? element("span", { class: "soft" }, `row ${sample.row}`) : null),
    element("p", {}, sentence(sample.summary)));
  return element("div", { class: `card sample${sample.is_typical ? "" : " odd"}` },
    element("div", { class: "top" }, pictures, words),
    element("div", { class: "charts" }, scoreChart(sample), ...sample.parts.map((part) => partChart(part, guilty === part.name))),
    element("p", { class: "note" }, note(sample.parts)));
}

function sentence(summary) {
  const text = summary.replace(/^(a?typical) \(p = [^)]*\): /, "");
  return text.charAt(0).toUpperCase() + text.slice(1) + ".";
}

function scoreChart(sample) {
  const { svg, beyond } = distribution(detector.charts.score, sample.score, detector.threshold);
  return element("div", { class: "chart" },
    element("div", { class: "row spread" }, element("b", {}, "score"), element("span", { class: "p" }, sample.score === null ? "−∞" : short(sample.score))),
    svg, element("small", {}, beyond || "dashed: the threshold"));
}

function partChart(part, guilty) {
  const chart = detector.charts.statistics[part.name];
  const { svg, beyond } = distribution(chart, chart.of === "value" ? part.value : part.contribution);
  const rare = part.percentile === null ? "not measurable"
    : `less typical than ${(Math.floor(1000 * (1 - part.percentile) + 1e-9) / 10).toFixed(1)} % of held-out`;
  return element("div", { class: guilty ? "chart guilty" : "chart" },
    element("div", { class: "row spread" }, element("b", {}, part.name), element("span", { class: "p" }, short(part.value))),
    svg, element("small", {}, beyond ? `${rare}; ${beyond}` : rare));
}

// What the drawings are: a detector that was saved without held-out values shows what each statistic adds to the score.
function note(parts) {
  const added = parts.some((part) => detector.charts.statistics[part.name].of === "contribution");
  return `The line is this sample; histograms are of held-out data${added ? ", those of statistics of what each adds to the score" : ""}.`;
}

// The stream: asked for every two seconds while the page is looked at.

async function watch() {
  clearTimeout(timer);
  if (!document.hidden) {
    try {
      show(await ask("/stream"));
      pulse("on", "live");
    } catch (error) {
      if (error instanceof Unwelcome) { lock("The token is no longer taken."); return; }
      pulse("off", "not reachable");
    }
  }
  timer = setTimeout(watch, 2000);
}

function pulse(kind, text) {
  $("pulse").className = `soft ${kind}`;
  $("pulse").lastChild.textContent = text;
}

function show(state) {
  const share = state.window.flagged_share;
  $("rows").textContent = state.rows.toLocaleString("en");
  $("share").textContent = share === null ? "–" : `${(100 * share).toFixed(1)} %`;
  $("expected").textContent = `${short(100 * state.expected_share)} % expected`;
  $("latency").textContent = state.latency.p50 === null ? "–" : `${short(Number((1000 * state.latency.p50).toPrecision(2)))} ms`;
  history($("history"), state.history, state.expected_share);
  drift(state);
  const seen = new Set([...$("latest").children].map((item) => item.dataset.number));
  if (state.latest.length !== seen.size || state.latest.some((each) => !seen.has(String(each.number)))) $("latest").replaceChildren(...state.latest.map(flagged));
  $("nothing").hidden = state.latest.length > 0;
}

function drift(state) {
  const { drift: found, first_test: first, no_drift_test: none, window: { rows } } = state;
  $("drift").className = found && found.drifted ? "drift yes" : "drift";
  $("drift-word").textContent = !found ? "Drift" : found.drifted ? "Drifted" : "No drift";
  $("drift-p").textContent = found ? `p = ${Number(found.p_value.toPrecision(2))}` : "";
  $("drift-bar").style.width = found ? `${found.gap === null ? 100 : Math.min(100, 50 * found.gap / found.threshold)}%` : "0";
  $("drift-text").textContent = none ? `There is no drift test: ${none}.`
    : !found ? `Tested from ${first} samples on; ${rows} so far.`
    : found.gap === null ? `A sample among the last ${found.size} could not be measured.`
    : `The mean score of the last ${found.size} samples is ${short(found.gap)} from that of training data; chance explains up to ${short(found.threshold)}.`;
}

function flagged(sample) {
  const item = element("li", { class: "card" }, sample.image && picture(sample.image, "A flagged sample"),
    element("div", {}, element("p", {}, sentence(sample.summary)),
      element("small", {}, `p = ${Number(sample.p_value.toPrecision(2))}, ${new Date(1000 * sample.time).toLocaleTimeString()}`)));
  item.dataset.number = sample.number;
  return item;
}

$("gate").addEventListener("submit", (event) => { event.preventDefault(); token = $("token").value.trim(); $("token").value = ""; open(); });
$("file").addEventListener("change", (event) => { check([...event.target.files]); event.target.value = ""; });
for (const name of ["dragenter", "dragover"]) document.addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.add("over"); });
for (const name of ["dragleave", "drop"]) document.addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.remove("over"); });
document.addEventListener("drop", (event) => { if (detector && event.dataTransfer.files.length) check([...event.dataTransfer.files]); });
document.addEventListener("paste", (event) => { if (detector && event.clipboardData.files.length) check([...event.clipboardData.files]); });
document.addEventListener("visibilitychange", () => { if (!document.hidden && detector) watch(); });
$("metrics").addEventListener("click", async (event) => {
  if (!token) return;
  event.preventDefault();
  const answer = await fetch("/metrics", { headers: { Authorization: `Bearer ${token}` } });
  $("metrics").replaceWith(element("pre", {}, await answer.text()));
});
open();
