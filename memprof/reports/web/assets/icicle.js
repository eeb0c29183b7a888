// The peak as a tree: modules, operations, buffers. A box has the colour of the category that most of it belongs to,
// paler the more of it belongs to others.

const SMALLEST_SHARE = 5e-4; // of the peak; what is smaller goes into one box together

function peakTree() {
  const root = { label: "live at the peak", size: 0, sizes: categories.map(() => 0), children: new Map() };
  for (let index = 0; index < report.num_at_peak; index += 1) {
    const module = textOf("module", index);
    const op = textOf("op", index).split("/").pop() || textOf("name", index) || "(no name)";
    const path = [...(module ? module.split("/") : ["(no module)"]), op, `${textOf("array", index)} #${index + 1}`];
    let node = root;
    add(node, index);
    for (const label of path) {
      if (!node.children.has(label)) node.children.set(label, { label, size: 0, sizes: categories.map(() => 0), children: new Map() });
      node = node.children.get(label);
      add(node, index);
    }
  }
  return root;
}

function add(node, index) {
  node.size += buffers.size_bytes[index];
  node.sizes[buffers.category[index]] += buffers.size_bytes[index];
}

function boxes(root) {
  const found = { ids: [], labels: [], parents: [], values: [], colors: [], texts: [] };
  const visit = (node, id, parent) => {
    found.ids.push(id);
    found.labels.push(plain(node.label));
    found.parents.push(parent);
    found.values.push(node.size);
    found.colors.push(boxColor(node));
    found.texts.push(boxText(node, root.size));
    const [large, small] = [[], []];
    for (const child of node.children.values()) (child.size >= root.size * SMALLEST_SHARE ? large : small).push(child);
    large.forEach((child, number) => visit(child, `${id}/${number}`, id));
    if (small.length) {
      const size = small.reduce((sum, child) => sum + child.size, 0);
      const sizes = categories.map((_, number) => small.reduce((sum, child) => sum + child.sizes[number], 0));
      visit({ label: `${small.length} smaller`, size, sizes, children: new Map() }, `${id}/small`, id);
    }
  };
  visit(root, "0", "");
  return found;
}

// plotly.js reads a few tags and entities in labels: what the program calls its things must not become any.
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function mainCategory(node) {
  return node.sizes.reduce((best, size, number) => (size > node.sizes[best] ? number : best), 0);
}

function boxColor(node) {
  const number = mainCategory(node);
  const share = node.size ? node.sizes[number] / node.size : 0;
  const amount = node.children.size ? 0.25 + 0.5 * share : 1;
  const channel = (at) => {
    const value = parseInt(categories[number].color.slice(at, at + 2), 16);
    return Math.round(255 + (value - 255) * amount);
  };
  return `rgb(${channel(1)},${channel(3)},${channel(5)})`;
}

function boxText(node, total) {
  const parts = node.sizes
    .map((size, number) => [size, number])
    .filter(([size]) => size)
    .sort(([a], [b]) => b - a)
    .slice(0, 5)
    .map(([size, number]) => `${categories[number].letter} ${categories[number].name} ${formatBytes(size)}`);
  return [`${formatBytes(node.size)}, ${formatShare(node.size, total)} of the peak`, ...parts].map(plain).join("<br>");
}

function drawIcicle(plot) {
  const found = boxes(peakTree());
  plot.replaceChildren();
  const draw = () =>
    Plotly.react(
      plot,
      [
        {
          type: "icicle",
          ids: found.ids,
          labels: found.labels,
          parents: found.parents,
          values: found.values,
          text: found.values.map((size) => plain(formatBytes(size))),
          customdata: found.texts,
          branchvalues: "total",
          sort: true,
          maxdepth: isNarrow() ? 3 : 4,
          tiling: { orientation: isNarrow() ? "v" : "h", pad: 1 },
          marker: { colors: found.colors, line: { width: 1, color: color("background") } },
          textinfo: "label+text",
          textfont: { color: report.ink },
          pathbar: { textfont: { color: report.ink } },
          hovertemplate: "<b>%{label}</b><br>%{customdata}<extra></extra>",
        },
      ],
      themed({ height: 560, uniformtext: { minsize: 11, mode: "hide" }, margin: { l: 4, r: 4, t: 30, b: 4 } }),
      PLOT_CONFIG,
    );
  draw();
  onThemeChange(draw);
}
