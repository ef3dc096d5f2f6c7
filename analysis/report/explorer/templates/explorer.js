// The explorer of a report: S(B), learning curves, parameters and a table of trials, linked to one another.
// Draws the data of `analysis/report/explorer/data.py`. It fetches nothing, and nothing moves by itself.
document.addEventListener("DOMContentLoaded", () => {
"use strict";
const root = document.getElementById("explorer");
const { MARKS, charts, chart, colour, evenly, focus, font, number, part, pixels, round, scale, words, write } = explorerCharts(root);
const { panels } = JSON.parse(part("data").textContent);
const STATES = ["reached", "not reached", "diverged", "incomplete"];
const NEAR_ONE = /momentum|beta|decay/;  // names of parameters that act through 1 - value
const MISSED = 1.07;  // height of a missed goal above an axis of parallel coordinates
const STATE_COLOURS = ["curve-0", "muted", "curve-1", "faint"];
const chosen = { panel: 0, optimizer: 0, study: 0, kept: false, off: new Set(), hidden: new Set(), sort: null };

const panel = () => panels[chosen.panel];
const optimizer = () => panel().optimizers[chosen.optimizer];
const study = () => optimizer().studies[chosen.study];
const known = values => values.filter(value => value !== null);
const several = values => new Set(known(values)).size > 1;

// --- S(B)

function drawScaling() {
  const all = panel().optimizers, sizes = [...new Set(all.flatMap(each => each.studies.map(s => s.batch_size)))].sort((a, b) => a - b);
  const x = scale("log", sizes, "batch size (examples)"), lines = [];
  x.ticks = (low, high, most) => evenly(sizes.filter(size => x.to(size) >= low && x.to(size) <= high), most).map(x.to);
  const y = scale("log", all.flatMap(each => each.studies.map(s => s.steps ?? s.budget)), "training steps");
  all.forEach(({ name, studies }, index) => {
    if (chosen.off.has(name)) return;
    const look = { colour: `curve-${index % 7}`, key: index };
    const line = (met, more) => {
      const picks = studies.map((_, pick) => pick).filter(pick => (studies[pick].steps !== null) === met);
      const points = picks.map(pick => [x.to(studies[pick].batch_size), y.to(studies[pick].steps ?? studies[pick].budget)]);
      if (picks.length) lines.push({ ...look, picks, points, ...more });
      return points;
    };
    const [first] = line(true, { mark: "circle", width: 1.6 });
    line(false, { mark: "triangle", dots: true, open: true });
    const far = x.to(sizes.at(-1));
    if (first && far > first[0]) lines.push({ colour: look.colour, dash: [4, 4], points: [first, [far, first[1] + first[0] - far]] });
  });
  chart("scaling", {
    x, y, lines, label: `Steps to ${panel().goal} against batch size`,
    paint: (u, ctx) => {
      const { batch_size, steps, budget } = study();
      ctx.beginPath();
      ctx.arc(u.valToPos(x.to(batch_size), "x", true), u.valToPos(y.to(steps ?? budget), "y", true), 9 * pixels(), 0, 7);
      ctx.strokeStyle = colour("ink");
      ctx.lineWidth = 2 * pixels();
      ctx.stroke();
    },
    point: (found, event) => {
      const to = found && { optimizer: found.line.key, study: found.line.picks[found.index] };
      if (to && !chosen.kept) choose(to);
      const at = to && panel().optimizers[to.optimizer].studies[to.study];
      const steps = at && (at.steps === null ? `not reached in ${number(at.budget)} steps` : `${number(at.steps)} steps`);
      tip(to && `${panel().optimizers[to.optimizer].name}, batch size ${number(at.batch_size)}\n${steps}`, event);
    },
    click: found => {
      chosen.kept = Boolean(found);
      if (found) choose({ optimizer: found.line.key, study: found.line.picks[found.index] });
    },
  });
  legend("optimizers", all.map((each, index) => [each.name, `curve-${index % 7}`, each.name]), chosen.off, drawScaling);
}

// Buttons that hide and show entries of [key, colour, text].
function legend(name, entries, hidden, redraw) {
  part(name).replaceChildren(...entries.map(([key, shade, text]) => {
    const button = document.createElement("button"), swatch = document.createElement("i");
    swatch.style.borderColor = swatch.style.background = `var(--${shade})`;
    button.type = "button";
    button.append(swatch, text);
    button.setAttribute("aria-pressed", String(!hidden.has(key)));
    button.onclick = () => {
      hidden.has(key) ? hidden.delete(key) : hidden.add(key);
      redraw();
      [...part(name).children].find(each => each.textContent === text)?.focus();
    };
    return button;
  }));
}

// --- the trials of the chosen study

// Name, scale and values [T] of each column of the table.
function columns() {
  const { trial, state, steps_to_goal, error, values } = study();
  return [
    { name: "trial", kind: "linear", values: trial },
    { name: "outcome", kind: "names", values: state.map(each => STATES[each]) },
    { name: "steps", kind: "log", values: steps_to_goal },
    { name: "error", kind: "log", values: error },
    ...optimizer().parameters.map(({ name, scale }, index) => ({ name, kind: scale, values: values[index], tuned: true, near: NEAR_ONE.test(name) })),
  ];
}

const COMPARE = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "=": (a, b) => a === b };

const listed = () => part("filter").value.split(/,|\band\b/).map(each => each.trim()).filter(Boolean);

const nameIn = condition => words(condition.split(/[<>=]/)[0].trim()).toLowerCase();

// The conditions in the text field, such as `learning_rate > 0.1, steps < 50`; tells which one it does not understand.
function conditions() {
  const all = columns(), found = [];
  part("refusal").textContent = "";
  for (const text of listed()) {
    const [, sign, right] = /(<=|>=|<|>|=)\s*(.+)$/.exec(text) ?? [], column = all.find(each => nameIn(text) === words(each.name).toLowerCase());
    const value = column?.kind === "names" ? words(right ?? "") : Number(right);
    if (column && sign && !Number.isNaN(value)) found.push({ column, sign, value });
    else part("refusal").textContent = `“${text}” must be a condition such as error < 0.1 on one of: ${all.map(each => each.name).join(", ")}.`;
  }
  return found;
}

// Positions of the trials that pass the legend and the text field, best first.
function visible() {
  const asked = conditions(), { state } = study();
  return state.map((_, at) => at).filter(at => !chosen.hidden.has(state[at]) && asked.every(({ column, sign, value }) => {
    const mine = column.kind === "names" ? words(String(column.values[at])) : column.values[at];
    return mine !== null && COMPARE[sign](mine, value);
  }));
}

const isBest = at => study().trial[at] === study().best;
const lookOf = at => isBest(at) ? { colour: "ink", width: 2.5 } : { colour: STATE_COLOURS[study().state[at]], width: 1, pale: true };
const bestLast = shown => [...shown].sort((a, b) => isBest(a) - isBest(b));

function drawTrials() {
  const shown = visible(), ordered = bestLast(shown);
  drawCurves(ordered);
  drawParallel(ordered);
  drawMap(ordered);
  drawTable(shown);
  const { state } = study(), count = index => state.filter(each => each === index).length;
  const there = STATES.map((text, index) => [index, STATE_COLOURS[index], `${text} (${count(index)})`]).filter(([index]) => count(index));
  legend("states", there, chosen.hidden, drawTrials);
  highlight(null);
}

function drawCurves(shown) {
  const { grid, curves, trial, state, trials, every, batch_size } = study(), { metric, threshold } = panel();
  const steps = [];
  grid.forEach((more, index) => steps.push((steps[index - 1] ?? 0) + more));
  const errors = curves.flatMap(curve => curve[1]), positive = errors.filter(error => error > 0);
  const floor = Math.min(...errors) < 0 ? -Infinity : Math.min(...positive, 1) / 2;
  // Errors on the way to divergence would flatten all other curves: as in the figure of learning curves.
  const met = curves.filter((_, at) => state[at] === 0).flatMap(curve => curve[1]).map(Math.abs);
  const highest = met.length ? 2 * Math.max(...met) : [...errors].sort((a, b) => a - b)[Math.floor(.9 * (errors.length - 1))];
  const y = scale("log", [...errors.filter(error => error <= highest).map(error => Math.max(error, floor)), threshold], metric);
  const x = scale("log", steps.filter(Boolean), "training steps");
  const lines = shown.map(at => {
    const [places, values] = curves[at];
    const points = values.map((error, n) => [steps[places ? places[n] : n], Math.max(error, floor)]).filter(([step]) => step > 0);
    return { key: trial[at], diverged: state[at] === 2, points: points.map(([step, error]) => [x.to(step), y.to(error)]), ...lookOf(at) };
  }).filter(line => line.points.length);
  chart("curves", {
    x, y, lines, point: pointAt, label: `Learning curves of ${lines.length} trials at batch size ${number(batch_size)}`,
    paint: (u, ctx) => {
      const level = u.valToPos(y.to(threshold), "y", true), { left, width } = u.bbox;
      ctx.strokeStyle = colour("ink");
      ctx.setLineDash([5 * pixels(), 4 * pixels()]);
      ctx.stroke(new Path2D(`M${left},${level}h${width}`));
      ctx.setLineDash([]);
      const crosses = new Path2D();
      for (const { diverged, points } of lines) if (diverged)
        MARKS.cross(crosses, u.valToPos(points.at(-1)[0], "x", true), u.valToPos(points.at(-1)[1], "y", true), 3 * pixels());
      ctx.strokeStyle = colour("curve-1");
      ctx.stroke(crosses);
      ctx.font = font(12);
      ctx.textAlign = "left";
      write(ctx, `goal ${round(threshold)}`, left + 4 * pixels(), level + 15 * pixels());
    },
  });
  const of = trial.length < trials ? `${number(trial.length)} of ${number(trials)} trials (best, worst and evenly spaced ranks)` : `${number(trials)} trials`;
  const thinned = every > 1 ? ` One evaluation in ${every} is drawn.` : "";
  part("about").textContent = `${optimizer().name}, batch size ${number(batch_size)}: ${of}. Bold: the fewest steps. Dashed: the goal. Crosses: diverged.${thinned}`;
}

// --- parameters

function drawParallel(shown) {
  const all = columns(), axes = [...all.filter(each => each.tuned && several(each.values)), all[3], all[2]]
    .map(column => ({ ...column, ...scale(column.kind, column.values) }));
  const height = (axis, value) => value === null ? null : (axis.to(value) - axis.low) / (axis.high - axis.low);
  const turned = part("parallel").clientWidth / axes.length < 110;
  const x = { low: -.2, high: axes.length - .5, ticks: () => axes.map((_, n) => n),
    axis: { values: () => axes.map(axis => words(axis.name)), grid: { show: false }, rotate: turned ? 30 : 0, size: turned ? 76 : 28 } };
  const y = { low: -.05, high: 1.12, ticks: () => [], axis: { show: false } };
  const lines = shown.map(at => ({ key: study().trial[at], ...lookOf(at), points: axes.map((axis, n) =>
    [n, height(axis, axis.values[at]) ?? (axis.name === "steps" ? MISSED : null)]).filter(([, level]) => level !== null) }));
  chart("parallel", {
    x, y, lines, point: pointAt, label: `Parallel coordinates of ${lines.length} trials`, left: turned ? 60 : 16,
    paint: (u, ctx) => axes.forEach((axis, n) => {
      const across = Math.round(u.valToPos(n, "x", true)), level = share => u.valToPos(share, "y", true);
      ctx.lineWidth = pixels();
      ctx.strokeStyle = colour("muted");
      ctx.stroke(new Path2D(`M${across},${level(1)}V${level(0)}`));
      ctx.font = font(11);
      ctx.textBaseline = "middle";
      const labels = axis.ticks(axis.low, axis.high, 6).map(tick => [round(axis.from(tick)), (tick - axis.low) / (axis.high - axis.low)]);
      if (axis.name === "steps" && axis.values.includes(null)) labels.push(["not reached", MISSED]);
      for (const [text, share] of labels) {
        const gap = 5 * pixels(), fits = across + gap + ctx.measureText(text).width <= u.bbox.left + u.bbox.width + 8;
        ctx.textAlign = fits ? "left" : "right";
        write(ctx, text, fits ? across + gap : across - gap, level(share));
      }
    }),
    brush: u => {
      const { left, top, width, height: tall } = u.select;
      const axis = axes[Math.max(0, Math.min(axes.length - 1, Math.round(u.posToVal(left + width / 2, "x"))))];
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      if (tall < 6 || axis.names) return;
      const value = at => axis.from(axis.low + Math.max(0, Math.min(1, u.posToVal(at, "y"))) * (axis.high - axis.low));
      const others = listed().filter(each => nameIn(each) !== words(axis.name).toLowerCase());
      const ends = [[">=", value(top + tall)], ["<=", value(top)]].map(([sign, end]) => `${axis.name} ${sign} ${Number(end.toPrecision(6))}`);
      part("filter").value = [...others, ...ends].join(", ");
      drawTrials();
    },
  });
}

function drawMap(shown) {
  const all = columns(), choices = [...all.slice(4), all[2], all[3]], usual = choices.filter(each => several(each.values)).map(each => each.name);
  const first = { across: usual[0] ?? "steps", up: usual.includes("momentum") ? "momentum" : usual[1] ?? "error" };
  for (const which of ["across", "up"]) {
    const { asked } = part(which).dataset;
    part(which).replaceChildren(...choices.map(({ name }) => new Option(words(name), name)));
    part(which).value = choices.some(each => each.name === asked) ? asked : first[which];
  }
  const [across, up] = ["across", "up"].map(which => choices.find(each => each.name === part(which).value));
  const x = scale(across.kind, across.values, words(across.name)), y = scale(up.kind, up.values, words(up.name));
  const lines = shown.filter(at => across.values[at] !== null && up.values[at] !== null).map(at => {
    const state = study().state[at];
    const look = isBest(at) ? { mark: "star", colour: "curve-5", edge: "ink" } : { mark: state === 2 ? "cross" : "circle", open: state !== 0, colour: STATE_COLOURS[state] };
    return { key: study().trial[at], dots: true, points: [[x.to(across.values[at]), y.to(up.values[at])]], ...look };
  });
  chart("map", { x, y, lines, point: pointAt, label: `${words(up.name)} against ${words(across.name)} of ${lines.length} trials` });
}

// --- the table

function drawTable(shown) {
  const all = columns(), [head, body] = part("trials").children, { sort } = chosen;
  const by = sort && all.find(each => each.name === sort.name);
  if (by) shown = [...shown].sort((a, b) => {
    const [x, y] = [by.values[a], by.values[b]];
    if (x === null || y === null) return (x === null) - (y === null);
    return (sort.down ? -1 : 1) * (typeof x === "string" ? x.localeCompare(y) : x - y);
  });
  head.replaceChildren(row("th", all.map(({ name, kind }) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = words(name);
    button.onclick = () => {
      chosen.sort = { name, down: by?.name === name && !sort.down };
      drawTable(shown);
      [...head.querySelectorAll("button")].find(each => each.textContent === words(name)).focus();
    };
    return [button, kind, by?.name === name ? (sort.down ? "descending" : "ascending") : null];
  })));
  body.replaceChildren(...shown.map(at => {
    const line = row("td", all.map(({ kind, near, values }) => [number(values[at], near), kind]));
    line.dataset.trial = study().trial[at];
    line.tabIndex = 0;
    line.classList.toggle("best", isBest(at));
    return line;
  }));
}

