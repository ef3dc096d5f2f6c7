// Charts of the explorer: scales, ticks, and lines and marks that answer the mouse, drawn with uPlot.
// The colours are those of the page, by name; they are looked up at each drawing, since the page may turn dark.
const explorerCharts = root => {
"use strict";
const REACH = 20;  // pixels between the mouse and the mark that it points at
const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";
const charts = new Map();
const part = name => root.querySelector(`[data-part="${name}"]`);
const colour = name => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
const words = name => name.replaceAll("_", " ");
const pixels = () => window.devicePixelRatio || 1;
const font = size => FONT.replace("12px", `${size * pixels()}px`);

// Numbers as in the tables of the report: whole ones in full, others to three digits. If `near` one, as momenta are,
// from 0.9 to 1 two digits of 1 - value: 0.9987 rather than 0.999.
function number(value, near) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return words(value);
  if (Number.isInteger(value) || Math.abs(value) >= 999.5) return Math.round(value).toLocaleString("en-US");
  if (near && value > .9 && value < 1) return String(Number(value.toFixed(Math.min(15, 1 - Math.floor(Math.log10(1 - value))))));
  return String(Number(value.toPrecision(3)));
}

// A round value at an axis, with all of its digits: neighbours must differ however near the mouse has zoomed.
function round(value) {
  if (typeof value === "string") return number(value);
  const all = Number(value.toPrecision(10));
  return Number.isInteger(all) ? number(all) : String(all);
}

// --- scales: from values to places on a linear axis, and back

const KINDS = {
  linear: { to: value => value, from: place => place },
  log: { to: Math.log10, from: place => 10 ** place },
  reverse_log: { to: value => -Math.log10(1 - value), from: place => 1 - 10 ** -place },
};

function scale(kind, values, label) {
  const known = values.filter(value => value !== null);
  if (kind === "names" || known.some(value => typeof value === "string")) {
    const names = [...new Set(known.map(String))].sort();
    const places = names.map((_, place) => place);
    return { label, names, to: value => names.indexOf(String(value)), from: place => names[Math.round(place)],
      low: -.5, high: names.length - .5, ticks: () => places };
  }
  if ((kind === "log" && known.some(value => value <= 0)) || (kind === "reverse_log" && known.some(value => value >= 1))) kind = "linear";
  const { to, from } = KINDS[kind], places = known.length ? known.map(to) : [0, 1];
  const low = Math.min(...places), high = Math.max(...places);
  const pad = (high - low) * .05 || Math.abs(high) * .1 || .5;
  return { label, to, from, low: low - pad, high: high + pad, ticks: (a, b, most) => ticks(kind, a, b, most) };
}

// Places of at most `most` round values between two places.
function ticks(kind, low, high, most) {
  const { to, from } = KINDS[kind];
  if (kind === "linear" || high - low < .7) {
    const a = from(low), b = from(high), ten = 10 ** Math.floor(Math.log10((b - a) / most || 1));
    const step = [1, 2, 5, 10, 20].map(digit => digit * ten).find(each => (b - a) / each <= most);
    const found = [];
    for (let n = Math.ceil(a / step); n * step <= b && found.length < 50; n++) found.push(to(Number((n * step).toPrecision(12))));
    return found;
  }
  const [a, b, sign] = kind === "reverse_log" ? [-high, -low, -1] : [low, high, 1];
  for (const [digits, each] of [[[1, 2, 5], 1], [[1], 1], [[1], 2], [[1], 3], [[1], 5], [[1], 10], [[1], 30]]) {
    const found = [];
    for (let ten = Math.floor(a / each) * each; ten <= b; ten += each) found.push(...digits.map(digit => ten + Math.log10(digit)));
    const inside = found.filter(place => place >= a && place <= b);
    if (inside.length <= most) return inside.map(place => sign * place).sort((x, y) => x - y);
  }
  return [];
}

const evenly = (values, most) => values.length <= most ? values
  : Array.from({ length: most }, (_, i) => values[Math.round(i * (values.length - 1) / Math.max(1, most - 1))]);

// --- charts

// Marks other than circles, as paths on the canvas.
const MARKS = {
  cross: (path, x, y, r) => { path.moveTo(x - r, y - r); path.lineTo(x + r, y + r); path.moveTo(x - r, y + r); path.lineTo(x + r, y - r); },
  triangle: (path, x, y, r) => { path.moveTo(x, y - r); path.lineTo(x + r, y + r); path.lineTo(x - r, y + r); path.closePath(); },
  star: (path, x, y, r) => {
    for (let n = 0; n < 10; n++) {
      const [far, turn] = [n % 2 ? .8 * r : 2 * r, Math.PI * (n / 5 - .5)];
      path[n ? "lineTo" : "moveTo"](x + far * Math.cos(turn), y + far * Math.sin(turn));
    }
    path.closePath();
  },
};

