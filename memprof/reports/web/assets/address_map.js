// The temp block: a rectangle for each buffer, from where it begins to where it ends in address and in time. A value
// that is used for the last time where another begins can share its memory from there on.

function drawAddressMap(plot, panel) {
  const placed = [];
  for (let index = 0; index < numBuffers; index += 1) if (buffers.offset[index] !== null && buffers.size_bytes[index]) placed.push(index);
  if (!placed.length) {
    plot.replaceChildren(element("p", { class: "waiting" }, "This program has no temp block."));
    panel.remove();
    return;
  }
  const highest = bounds(placed.map((index) => buffers.offset[index] + buffers.size_bytes[index]))[1];
  const used = categories.map((_, number) => placed.filter((index) => buffers.category[index] === number));
  const present = used.flatMap((members, number) => (members.length ? [number] : []));
  const figure = plot.parentElement;
  const legend = legendOf(present);
  figure.append(legend);
  makeLegend(legend);
  plot.replaceChildren();
  const whole = { x: [0, timeline.num_positions], y: [0, highest] };
  let ranges = whole;

  const layout = () => {
    const { x, y } = ranges;
    return themed({
      height: isNarrow() ? 440 : 520,
      hovermode: false,
      dragmode: "zoom",
      xaxis: { title: { text: "position in program order" }, range: [...x], tickformat: ",d" },
      yaxis: { title: { text: isNarrow() ? "" : "offset in the temp block" }, range: [...y], ...byteTicks(...y) },
      showlegend: false,
      margin: { l: isNarrow() ? 70 : 84, r: 12, t: 28, b: 44 },
      shapes: [
        { type: "line", yref: "paper", x0: timeline.peak_position + 0.5, x1: timeline.peak_position + 0.5, y0: 0, y1: 1, line: { color: color("text"), width: 1.5, dash: "dot" } },
      ],
    });
  };
  // What is less than half a pixel high is left out until one zooms in; the panel knows it all the same.
  const isVisible = (index) => {
    const [[left, right], [low, high]] = [ranges.x, ranges.y];
    const [bottom, top] = [buffers.offset[index], buffers.offset[index] + buffers.size_bytes[index]];
    const isInside = bottom < high && top > low && buffers.start[index] < right && buffers.end[index] >= left;
    return isInside && top - bottom >= (high - low) / 1000;
  };
  const redraw = () => {
    const traces = present.map((number) => rectangles(used[number].filter(isVisible), shownColor(number, figure)));
    Plotly.react(plot, traces, layout(), PLOT_CONFIG);
  };
  redraw();

  plot.on("plotly_relayout", (change) => {
    const { xaxis, yaxis } = plot.layout;
    const isReset = "xaxis.autorange" in change || "yaxis.autorange" in change;
    if (!isReset && !Object.keys(change).some((name) => name.includes("axis.range"))) return;
    ranges = isReset ? whole : { x: [...xaxis.range], y: [...yaxis.range] };
    redraw();
  });
  plot.addEventListener("mousemove", (event) => {
    const at = pointUnder(plot, event);
    const index = at && placed.findLast((each) => contains(each, at));
    if (index !== undefined && index !== null) panel.replaceChildren(...describe(index));
  });
  figure.addEventListener("lightup", redraw);
  onThemeChange(redraw);
}

function rectangles(members, fill) {
  const x = [];
  const y = [];
  for (const index of members) {
    const [left, right] = [buffers.start[index], Math.max(buffers.end[index], buffers.start[index] + 1)];
    const [low, high] = [buffers.offset[index], buffers.offset[index] + buffers.size_bytes[index]];
    x.push(left, right, right, left, left, null);
    y.push(low, low, high, high, low, null);
  }
  return { x, y, mode: "lines", fill: "toself", fillcolor: fill, line: { width: 0.5, color: darker(fill) }, hoverinfo: "skip" };
}

function darker(fill) {
  const channels = [1, 3, 5].map((at) => Math.round(parseInt(fill.slice(at, at + 2), 16) * 0.7));
  return `rgba(${channels.join(",")},${fill.length > 7 ? 0.1 : 1})`;
}

function contains(index, { x, y }) {
  const right = Math.max(buffers.end[index], buffers.start[index] + 1);
  return buffers.start[index] <= x && x < right && buffers.offset[index] <= y && y < buffers.offset[index] + buffers.size_bytes[index];
}

// Where the mouse is, in positions and bytes.
function pointUnder(plot, event) {
  const area = plot.querySelector(".nsewdrag")?.getBoundingClientRect();
  if (!area || event.clientX < area.left || event.clientX > area.right || event.clientY < area.top || event.clientY > area.bottom) return null;
  const [x0, x1] = plot.layout.xaxis.range;
  const [y0, y1] = plot.layout.yaxis.range;
  return {
    x: x0 + ((event.clientX - area.left) / area.width) * (x1 - x0),
    y: y1 - ((event.clientY - area.top) / area.height) * (y1 - y0),
  };
}

function describe(index) {
  const number = buffers.category[index];
  const where = `${buffers.start[index].toLocaleString("en")} to ${buffers.end[index].toLocaleString("en")}, offset ${formatBytes(buffers.offset[index])}`;
  const names = [textOf("module", index), textOf("source", index), textOf("op", index)].filter((name) => name).join(" \u00b7 ");
  return [
    categoryKey(number),
    element("b", {}, `${formatBytes(buffers.size_bytes[index])} ${textOf("array", index)}`),
    ` ${categories[number].name}, positions ${where}`,
    element("div", { class: "quiet long", style: "max-width:none" }, names),
  ];
}