function row(tag, cells) {
  const line = document.createElement("tr");
  line.append(...cells.map(([content, kind, sorted]) => {
    const cell = document.createElement(tag);
    cell.append(content);
    cell.classList.toggle("n", kind !== "names");
    if (tag === "th") cell.scope = "col";
    if (sorted) cell.setAttribute("aria-sort", sorted);
    return cell;
  }));
  return line;
}

// --- what is pointed at

const pointAt = (found, event) => {
  highlight(found ? found.line.key : null);
  tip(found && describe(found.line.key, "\n"), event);
};

function describe(trial, between) {
  const at = study().trial.indexOf(trial), { steps_to_goal, state, end, error } = study();
  const ends = [`reached the goal after ${number(steps_to_goal[at])} steps`, `goal not reached in ${number(end[at])} steps`,
    `diverged at step ${number(end[at])}`, `not finished: ${number(end[at])} steps so far`];
  const values = columns().filter(each => each.tuned && each.values[at] !== null).map(each => `${words(each.name)} ${number(each.values[at], each.near)}`);
  return [`Trial ${trial}${isBest(at) ? ", the fewest steps" : ""}: ${ends[state[at]]}`, `least error ${number(error[at])}`, ...values].join(between);
}

// Shows one trial in all charts and in the table; null shows all alike.
function highlight(trial) {
  for (const name of ["curves", "parallel", "map"]) focus(name, trial);
  for (const line of part("trials").tBodies[0].rows) line.classList.toggle("found", line.dataset.trial === String(trial));
  const { best, batch_size, steps, budget } = study(), about = `${optimizer().name}, batch size ${number(batch_size)}`;
  const none = steps === null ? `goal not reached in ${number(budget)} steps` : study().trial.includes(best) ? describe(best, ", ") : `${number(steps)} steps`;
  part("said").textContent = `${about}. ${trial === null ? none : describe(trial, ", ")}.`;
}

