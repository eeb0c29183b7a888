// Live bytes over program order. Hovering shows the largest buffers at that point, clicking pins it.

const MAX_SLICES = 1000;
const PASSES = ["forward", "recompute", "backward", "update", "undifferentiated"];
const HOVERED_ROWS = 8;
const PINNED_ROWS = 200;
const HEADROOM = 1.1; // room for the mark of the peak

function drawTimeline(figure) {
  // What lies at the bottom is live from beginning to end, so that the rest is seen on level ground.
  const order = categories.map((_, number) => number).sort((a, b) => !timeline.base[a] - !timeline.base[b]);
  const last = timeline.num_positions - 1;
  const place = element("div", { class: "plot", id: "timeline" });
  const panel = element("div", { class: "panel", id: "timeline-panel", "aria-live": "polite" });
  const slider = element("input", { type: "range", min: 0, max: last, value: timeline.peak_position, id: "timeline-position" });
  const unpin = element("button", { type: "button", class: "button", id: "timeline-unpin", disabled: "" }, "unpin");
  const controls = element("div", { class: "controls" }, element("label", {}, "position", slider), unpin);
  figure.querySelector("svg").remove();
  figure.querySelector("figcaption").remove();
  figure.prepend(place);
  figure.append(controls);
  document.getElementById("advice-section").after(element("section", { id: "moment", "aria-label": "what is live at one moment" }, panel));

  let shown = [];
  let pinned = null;

  function draw(ranges, across, up) {
    const [first, stop] = ranges.x;
    shown = moments(first, stop - 1, MAX_SLICES);
    const edges = [first, ...shown.slice(1).map((moment) => moment.position), stop].map((position) => onSide(across(position)));
    const ground = shown.map(() => 0);
    const stacks = order.filter((number) => shown.some((moment) => moment.live[number])).map((number) => {
      const lower = ground.map((bytes) => onSide(1 - up(bytes)));
      shown.forEach((moment, slice) => (ground[slice] += moment.live[number]));
      const upper = ground.map((bytes) => onSide(1 - up(bytes)));
      return categoryPath(number, steppedArea(edges, lower, upper), figure);
    });
    const pinLine = pinned === null ? [] : verticalLine("pin-line", across(pinned.position + 0.5));
    return [drawing(...stacks), ...peakMark(across, up), ...pinLine];
  }

  function show(moment, numRows) {
    const live = liveAfter(moment.change);
    const rows = live.slice(0, numRows).map((index) => [
      formatBytes(buffers.size_bytes[index]),
      linkTo("buffer", index + 1, textOf("array", index)),
      categoryLink(buffers.category[index]),
      textOf("module", index) && linkTo("module", textOf("module", index), textOf("module", index)),
      textOf("source", index) ? editorLink(textOf("source", index)) : textOf("op", index),
    ]);
    const more = live.length - rows.length;
    const sizes = categories.map(() => 0);
    for (const index of live) sizes[buffers.category[index]] += buffers.size_bytes[index];
    const total = totals[moment.change + 1];
    const title = `${formatBytes(total)} live at position ${formatCount(moment.position)} (${phaseAt(moment.position)}), ${formatCount(live.length)} buffers`;
    const table = plainTable(["size", "array", "category", "module", "source"], rows);
    const rest = more > 0 ? [element("p", { class: "quiet" }, `and ${formatCount(more)} smaller ones`)] : [];
    panel.classList.toggle("pinned", pinned !== null);
    const badge = pinned === null ? "" : "pinned: ";
    panel.replaceChildren(element("h2", {}, badge + title), stackOf(sizes), element("div", { class: "scroll" }, table), ...rest);
    slider.value = moment.position;
    unpin.disabled = pinned === null;
  }

  function momentAt({ x }) {
    return shown.findLast((moment) => moment.position <= x) ?? shown[0];
  }

  function highestAt(position) {
    return moments(position, position, 1)[0];
  }

  function pin(moment) {
    pinned = moment;
    show(moment, PINNED_ROWS);
    plot.redraw();
    remember("at", moment.position);
  }

  function release() {
    pinned = null;
    show(highestAt(timeline.peak_position), HOVERED_ROWS);
    plot.redraw();
    remember("at", null);
  }

  const plot = makePlot(place, {
    key: "time",
    name: "live bytes over program order",
    whole: { x: [0, last + 1], y: [0, bounds(totals)[1] * HEADROOM || 1] },
    lanes: PASSES.map((pass) => ({ name: pass, spans: spansOf(pass) })).filter(({ spans }) => spans.length),
    draw,
    onPoint: (at) => pinned === null && show(momentAt(at), HOVERED_ROWS),
    onPick: (at) => pin(momentAt(at)),
  });
  show(highestAt(timeline.peak_position), HOVERED_ROWS);
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
