// Small drawings. Everything is built from nodes and text, so nothing that was uploaded can become markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") node.className = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function shape(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

export function short(value) {
  if (value === null || value === undefined) return "not a number";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

export function picture(image, label) {
  const [channels, height, width] = image.shape;
  const raw = Uint8Array.from(atob(image.pixels), (letter) => letter.charCodeAt(0));
  const canvas = element("canvas", { width, height, role: "img", "aria-label": label });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  const area = width * height;
  for (let i = 0; i < area; i++) {
    for (let c = 0; c < 3; c++) pixels.data[4 * i + c] = raw[(channels === 3 ? c * area : 0) + i];
    pixels.data[4 * i + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

// A histogram from `low` to `high`, with a mark at a value, at the rim if it lies beyond.
export function distribution(chart, value, cut = null) {
  const width = 200, height = 58;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  let { low, high } = chart;
  const reach = high - low;
  if (value !== null && value > high) high = Math.min(value + 0.04 * reach, high + 0.6 * reach);
  if (value !== null && value < low) low = Math.max(value - 0.04 * reach, low - 0.6 * reach);
  const x = (at) => ((at - low) / (high - low)) * width;
  const most = Math.max(...chart.counts) || 1, step = reach / chart.counts.length;
  chart.counts.forEach((count, i) => {
    const tall = (count / most) * (height - 8), left = x(chart.low + i * step);
    svg.append(shape("rect", { class: "area", x: left, y: height - 2 - tall, width: Math.max(x(chart.low + (i + 1) * step) - left - 0.6, 0.5), height: tall }));
  });
  svg.append(shape("line", { class: "axis", x1: 0, x2: width, y1: height - 2, y2: height - 2 }));
  if (cut !== null) svg.append(shape("line", { class: "cut", x1: x(cut), x2: x(cut), y1: 4, y2: height - 2 }));
  if (value !== null) {
    const at = Math.min(Math.max(x(value), 1.5), width - 1.5);
    svg.append(shape("line", { class: "mark", x1: at, x2: at, y1: 2, y2: height - 2 }));
  }
  const beyond = value === null ? null : value > high ? "far to the right →" : value < low ? "← far to the left" : null;
  return { svg, beyond };
}

export function history(svg, { buckets }, expected) {
  svg.replaceChildren();
  const slots = 60, width = 300 / slots, first = slots - buckets.length;
  const scale = Math.max(0.2, 3 * expected, ...buckets.map(([rows, flagged]) => (rows ? flagged / rows : 0)));
  buckets.forEach(([rows, flagged], i) => {
    const share = rows ? flagged / rows : 0, tall = rows ? Math.max(2, (share / scale) * 68) : 1;
    const kind = !rows ? "quiet" : share > 2 * expected + 0.05 ? "bar high" : "bar";
    svg.append(shape("rect", { class: kind, x: (first + i) * width, y: 72 - tall, width: width - 1, height: tall }));
  });
  const y = 72 - (expected / scale) * 68;
  svg.append(shape("line", { class: "cut", x1: 0, x2: 300, y1: y, y2: y }));
}