function tip(text, event) {
  const box = part("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${event.clientY + 16 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 16}px`;
}

// --- choosing

function choose(to) {
  if (to.optimizer === chosen.optimizer && to.study === chosen.study) return;
  Object.assign(chosen, to);
  part("study").value = `${chosen.optimizer} ${chosen.study}`;
  charts.get("scaling").u.redraw(false);
  drawTrials();
}

function choosePanel(index) {
  const middle = panels[index].optimizers[0].studies.length >> 1;
  Object.assign(chosen, { panel: index, optimizer: 0, study: middle, kept: false, sort: null });
  chosen.off.clear();
  part("study").replaceChildren(...panel().optimizers.map(({ name, studies }, first) => {
    const group = document.createElement("optgroup");
    group.label = name;
    group.append(...studies.map(({ batch_size }, second) => new Option(`${name}, ${number(batch_size)}`, `${first} ${second}`)));
    return group;
  }));
  part("study").value = `0 ${middle}`;
  drawAll();
}

function drawAll() {
  drawScaling();
  drawTrials();
}

root.hidden = false;
for (const contents of document.querySelectorAll("nav ul")) {
  const entry = document.createElement("li"), link = document.createElement("a");
  [link.href, link.textContent] = ["#explorer", "Explorer"];
  entry.append(link);
  contents.prepend(entry);
}
part("panel").append(...panels.map(({ workload, goal }, index) => new Option(`${workload}: ${goal}`, index)));
part("panel-label").hidden = panels.length < 2;
part("panel").onchange = event => choosePanel(Number(event.target.value));
part("study").onchange = event => {
  const [first, second] = event.target.value.split(" ").map(Number);
  chosen.kept = true;
  choose({ optimizer: first, study: second });
};
part("filter").placeholder = `${panels[0].optimizers[0].parameters[0]?.name ?? "error"} > 0.1, steps < 100`;
part("filter").oninput = drawTrials;
part("whole").onclick = drawAll;
for (const which of ["across", "up"]) part(which).onchange = event => {
  event.target.dataset.asked = event.target.value;
  drawTrials();
};
for (const kind of ["mouseover", "focusin"])
  part("trials").tBodies[0].addEventListener(kind, event => highlight(Number(event.target.closest("tr").dataset.trial)));
part("trials").onmouseleave = () => highlight(null);
matchMedia("(prefers-color-scheme: dark)").onchange = drawAll;
choosePanel(0);
let width = root.clientWidth;
new ResizeObserver(() => {
  if (root.clientWidth !== width) drawAll();
  width = root.clientWidth;
}).observe(root);
});
