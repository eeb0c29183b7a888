// The peak as a flame graph: a box for each call, module or category, below the one that it is part of, and as wide as
// its bytes. A box has the colour of the category that most of it belongs to, paler the more of it belongs to others.

const NARROWEST_BOX = 0.0015; // of the width; what is narrower goes into one box together
const NARROWEST_TEXT = 0.02;
const LEVEL_HEIGHT = 21; // pixels, as in page.css
const MOST_CATEGORIES = 5;
// What stands around the operation of a buffer: see memprof/reports/hierarchies.py.
const HIERARCHIES = {
  stack: (index) => report.calls.paths[report.calls.of[index]].map((label) => report.strings[label]),
  module: (index) => foldedModule(index).split("/").map((name) => name || "(no module)"),
  category: (index) => [categories[buffers.category[index]].name, ...HIERARCHIES.module(index)],
};

function newNode(label, parent, number) {
  return { label, parent, number, buffer: null, size: 0, sizes: categories.map(() => 0), children: new Map() };
}

// Nodes are numbered in the order in which buffers reach them, the same for each page of one report.
function peakTree(around) {
  const nodes = [newNode("live at the peak", null, 0)];
  const child = (node, label) => {
    if (!node.children.has(label)) {
      nodes.push(newNode(label, node, nodes.length));
      node.children.set(label, nodes.at(-1));
    }
    return node.children.get(label);
  };
  for (let index = 0; index < report.num_at_peak; index += 1) {
    let node = nodes[0];
    add(node, index);
    const operation = textOf("op", index).split("/").pop() || textOf("name", index) || "(no name)";
    for (const label of [...around(index), operation]) add((node = child(node, label)), index);
    node = child(node, `${textOf("array", index)} #${index + 1}`);
    node.buffer = index;
    add(node, index);
  }
  return nodes;
}

function add(node, index) {
  node.size += buffers.size_bytes[index];
  node.sizes[buffers.category[index]] += buffers.size_bytes[index];
}

// The children, largest first; those that would be too narrow to see are one more, which can be zoomed into.
function visibleChildren(node, least) {
  const children = [...node.children.values()].sort((a, b) => b.size - a.size);
  const numLarge = children.findIndex(({ size }) => size < least);
  if (numLarge < 0 || numLarge === children.length - 1) return children;
  const small = children.slice(numLarge);
  const rest = newNode(`${formatCount(small.length)} smaller`, node, null);
  for (const child of small) {
    rest.children.set(child.label, child);
    rest.size += child.size;
    child.sizes.forEach((size, number) => (rest.sizes[number] += size));
  }
  return [...children.slice(0, numLarge), rest];
}

function largestCategories(node) {
  const found = node.sizes.map((size, number) => ({ size, number })).filter(({ size }) => size);
  return found.sort((a, b) => b.size - a.size).slice(0, MOST_CATEGORIES);
}

