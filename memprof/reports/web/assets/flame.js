// The peak as a flame graph: a box for each call, module or category, below the one that it is part of, and as wide as
// its bytes. A box has the colour of the category that most of it belongs to, paler the more of it belongs to others; a
// module has a colour of its own, the same in all layers.

const NARROWEST_BOX = 0.0015; // of the width; what is narrower goes into one box together
const NARROWEST_TEXT = 0.02;
const LEVEL_HEIGHT = 21; // pixels, as in page.css
const MAX_CATEGORIES = 5;
const HUE_STEP = 137.5; // degrees: the golden angle, so that modules that follow each other differ the most
// The names around the operation of a buffer, from the root on: see memprof/reports/views/hierarchies.py.
const HIERARCHIES = {
  stack: (index) => callsOf(report.calls.of[index]),
  module: (index) => modulesOf(foldedModule(index)),
  category: (index) => categoriesOf(`${categories[buffers.category[index]].name}/${foldedModule(index)}`),
};
const callsOf = kept((number) => report.calls.paths[number].map((label) => report.strings[label]));
const modulesOf = kept((path) => path.split("/").map((name) => name || "(no module)"));
const categoriesOf = kept((path) => modulesOf(path));

// The same for each buffer with the same argument, made once.
function kept(make) {
  const made = new Map();
  return (key) => made.get(key) ?? made.set(key, make(key)).get(key);
}

// The name of a buffer's box at a depth, below the names around it; none below the array.
function nameAt(names, index, depth) {
  if (depth > names.length) return depth === names.length + 1 ? `${textOf("array", index)} #${index + 1}` : null;
  const op = textOf("op", index);
  return op.slice(op.lastIndexOf("/") + 1) || textOf("name", index) || "(no name)";
}

// Buffers with the same names around them, which go through most levels together.
function newBundle(names, members) {
  const bundle = { names, members, size: 0, sizes: categories.map(() => 0) };
  for (const index of members) {
    bundle.size += buffers.size_bytes[index];
    bundle.sizes[buffers.category[index]] += buffers.size_bytes[index];
  }
  return bundle;
}

function groupedBy(members, keyOf) {
  const groups = new Map();
  for (const member of members) {
    const key = keyOf(member);
    if (key === null) continue;
    const group = groups.get(key);
    if (group) group.push(member);
    else groups.set(key, [member]);
  }
  return groups;
}

// A box and what is in it. `rank` is its place among its parent's children; none for several of them together.
function newNode(label, parent, bundles, rank) {
  const node = { label, parent, bundles, rank, depth: parent ? parent.depth + 1 : 0, size: 0, sizes: categories.map(() => 0), groups: null };
  for (const { size, sizes } of bundles) {
    node.size += size;
    sizes.forEach((bytes, number) => (node.sizes[number] += bytes));
  }
  return node;
}

// What is in a box, largest first, as [name, bundles, bytes]. A large program has too many to make boxes of all.
function groupsOf(node) {
  if (node.groups) return node.groups;
  const { depth } = node;
  const bundles = node.bundles.flatMap((bundle) => {
    if (depth < bundle.names.length) return [[bundle.names[depth], bundle]];
    const parts = groupedBy(bundle.members, (index) => nameAt(bundle.names, index, depth));
    return [...parts].map(([name, members]) => [name, newBundle(bundle.names, members)]);
  });
  const groups = [...groupedBy(bundles, ([name]) => name)].map(([name, named]) => {
    const inside = named.map(([, bundle]) => bundle);
    return [name, inside, inside.reduce((sum, { size }) => sum + size, 0)];
  });
  return (node.groups = groups.sort((a, b) => b[2] - a[2]));
}

// The children; those that would be too narrow to see are one more, which can be zoomed into.
function visibleChildren(node, least) {
  const groups = groupsOf(node);
  const found = groups.findIndex(([, , size]) => size < least);
  const numLarge = found < 0 || found === groups.length - 1 ? groups.length : found;
  const large = groups.slice(0, numLarge).map(([name, bundles], rank) => newNode(name, node, bundles, rank));
  if (numLarge === groups.length) return large;
  const small = groups.slice(numLarge);
  const rest = newNode(`${formatCount(small.length)} smaller`, node, small.flatMap(([, bundles]) => bundles), null);
  rest.depth = node.depth;
  rest.groups = small;
  return [...large, rest];
}

