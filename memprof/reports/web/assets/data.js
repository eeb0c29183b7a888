// The report that the page carries, and what is asked of it.

const report = JSON.parse(document.getElementById("data").textContent);
const { buffers, timeline, categories } = report;
const numBuffers = buffers.size_bytes.length;
const textOf = (field, index) => report.strings[buffers[field][index]];
const foldedModule = (index) => report.strings[report.modules[buffers.module[index]] ?? buffers.module[index]]; // equal layers are one

// Live bytes after each change; -1 stands for the time before the first.
const totals = (() => {
  let total = timeline.base.reduce((sum, size) => sum + size, 0);
  return [total, ...timeline.delta_bytes.map((delta) => (total += delta))];
})();
const peakChange = totals.indexOf(Math.max(...bounds(totals))) - 1;

// Math.max takes no list of any length.
function bounds(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function isLive(index, change) {
  return buffers.born[index] === null || (buffers.born[index] <= change && change < buffers.died[index]);
}

// The buffers that are live after a change, largest first.
function liveAfter(change) {
  const live = [];
  for (let index = 0; index < numBuffers; index += 1) if (isLive(index, change)) live.push(index);
  return live.sort((a, b) => buffers.size_bytes[b] - buffers.size_bytes[a]);
}

function phaseAt(position) {
  const span = timeline.phases.find(([, start, end]) => start <= position && position <= end);
  return span ? span[0] : "none";
}

// The highest moment of each slice of the positions from `first` to `last`: see analysis/records/timeline.py.
function moments(first, last, numSlices) {
  const found = [];
  const live = [...timeline.base];
  const length = last - first + 1;
  numSlices = Math.min(numSlices, length);
  let change = 0;
  const apply = () => {
    live[timeline.category[change]] += timeline.delta_bytes[change];
    change += 1;
  };
  while (change < timeline.position.length && timeline.position[change] < first) apply();
  for (let slice = 0; slice < numSlices; slice += 1) {
    const start = first + Math.floor((slice * length) / numSlices);
    const stop = first + Math.floor(((slice + 1) * length) / numSlices);
    let best = { position: start, change: change - 1, live: [...live] };
    while (change < timeline.position.length && timeline.position[change] < stop) {
      apply();
      if (totals[change] > totals[best.change + 1]) {
        best = { position: timeline.position[change - 1], change: change - 1, live: [...live] };
      }
    }
    found.push(best);
  }
  return found;
}

// Puts a small box beside a point of the window, inside of it.
function placeTip(tip, x, y) {
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(0, x + 14 + width > document.documentElement.clientWidth ? x - 14 - width : x + 14)}px`;
  tip.style.top = `${y + 14 + height > window.innerHeight ? Math.max(0, y - 14 - height) : y + 14}px`;
}

function categoryKey(number) {
  return element("b", { class: "key", "data-category": categories[number].name }, categories[number].letter);
}

function legendOf(numbers) {
  const items = numbers.map((number) => element("li", {}, categoryKey(number), categories[number].name));
  return element("ul", { class: "legend" }, ...items);
}

function stackOf(sizes) {
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const parts = sizes.map((size, number) => {
    const { name, letter } = categories[number];
    const tip = `${name}: ${formatBytes(size)}, ${formatShare(size, total)}`;
    const style = `width:${(100 * size) / (total || 1)}%`;
    return element("span", { class: "part", "data-category": name, style, title: tip }, size > total * 0.02 ? letter : "");
  });
  return element("div", { class: "stack" }, ...parts.filter((_, number) => sizes[number]));
}
