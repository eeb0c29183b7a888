// The temp block: a rectangle for each buffer, from where it begins to where it ends in address and in time. A value
// that is used for the last time where another begins can share its memory from there on.

function drawAddressMap(place, panel) {
  const placed = [];
  for (let index = 0; index < numBuffers; index += 1) if (buffers.offset[index] !== null && buffers.size_bytes[index]) placed.push(index);
  if (!placed.length) {
    place.replaceChildren(element("p", { class: "waiting" }, "This program has no temp block."));
    panel.remove();
    return;
  }
  const used = categories.map((_, number) => placed.filter((index) => buffers.category[index] === number));
  const present = used.flatMap((members, number) => (members.length ? [number] : []));
  const figure = place.parentElement;
  const legend = legendOf(present);
  figure.append(legend);
  makeLegend(legend);

  const bufferAt = (at) => placed.findLast((each) => contains(sidesOf(each), at));

  makePlot(place, {
    key: "map",
    name: "offsets in the temp block over program order",
    whole: { x: [0, timeline.num_positions], y: [0, bounds(placed.map((index) => sidesOf(index).top))[1]] },
    zoomsBytes: true,
    draw: (ranges, across, up) => {
      const paths = present.map((number) => {
        const visible = used[number].map(sidesOf).filter((sides) => isVisible(sides, ranges));
        return categoryPath(number, visible.map((sides) => rectangle(sides, across, up)).join(""), figure);
      });
      return [drawing(...paths), ...verticalLine("peak-line", across(timeline.peak_position + 0.5))];
    },
    onPoint: (at) => {
      const index = bufferAt(at);
      if (index !== undefined) panel.replaceChildren(...describe(index));
    },
    onPick: (at) => {
      const index = bufferAt(at);
      if (index !== undefined) panel.replaceChildren(...describe(index), element("div", {}, linkTo("buffer", index + 1, "show in the table")));
    },
  });
}

// A value that is gone within a position takes its place there all the same.
function sidesOf(index) {
  const [left, bottom] = [buffers.start[index], buffers.offset[index]];
  return { left, right: Math.max(buffers.end[index], left + 1), bottom, top: bottom + buffers.size_bytes[index] };
}

// What is less than half a pixel high is left out until one zooms in; the panel knows it all the same.
function isVisible({ left, right, bottom, top }, { x, y }) {
  return left < x[1] && right > x[0] && bottom < y[1] && top > y[0] && top - bottom >= (y[1] - y[0]) / 1000;
}

function rectangle({ left, right, bottom, top }, across, up) {
  const [x0, x1, y0, y1] = [across(left), across(right), 1 - up(top), 1 - up(bottom)].map(onSide);
  return `M${x0},${y0}H${x1}V${y1}H${x0}Z`;
}

function contains({ left, right, bottom, top }, { x, y }) {
  return left <= x && x < right && bottom <= y && y < top;
}

function describe(index) {
  const number = buffers.category[index];
  const where = `${formatCount(buffers.start[index])} to ${formatCount(buffers.end[index])}, offset ${formatBytes(buffers.offset[index])}`;
  const names = [textOf("module", index), textOf("source", index), textOf("op", index)].filter((name) => name).join(" \u00b7 ");
  return [
    categoryKey(number),
    element("b", {}, `${formatBytes(buffers.size_bytes[index])} ${textOf("array", index)}`),
    ` ${categories[number].name}, positions ${where}`,
    element("div", { class: "quiet" }, names),
  ];
}