function drawFlame(place, choices) {
  const trees = new Map(); // of each hierarchy that was looked at
  const nodes = new Map(); // of the boxes
  const area = element("div", { class: "flame", role: "group", "aria-label": "what is live at the peak; arrows move, Enter zooms in, Escape out" });
  const tip = element("div", { class: "tip", role: "status", hidden: "" });
  let by = "stack";
  let zoomed = null;
  place.replaceChildren(area, tip);
  const buttons = Object.keys(HIERARCHIES).map((name) => {
    const button = element("button", { type: "button", class: "button" }, `by ${name}`);
    button.addEventListener("click", () => choose(name));
    return button;
  });
  choices.append(...buttons);

  function choose(name, number = 0) {
    by = name;
    if (!trees.has(by)) trees.set(by, peakTree(HIERARCHIES[by]));
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === `by ${by}`)));
    zoom(trees.get(by)[number] ?? trees.get(by)[0]);
  }

  function zoom(node) {
    zoomed = node;
    nodes.clear();
    const around = pathTo(node);
    around.forEach((each, level) => nodes.set(boxOf(each, 0, 1, level), each));
    const deepest = addBoxes(node, 0, around.length);
    area.style.height = `${deepest * LEVEL_HEIGHT}px`;
    area.replaceChildren(...nodes.keys());
    boxNow().setAttribute("tabindex", 0);
    tip.hidden = true;
    if (node.number !== null) remember("flame", by === "stack" && !node.parent ? null : `${by} ${node.number}`);
  }

  function boxNow() {
    return [...nodes.keys()].find((box) => nodes.get(box) === zoomed);
  }

  // Returns the number of levels down to the deepest box.
  function addBoxes(node, from, level) {
    let at = from;
    let deepest = level;
    for (const child of visibleChildren(node, zoomed.size * NARROWEST_BOX)) {
      const part = child.size / (zoomed.size || 1);
      nodes.set(boxOf(child, at, part, level), child);
      deepest = Math.max(deepest, child.number === null ? level + 1 : addBoxes(child, at, level + 1));
      at += part;
    }
    return deepest;
  }

  function boxOf(node, at, part, level) {
    const { number, size } = largestCategories(node)[0] ?? { number: 0, size: 0 };
    const purity = node.buffer === null ? 0.25 + (0.5 * size) / (node.size || 1) : 1;
    const style = `--level:${level};left:${100 * at}%;width:${100 * part}%;--purity:${Math.round(100 * purity)}%`;
    const text = part < NARROWEST_TEXT ? [] : [node.label, " ", element("small", {}, formatBytes(node.size))];
    const kind = zoomed !== node && pathTo(zoomed).includes(node) ? "box around" : "box";
    return element("button", { type: "button", class: kind, tabindex: -1, style, "aria-label": `${node.label}, ${formatBytes(node.size)}`, "data-category": categories[number].name, "data-level": level }, ...text);
  }

  function open(box) {
    const node = nodes.get(box);
    if (!node) return;
    if (node.buffer !== null) return follow(`buffer=${node.buffer + 1}`);
    zoom(node);
    boxNow().focus({ preventScroll: true });
  }

  function showTip(box, x, y) {
    const node = nodes.get(box);
    const shares = largestCategories(node).map(({ size, number }) => element("div", {}, categoryKey(number), `${categories[number].name} ${formatBytes(size)}`));
    tip.replaceChildren(element("b", {}, node.label), element("div", {}, `${formatBytes(node.size)}, ${formatShare(node.size, report.live_peak_bytes)} of the peak`), ...shares);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(x + 14, document.documentElement.clientWidth - width))}px`;
    tip.style.top = `${y + 14 + height > window.innerHeight ? Math.max(0, y - 14 - height) : y + 14}px`;
  }

  const boxAt = (event) => event.target.closest(".box");
  area.addEventListener("click", (event) => boxAt(event) && open(boxAt(event)));
  area.addEventListener("pointermove", (event) => boxAt(event) && showTip(boxAt(event), event.clientX, event.clientY));
  area.addEventListener("pointerleave", () => (tip.hidden = true));
  area.addEventListener("focusout", () => (tip.hidden = true));
  area.addEventListener("keydown", (event) => {
    const next = neighbour([...nodes.keys()], document.activeElement, event.key);
    if (event.key === "Escape" && zoomed.parent) {
      zoom(zoomed.parent);
      boxNow().focus({ preventScroll: true });
    } else if (next) {
      event.preventDefault();
      next.focus();
      const { left, bottom } = next.getBoundingClientRect();
      showTip(next, left, bottom - 14);
    }
  });
  onAddress("flame", (value) => {
    const [name, number] = value.split(" ");
    if (name in HIERARCHIES) choose(name, Number(number));
  });
  choose("stack");
}

function pathTo(node) {
  return node ? [...pathTo(node.parent), node] : [];
}

// Where an arrow leads: the boxes stand in the order of the tree, each before what is in it.
function neighbour(boxes, box, key) {
  const now = boxes.indexOf(box);
  const level = (each) => Number(each.dataset.level);
  const [before, after] = [boxes.slice(0, now).reverse(), boxes.slice(now + 1)];
  const isBeside = (each) => level(each) === level(box);
  if (key === "ArrowRight") return after.find(isBeside);
  if (key === "ArrowLeft") return before.find(isBeside);
  if (key === "ArrowUp") return before.find((each) => level(each) < level(box));
  return key === "ArrowDown" && after.length && level(after[0]) > level(box) ? after[0] : undefined;
}