const marked = mark => (u, index, from, to) => {
  const path = new Path2D();
  for (let n = from; n <= to; n++) if (u.data[index][n] != null)
    MARKS[mark](path, u.valToPos(u.data[0][n], "x", true), u.valToPos(u.data[index][n], "y", true), 4 * pixels());
  return { stroke: path, fill: mark === "cross" ? null : path, clip: null, flags: 3 };
};

const series = line => ({
  stroke: (u, index) => colour(line.colour) + (line.pale && !u.series[index]._focus ? "99" : ""), width: line.width ?? 1, dash: line.dash, spanGaps: true, auto: false,
  ...(line.dots ? { paths: () => null } : {}),
  points: line.mark || line.points.length === 1 ? { show: true, size: 8, width: 1.5, stroke: () => colour(line.edge ?? line.colour),
    fill: () => colour(line.open ? "card" : line.colour), ...(MARKS[line.mark] ? { paths: marked(line.mark) } : {}) } : { show: false },
});

// Draws lines of {key, points: [[x, y], ...] as places, colour, width, mark}. `point` is told what the mouse points at.
function chart(name, { x, y, lines, paint, point, click, brush, label, left = 0 }) {
  charts.get(name)?.u.destroy();
  const box = part(name), data = lines.length
    ? uPlot.join(lines.map(line => [line.points.map(each => each[0]), line.points.map(each => each[1])])) : [[x.low, x.high]];
  const axis = (from, most, more) => ({
    stroke: () => colour("muted"), font: FONT, labelFont: FONT, label: from.label, labelSize: 20, ticks: { show: false }, gap: 6,
    grid: { stroke: () => colour("grid"), width: 1 }, splits: (u, i, low, high) => from.ticks(low, high, most),
    values: (u, places) => places.map(place => round(from.from(place))), ...more,
  });
  const u = new uPlot({
    width: box.clientWidth, height: box.clientHeight, legend: { show: false }, focus: { alpha: .2 }, padding: [12, 16, 0, left],
    series: [{}, ...lines.map(series)],
    scales: {
      x: { time: false, range: (u, low, high) => low === data[0][0] && high === data[0].at(-1) ? [x.low, x.high] : [low, high] },
      y: { auto: (u, ofX) => ofX, range: () => [y.low, y.high] },
    },
    axes: [axis(x, Math.max(2, Math.floor(box.clientWidth / 70)), { size: 30, ...x.axis }), axis(y, 7, { size: 52, ...y.axis })],
    cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: true, dist: 6, uni: brush ? null : 20, setScale: !brush } },
    hooks: { draw: paint ? [u => clipped(u, paint)] : [], setSelect: brush ? [u => brush(u)] : [] },
  }, data, box);
  u.over.addEventListener("mousemove", event => point(nearest(u, lines, event), event));
  u.over.addEventListener("mouseleave", () => point(null));
  if (click) u.over.addEventListener("click", event => click(nearest(u, lines, event)));
  box.setAttribute("aria-label", label);
  charts.set(name, { u, lines });
}

// Writes a text that lines behind it do not cross.
function write(ctx, text, x, y) {
  ctx.lineWidth = 4 * pixels();
  ctx.strokeStyle = colour("card");
  ctx.fillStyle = colour("muted");
  ctx.strokeText(text, x, y);
  ctx.fillText(text, x, y);
}

function clipped(u, paint) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left - 8, bbox.top - 8, bbox.width + 16, bbox.height + 16);
  ctx.clip();
  ctx.lineWidth = pixels();
  ctx.setLineDash([]);
  paint(u, ctx);
  ctx.restore();
}

// The line nearest to the mouse and the index of its point, or null; lines without a key are not for pointing at.
function nearest(u, lines, event) {
  const { left, top } = u.over.getBoundingClientRect(), px = event.clientX - left, py = event.clientY - top;
  let least = REACH, found = null;
  for (const line of lines) if (line.key !== undefined) {
    let before = null;
    line.points.forEach(([x, y], index) => {
      const at = [u.valToPos(x, "x"), u.valToPos(y, "y")];
      const away = before && !line.mark ? toSegment(px, py, before, at) : Math.hypot(px - at[0], py - at[1]);
      if (away < least) [least, found] = [away, { line, index }];
      before = at;
    });
  }
  return found;
}

// Shows the line with a key in bold and the others faintly; null shows all as they are.
function focus(name, key) {
  const { u, lines } = charts.get(name), index = lines.findIndex(line => line.key === key);
  lines.forEach((line, n) => { u.series[n + 1].width = n === index ? 2.5 : line.width ?? 1; });
  u.setSeries(index < 0 ? null : index + 1, { focus: true });
}

function toSegment(x, y, [x0, y0], [x1, y1]) {
  const dx = x1 - x0, dy = y1 - y0, share = Math.max(0, Math.min(1, ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(x - x0 - share * dx, y - y0 - share * dy);
}

return { MARKS, chart, charts, colour, evenly, focus, font, number, part, pixels, round, scale, words, write };
};
