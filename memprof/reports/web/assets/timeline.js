// Live bytes over program order. Pointing shows a moment in a small box, a click pins it beside the chart.

const MAX_SLICES = 1000;
const PASSES = ["forward", "recompute", "backward", "update", "undifferentiated"];
const PEAK_ROWS = 6;
const PINNED_ROWS = 100;
const HEADROOM = 1.1; // room for the mark of the peak
const PEAK_PIXELS = 2; // of many positions on few pixels, one would not be seen
const TIP_CATEGORIES = 3;

function drawTimeline(figure) {
  // What lies at the bottom is live from beginning to end, so that the rest is seen on level ground.
  const order = categories.map((_, number) => number).sort((a, b) => !timeline.base[a] - !timeline.base[b]);
  const last = timeline.num_positions - 1;
  const place = element("div", { class: "plot", id: "timeline" });
  const panel = element("div", { class: "panel", id: "timeline-panel", "aria-live": "polite" });
  const slider = element("input", { type: "range", min: 0, max: last, value: timeline.peak_position, id: "timeline-position" });
  const unpin = element("button", { type: "button", class: "button", id: "timeline-unpin", disabled: "" }, "unpin");
  const controls = element("div", { class: "controls" }, element("label", {}, "position", slider), unpin);
  const tip = element("div", { class: "tip", role: "status", hidden: "" });
  const cross = ["x", "y"].map((axis) => element("i", { class: `cross cross-${axis}`, hidden: "" }));
  figure.querySelector("svg").remove();
  figure.querySelector("figcaption").remove();
  figure.prepend(place);
  figure.append(controls, tip);
  document.getElementById("timeline-section").after(element("section", { id: "moment", "aria-label": "what is live at one moment" }, panel));

  let shown = [];
  let pinned = null;
  let only = null;

  function draw(ranges, across, up) {
    const [first, stop] = ranges.x;
    shown = moments(first, stop - 1, MAX_SLICES);
    const edges = [first, ...shown.slice(1).map((moment) => moment.position), stop].map((position) => onSide(across(position)));
    const drawn = order.filter((number) => only === null || categories[number].name === only);
    const stacks = stackPaths(drawn, shown, edges, up, figure);
    const peak = highestAt(timeline.peak_position);
    const [middle, half] = [SIDE * across(peak.position + 0.5), (SIDE * PEAK_PIXELS) / 2 / (place.querySelector(".area").clientWidth || SIDE)];
    const isInside = middle >= 0 && middle <= SIDE;
    if (isInside) stacks.push(...stackPaths(drawn, [peak], [middle - half, middle + half], up, figure));
    const pinLine = pinned === null ? [] : verticalLine("pin-line", across(pinned.position + 0.5));
    return [drawing(...stacks), ...(only === null ? peakMark(across, up) : []), ...pinLine];
  }

  function show(moment, numRows) {
    const live = liveAfter(moment.change);
    const groups = [...groupedBy(live, kindOf).values()].sort((a, b) => bytesOf(b) - bytesOf(a));
    const rows = groups.slice(0, numRows).map((group) => {
      const [index] = group;
      const count = group.length > 1 ? `${formatCount(group.length)} \u00d7 ` : "";
      const module = moduleOf(group);
      const array = element("div", {}, categoryKey(buffers.category[index]), count, linkTo("buffer", index + 1, textOf("array", index)));
      const source = textOf("source", index);
      const where = source ? editorLink(source, ...breakable(source)) : textOf("op", index);
      array.append(element("div", { class: "where quiet" }, where));
      return [formatBytes(bytesOf(group)), array, module && linkTo("module", module, ...breakable(module))];
    });
    const more = groups.length - rows.length;
    const sizes = categories.map(() => 0);
    for (const index of live) sizes[buffers.category[index]] += buffers.size_bytes[index];
    const total = totals[moment.change + 1];
    const title = `${formatBytes(total)} live at position ${formatCount(moment.position)} (${phaseAt(moment.position)}), ${formatCount(live.length)} buffers`;
    const table = plainTable(["size", "array", "module"], rows);
    const rest = more > 0 ? [element("p", { class: "quiet" }, `and ${formatCount(more)} smaller kinds`)] : [];
    panel.classList.toggle("pinned", pinned !== null);
    const badge = pinned === null ? "" : "pinned: ";
    panel.replaceChildren(element("h2", {}, badge + title), stackOf(sizes), element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "buffers that are live then" }, table), ...rest);
    slider.value = moment.position;
    unpin.disabled = pinned === null;
  }

  function momentAt({ x }) {
    return shown.findLast((moment) => moment.position <= x) ?? shown[0];
  }

  function highestAt(position) {
    return moments(position, position, 1)[0];
  }

  function point(at, event) {
    const moment = momentAt(at);
    const total = totals[moment.change + 1];
    const largest = order.filter((number) => moment.live[number]).sort((a, b) => moment.live[b] - moment.live[a]).slice(0, TIP_CATEGORIES);
    const made = bornBefore(moment.change);
    tip.replaceChildren(
      element("b", {}, `${formatBytes(total)} live`),
      element("div", {}, `position ${formatCount(moment.position)}, ${phaseAt(moment.position)}`),
      ...largest.map((number) => element("div", {}, categoryKey(number), `${categories[number].name} ${formatBytes(moment.live[number])}`)),
      ...(made < 0 ? [] : [element("div", { class: "quiet" }, `${textOf("op", made) || textOf("name", made)} ${textOf("source", made)}`)]),
    );
    placeTip(tip, event.clientX, event.clientY);
    cross[0].style.left = `${100 * plot.across(moment.position + 0.5)}%`;
    cross[1].style.bottom = `${100 * plot.up(total)}%`;
    for (const line of cross) line.hidden = false;
  }

  function leave() {
    for (const part of [tip, ...cross]) part.hidden = true;
  }

  function pin(moment) {
    pinned = moment;
    show(moment, PINNED_ROWS);
    plot.redraw();
    remember("at", moment.position);
  }

  function release() {
    pinned = null;
    show(highestAt(timeline.peak_position), PEAK_ROWS);
    plot.redraw();
    remember("at", null);
  }

  // The arrows move a pin to where the next change is.
  function movePin(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (pinned === null || !step) return false;
    event.preventDefault();
    const { position } = pinned;
    const next = step > 0 ? timeline.position.find((each) => each > position) : timeline.position.findLast((each) => each < position);
    if (next !== undefined) pin(highestAt(next));
    return true;
  }

  const plot = makePlot(place, {
    key: "time",
    name: "live bytes over program order",
    whole: { x: [0, last + 1], y: [0, bounds(totals)[1] * HEADROOM || 1] },
    lanes: PASSES.map((pass) => ({ name: pass, spans: spansOf(pass) })).filter(({ spans }) => spans.length),
    draw,
    onPoint: point,
    onLeave: leave,
    onPick: (at) => pin(momentAt(at)),
    onKey: movePin,
  });
  plot.area.append(...cross);
  show(highestAt(timeline.peak_position), PEAK_ROWS);
  onCategory((name) => {
    only = name;
    plot.redraw();
  });
  slider.addEventListener("input", () => pin(highestAt(Number(slider.value))));
  unpin.addEventListener("click", release);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && pinned !== null && (figure.contains(event.target) || panel.contains(event.target))) release();
  });
  onAddress("at", (value) => {
    pin(highestAt(Math.min(Math.max(Math.round(Number(value)) || 0, 0), last)));
    reveal(slider);
  });
}