// The node that ranks lead to from the root: "0.2.1"; the last that there is.
function nodeAt(root, ranks) {
  let node = root;
  for (const rank of ranks.split(".").map(Number)) {
    const group = groupsOf(node)[rank];
    if (!group) break;
    node = newNode(group[0], node, group[1], rank);
  }
  return node;
}

function largestCategories(node) {
  const found = node.sizes.map((size, number) => ({ size, number })).filter(({ size }) => size);
  return found.sort((a, b) => b.size - a.size).slice(0, MAX_CATEGORIES);
}

function drawFlame(place, choices) {
  const all = buffers.size_bytes.slice(0, report.num_at_peak).map((_, index) => index);
  let atPeak = all;
  const nodes = new Map(); // of the boxes
  const hues = new Map(); // of the modules, by their names
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

  function choose(name, ranks = "") {
    by = name;
    const bundles = [...groupedBy(atPeak, HIERARCHIES[by])].map(([names, members]) => newBundle(names, members));
    const root = newNode("live at the peak", null, bundles, 0);
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === `by ${by}`)));
    zoom(ranks ? nodeAt(root, ranks) : root);
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
    const ranks = around.slice(1).map(({ rank }) => rank);
    if (!ranks.includes(null)) remember("flame", by === "stack" && !ranks.length ? null : `${by} ${ranks.join(".")}`);
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
      deepest = Math.max(deepest, child.rank === null ? level + 1 : addBoxes(child, at, level + 1));
      at += part;
    }
    return deepest;
  }

  function boxOf(node, at, part, level) {
    const { number, size } = largestCategories(node)[0] ?? { number: 0, size: 0 };
    const purity = isArray(node) ? 1 : 0.25 + (0.5 * size) / (node.size || 1);
    const extent = `--level:${level};left:${100 * at}%;width:${100 * part}%`;
    const style = `${extent};${moduleColor(node) ?? `--purity:${Math.round(100 * purity)}%`}`;
    const text = part < NARROWEST_TEXT ? [] : [node.label, " ", element("small", {}, formatBytes(node.size))];
    const kind = zoomed !== node && pathTo(zoomed).includes(node) ? "box around" : "box";
    return element("button", { type: "button", class: kind, tabindex: -1, style, "aria-label": `${node.label}, ${formatBytes(node.size)}`, "data-category": categories[number].name, "data-level": level }, ...text);
  }

  // The colour of a module, and of the operations in it; none for an array, which has that of its category, and for several.
  function moduleColor(node) {
    if (by !== "module" || isArray(node) || node.rank === null || !node.parent) return null;
    const [{ names }] = node.bundles;
    const name = names[Math.min(node.depth, names.length) - 1];
    if (!hues.has(name)) hues.set(name, Math.round(HUE_STEP * hues.size) % 360);
    return `--c:oklch(70% 0.13 ${hues.get(name)});--purity:${node.depth > names.length ? 40 : 65}%`;
  }

  function open(box) {
    const node = nodes.get(box);
    if (!node) return;
    if (isArray(node)) return follow(`buffer=${node.bundles[0].members[0] + 1}`);
    zoom(node);
    boxNow().focus({ preventScroll: true });
  }

  function showTip(box, x, y) {
    const node = nodes.get(box);
    const shares = largestCategories(node).map(({ size, number }) => element("div", {}, categoryKey(number), `${categories[number].name} ${formatBytes(size)}`));
    tip.replaceChildren(element("b", {}, node.label), element("div", {}, `${formatBytes(node.size)}, ${formatShare(node.size, report.live_peak_bytes)} of the peak`), ...shares);
    placeTip(tip, x, y);
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
    const [name, ranks] = value.split(" ");
    if (Object.hasOwn(HIERARCHIES, name)) choose(name, ranks);
  });
  onCategory((name) => {
    atPeak = name === null ? all : all.filter((index) => categories[buffers.category[index]].name === name);
    choose(by);
  });
  choose("stack");
}

function isArray({ bundles, depth }) {
  return bundles.length === 1 && bundles[0].members.length === 1 && depth > bundles[0].names.length + 1;
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
