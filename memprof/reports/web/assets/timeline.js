// Live bytes over program order. Hovering shows the largest buffers at that point, clicking pins it.

const MAX_SLICES = 1000;
const PASSES = ["forward", "recompute", "backward", "update"];
const HOVERED_ROWS = 8;
const PINNED_ROWS = 200;

function drawTimeline(figure) {
  // What lies at the bottom is live from beginning to end, so that the rest is seen on level ground.
  const order = categories.map((_, number) => number).sort((a, b) => !timeline.base[a] - !timeline.base[b]);
  const last = timeline.num_positions - 1;
  const plot = element("div", { class: "plot", id: "timeline" });
  const panel = element("div", { class: "panel", id: "timeline-panel", "aria-live": "polite" });
  const slider = element("input", { type: "range", min: 0, max: last, value: timeline.peak_position, id: "timeline-position" });
  const unpin = element("button", { type: "button", class: "button", id: "timeline-unpin", disabled: "" }, "unpin");
  const controls = element("div", { class: "controls" }, element("label", {}, "position", slider), unpin);
  figure.querySelector("svg").remove();
  figure.querySelector("figcaption").remove();
  figure.prepend(plot);
  figure.append(controls, panel);

  let shown = [];
  let pinned = null;
  let range = null;

  function traces(first, lastShown) {
    shown = moments(first, lastShown, MAX_SLICES);
    const positions = shown.map((moment) => moment.position);
    const used = order.filter((number) => shown.some((moment) => moment.live[number]));
    const stacks = used.map((number) => ({
      x: [...positions, lastShown + 1],
      y: [...shown.map((moment) => moment.live[number]), shown[shown.length - 1].live[number]],
      stackgroup: "live",
      line: { width: 0, shape: "hv" },
      fillcolor: shownColor(number, figure),
      hoverinfo: "none",
    }));
    const bands = PASSES.map((pass) => {
      const spans = timeline.phases.filter(([name]) => name === pass);
      return {
        x: spans.flatMap(([, start, end]) => [start, end + 1, null]),
        y: spans.flatMap(() => [pass, pass, null]),
        yaxis: "y2",
        mode: "lines",
        line: { width: 7, color: color("quiet") },
        hoverinfo: "none",
      };
    });
    return [...stacks, ...bands.filter((band) => band.x.length)];
  }

  function layout() {
    const [, high] = bounds(totals);
    const mark = (x) => ({ type: "line", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: color("text"), width: 2 } });
    const shapes = pinned === null ? [] : [mark(pinned.position + 0.5)];
    const isRight = timeline.peak_position > 0.6 * last;
    return themed({
      height: isNarrow() ? 380 : 440,
      hovermode: "x",
      dragmode: "zoom",
      xaxis: { title: { text: "position in program order" }, range, anchor: "y2", tickformat: ",d" },
      yaxis: { title: { text: isNarrow() ? "" : "live bytes" }, range: [0, high * 1.1 || 1], domain: [0.2, 1], fixedrange: true, ...byteTicks(0, high) },
      yaxis2: { domain: [0, 0.16], fixedrange: true, showgrid: false, type: "category", categoryarray: [...PASSES].reverse() },
      showlegend: false,
      shapes,
      annotations: [
        {
          x: timeline.peak_position + 0.5,
          y: report.live_peak_bytes,
          ax: isRight ? -24 : 24,
          ay: -16,
          xanchor: isRight ? "right" : "left",
          showarrow: true,
          arrowhead: 2,
          arrowcolor: color("text"),
          text: `peak ${formatBytes(report.live_peak_bytes)}`,
          font: { color: color("text"), size: 13 },
        },
      ],
      margin: { l: isNarrow() ? 70 : 84, r: 12, t: 28, b: 44 },
    });
  }

  function redraw() {
    Plotly.react(plot, traces(range[0], range[1] - 1), layout(), PLOT_CONFIG);
  }

  function zoom(from, to) {
    const first = Math.min(Math.max(0, Math.floor(from)), last);
    range = [first, Math.max(first + 1, Math.min(last + 1, Math.ceil(to)))];
    redraw();
  }

  function show(moment, numRows) {
    const live = liveAfter(moment.change);
    const rows = live.slice(0, numRows).map((index) => [
      formatBytes(buffers.size_bytes[index]),
      textOf("array", index),
      element("span", {}, categoryKey(buffers.category[index]), categories[buffers.category[index]].name),
      textOf("module", index),
      textOf("source", index) || textOf("op", index),
    ]);
    const more = live.length - rows.length;
    const sizes = categories.map(() => 0);
    for (const index of live) sizes[buffers.category[index]] += buffers.size_bytes[index];
    const total = totals[moment.change + 1];
    const title = `${formatBytes(total)} live at position ${moment.position.toLocaleString("en")} (${phaseAt(moment.position)}), ${live.length.toLocaleString("en")} buffers`;
    const table = plainTable(["size", "array", "category", "module", "source"], rows);
    const rest = more > 0 ? [element("p", { class: "quiet" }, `and ${more.toLocaleString("en")} smaller ones`)] : [];
    panel.classList.toggle("pinned", pinned !== null);
    const badge = pinned === null ? "" : "pinned: ";
    panel.replaceChildren(element("h3", {}, badge + title), stackOf(sizes), element("div", { class: "scroll" }, table), ...rest);
    slider.value = moment.position;
    unpin.disabled = pinned === null;
  }

  function highestAt(position) {
    return moments(position, position, 1)[0];
  }

  function pin(moment) {
    pinned = moment;
    show(moment, PINNED_ROWS);
    Plotly.relayout(plot, { shapes: layout().shapes });
  }

  function release() {
    pinned = null;
    show(highestAt(timeline.peak_position), HOVERED_ROWS);
    Plotly.relayout(plot, { shapes: layout().shapes });
  }

  zoom(0, last + 1);
  show(highestAt(timeline.peak_position), HOVERED_ROWS);
  plot.on("plotly_hover", ({ points }) => {
    const moment = shown[Math.min(points[0].pointIndex ?? points[0].pointNumber, shown.length - 1)];
    if (pinned === null && points[0].yaxis._id === "y") show(moment, HOVERED_ROWS);
  });
  plot.on("plotly_click", ({ points }) => {
    const point = points.find(({ yaxis }) => yaxis._id === "y");
    if (point) pin(shown[Math.min(point.pointIndex ?? point.pointNumber, shown.length - 1)]);
  });
  plot.on("plotly_relayout", (change) => {
    if ("xaxis.autorange" in change) zoom(0, last + 1);
    else if ("xaxis.range[0]" in change) zoom(change["xaxis.range[0]"], change["xaxis.range[1]"]);
  });
  slider.addEventListener("input", () => pin(highestAt(Number(slider.value))));
  unpin.addEventListener("click", release);
  figure.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && pinned !== null) release();
  });
  figure.addEventListener("lightup", redraw);
  onThemeChange(redraw);
}
