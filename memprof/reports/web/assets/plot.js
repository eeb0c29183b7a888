// The frame of a chart over program order: axes, and ranges to zoom with the mouse, a finger, buttons or keys.
// Shapes are drawn in a square of SIDE units, which the browser stretches: another window needs no other drawing.

const SIDE = 1000;
const NUM_POSITION_TICKS = 8;
const EDGE = 0.05; // of the width: a tick nearer to the end has no room for its number
const PAN_SHARE = 0.25; // of what is shown
const MOVES = {
  "zoom in": { sign: "+", key: "+", scale: 0.5 },
  "zoom out": { sign: "\u2212", key: "-", scale: 2 },
  "move left": { sign: "\u2190", key: "ArrowLeft", x: -PAN_SHARE },
  "move right": { sign: "\u2192", key: "ArrowRight", x: PAN_SHARE },
  "move up": { sign: "\u2191", key: "ArrowUp", y: PAN_SHARE },
  "move down": { sign: "\u2193", key: "ArrowDown", y: -PAN_SHARE },
  "show all": { sign: "all", key: "0", scale: Infinity },
};

// Puts a chart into `place`. `whole` is all there is to see: positions `x` and bytes `y`. `draw` returns what is shown of
// `ranges`, made with `across` and `up`, which give shares of the area. `lanes` are rows of spans below it.
// What is zoomed into stands in the address as `key`.
function makePlot(place, { key, name, whole, zoomsBytes = false, lanes = [], draw, onPoint, onLeave = () => {}, onPick = () => {}, onKey = () => false }) {
  const area = element("div", { class: "area", tabindex: 0, role: "group", "aria-label": `${name}; + - 0 and arrows zoom and move` });
  const shown = element("div", { class: "shown" });
  const below = element("div", { class: "below" });
  const status = element("span", { class: "quiet", role: "status" });
  const buttons = Object.entries(MOVES).filter(([, move]) => zoomsBytes || !move.y).map(([title, move]) => {
    const button = element("button", { type: "button", class: "button", title, "aria-label": title }, move.sign);
    button.addEventListener("click", () => apply(move));
    return button;
  });
  let ranges = whole;
  area.append(shown);
  place.replaceChildren(element("div", { class: "controls" }, ...buttons, status), area, below);

  const share = (value, [low, high]) => (value - low) / (high - low);
  const across = (position) => share(position, ranges.x);
  const up = (bytes) => share(bytes, ranges.y);

  function redraw() {
    const ticks = byteTicks(...ranges.y).map(({ value, text }) => element("span", { class: "byte-tick", style: `bottom:${100 * up(value)}%` }, element("b", {}, text)));
    const positions = positionTicks(...ranges.x);
    const numbers = positions.map((value) => element("span", { class: "position-tick", style: `left:${100 * across(value)}%` }, formatCount(value)));
    const grid = positions.flatMap((value) => verticalLine("grid-line", across(value)));
    const axis = [element("div", { class: "positions" }, ...numbers), element("div", { class: "axis-title" }, "position in program order")];
    shown.replaceChildren(...ticks, ...grid, ...draw(ranges, across, up));
    below.replaceChildren(...lanes.map((each) => laneOf(each, across)), ...axis);
    status.textContent = `positions ${formatCount(ranges.x[0])} to ${formatCount(ranges.x[1] - 1)}`;
  }

  // Whole positions, inside of all there is, and at least one; at least one byte.
  function zoom({ x, y }) {
    const first = Math.min(Math.max(Math.floor(x[0]), whole.x[0]), whole.x[1] - 1);
    const stop = Math.min(Math.max(Math.ceil(x[1]), first + 1), whole.x[1]);
    ranges = { x: [first, stop], y: zoomsBytes ? [y[0], Math.max(y[1], y[0] + 1)] : whole.y };
    redraw();
    const isWhole = [...ranges.x, ...ranges.y].join() === [...whole.x, ...whole.y].join();
    remember(key, isWhole ? null : [...ranges.x, ...(zoomsBytes ? ranges.y.map(Math.round) : [])].join(" "));
  }

  function apply({ scale = 1, x = 0, y = 0 }) {
    zoom({ x: moved(ranges.x, whole.x, scale, x).map(Math.round), y: moved(ranges.y, whole.y, scale, y) });
  }

  // Shares of the area as a position and bytes.
  const along = ([low, high], part) => low + part * (high - low);
  const at = ({ right, up: top }) => ({ x: along(ranges.x, right), y: along(ranges.y, top) });

  onPointer(area, {
    selectsHeight: zoomsBytes,
    onPoint: (point, event) => onPoint(at(point), event),
    onLeave,
    onPick: (point) => onPick(at(point)),
    onSelect: (from, to) => {
      const [low, high] = [at(from), at(to)];
      zoom({ x: [low.x, high.x], y: [low.y, high.y] });
    },
  });
  area.addEventListener("dblclick", () => zoom(whole));
  area.addEventListener("keydown", (event) => {
    const move = Object.values(MOVES).find(({ key, y }) => key === event.key && (zoomsBytes || !y));
    if (onKey(event)) return;
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    apply(move);
  });
  onAddress(key, (value) => {
    const [first, stop, low = whole.y[0], high = whole.y[1]] = value.split(" ").map(Number);
    if ([first, stop, low, high].every(Number.isFinite)) zoom({ x: [first, stop], y: [low, high] });
  });
  redraw();
  return { redraw, area, across, up };
}

// A range scaled about its middle and moved by a share of itself, never out of the whole.
function moved([low, high], [lowest, highest], scale, by) {
  const length = Math.min((high - low) * scale, highest - lowest);
  const middle = (low + high) / 2 + by * (high - low);
  const from = Math.min(Math.max(middle - length / 2, lowest), highest - length);
  return [from, from + length];
}

// Round positions, some eight of them.
function positionTicks(first, stop) {
  const rough = (stop - first) / NUM_POSITION_TICKS;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10);
  const values = [];
  for (let value = Math.ceil(first / step) * step; value < stop - EDGE * (stop - first); value += step) values.push(value);
  return values;
}

function laneOf({ name, spans }, across) {
  const path = spans.map(([first, last]) => `M${onSide(across(first))},0H${onSide(across(last + 1))}V${SIDE}H${onSide(across(first))}Z`);
  return element("div", { class: "lane" }, element("b", {}, name), drawing(shape("path", { d: path.join("") })));
}

// A share of the area in the units of its shapes.
function onSide(part) {
  return Math.round(part * SIDE * 100) / 100;
}

function drawing(...shapes) {
  const made = shape("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  made.append(...shapes);
  return made;
}

// A shape of one category, lit up where the legend beside the chart says so.
function categoryPath(number, d, figure) {
  const { name } = categories[number];
  return shape("path", { "data-category": name, class: figure.dataset.only === name ? "lit" : "", d });
}

// A line at a share of the width; none outside of what is shown.
function verticalLine(kind, part) {
  return part < 0 || part > 1 ? [] : [element("i", { class: `vertical ${kind}`, style: `left:${100 * part}%` })];
}