// The buffer that came alive last; -1 if none did.
function bornBefore(change) {
  let found = -1;
  for (let index = 0; index < numBuffers; index += 1) {
    const born = buffers.born[index];
    if (born !== null && born <= change && (found < 0 || born > buffers.born[found])) found = index;
  }
  return found;
}

// The categories of some moments, one above the other.
function stackPaths(numbers, shown, edges, up, figure) {
  const ground = shown.map(() => 0);
  return numbers.filter((number) => shown.some((moment) => moment.live[number])).map((number) => {
    const lower = ground.map((bytes) => onSide(1 - up(bytes)));
    shown.forEach((moment, slice) => (ground[slice] += moment.live[number]));
    const upper = ground.map((bytes) => onSide(1 - up(bytes)));
    return categoryPath(number, steppedArea(edges, lower, upper), figure);
  });
}

function spansOf(pass) {
  return timeline.phases.filter(([name]) => name === pass).map(([, first, last]) => [first, last]);
}

// There along the upper edge and back along the lower one, in steps.
function steppedArea(edges, lower, upper) {
  const there = upper.map((height, slice) => `${slice ? "V" : "M" + edges[0] + ","}${height}H${edges[slice + 1]}`);
  const back = lower.map((height, slice) => `V${height}H${edges[slice]}`).reverse();
  return `${there.join("")}${back.join("")}Z`;
}

function peakMark(across, up) {
  const at = across(timeline.peak_position + 0.5);
  if (at < 0 || at > 1) return [];
  const style = `left:${100 * at}%;bottom:${100 * up(report.live_peak_bytes)}%`;
  return [element("span", { class: at > 0.6 ? "peak-mark to-the-left" : "peak-mark", style }, `peak ${formatBytes(report.live_peak_bytes)}`)];
}
