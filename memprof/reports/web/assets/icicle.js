// The peak as a tree: modules, operations, buffers, a column for each level. A box has the colour of the category that
// most of it belongs to, paler the more of it belongs to others.

const NUM_LEVELS = 4;
const HEIGHT = 560; // pixels, as in page.css
const LOWEST_BOX = 1.2; // pixels; what is lower goes into one box together
const LOWEST_TEXT = 14; // pixels
const MOST_CATEGORIES = 5;

function newNode(label, parent) {
  return { label, parent, size: 0, sizes: categories.map(() => 0), children: new Map() };
}

function peakTree() {
  const root = newNode("live at the peak", null);
  for (let index = 0; index < report.num_at_peak; index += 1) {
    const module = textOf("module", index);
    const op = textOf("op", index).split("/").pop() || textOf("name", index) || "(no name)";
    const path = [...(module ? module.split("/") : ["(no module)"]), op, `${textOf("array", index)} #${index + 1}`];
    let node = root;
    add(node, index);
    for (const label of path) {
      if (!node.children.has(label)) node.children.set(label, newNode(label, node));
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

// The children, largest first; those that would be too low to see are one more, which can be zoomed into.
function visibleChildren(node, lowest) {
  const children = [...node.children.values()].sort((a, b) => b.size - a.size);
  const numLarge = children.findIndex(({ size }) => size < lowest);
  if (numLarge < 0 || numLarge === children.length - 1) return children;
  const small = children.slice(numLarge);
  const rest = newNode(`${formatCount(small.length)} smaller`, node);
  for (const child of small) {
    rest.children.set(child.label, child);
    rest.size += child.size;
    child.sizes.forEach((size, number) => (rest.sizes[number] += size));
  }
  return [...children.slice(0, numLarge), rest];
}

function mainCategory(node) {
  return node.sizes.reduce((best, size, number) => (size > node.sizes[best] ? number : best), 0);
}

function largestCategories(node) {
  const found = node.sizes.map((size, number) => ({ size, number })).filter(({ size }) => size);
  return found.sort((a, b) => b.size - a.size).slice(0, MOST_CATEGORIES);
}

function drawIcicle(place) {
  const root = peakTree();
  const path = element("nav", { class: "path", "aria-label": "zoomed into" });
  const area = element("div", { class: "icicle", role: "group", "aria-label": "what is live at the peak; arrows move, Enter zooms in, Escape out" });
  const tip = element("div", { class: "tip", role: "status", hidden: "" });
  const nodes = new Map(); // of the boxes
  let zoomed = root;
  place.replaceChildren(path, area, tip);

  function zoom(node) {
    zoomed = node;
    nodes.clear();
    addBoxes(node, 0, 0);
    area.replaceChildren(...nodes.keys());
    area.firstElementChild?.setAttribute("tabindex", 0);
    path.replaceChildren(...pathTo(node).map(step));
    tip.hidden = true;
  }

  function addBoxes(node, from, level) {
    let at = from;
    for (const child of visibleChildren(node, (zoomed.size * LOWEST_BOX) / HEIGHT)) {
      nodes.set(boxOf(child, at / zoomed.size, level), child);
      if (level + 1 < NUM_LEVELS) addBoxes(child, at, level + 1);
      at += child.size;
    }
  }

  function boxOf(node, at, level) {
    const number = mainCategory(node);
    const part = node.size / zoomed.size;
    const purity = node.children.size ? 0.25 + (0.5 * node.sizes[number]) / node.size : 1;
    const style = `--level:${level};top:${100 * at}%;height:${100 * part}%;--purity:${Math.round(100 * purity)}%`;
    const text = part * HEIGHT < LOWEST_TEXT ? [] : [node.label, " ", element("small", {}, formatBytes(node.size))];
    const label = `${node.label}, ${formatBytes(node.size)}`;
    return element("button", { type: "button", class: "box", tabindex: -1, style, "aria-label": label, "data-category": categories[number].name, "data-level": level }, ...text);
  }

  function step(node) {
    const button = element("button", { type: "button", class: "button" }, `${node.label} ${formatBytes(node.size)}`);
    button.addEventListener("click", () => zoom(node));
    return button;
  }

  function zoomInto(box) {
    const node = nodes.get(box);
    if (!node?.children.size) return;
    zoom(node);
    area.firstElementChild.focus({ preventScroll: true });
  }

  function showTip(box, x, y) {
    const node = nodes.get(box);
    const shares = largestCategories(node).map(({ size, number }) => element("div", {}, categoryKey(number), `${categories[number].name} ${formatBytes(size)}`));
    tip.replaceChildren(element("b", {}, node.label), element("div", {}, `${formatBytes(node.size)}, ${formatShare(node.size, root.size)} of the peak`), ...shares);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(x + 14, document.documentElement.clientWidth - width))}px`;
    tip.style.top = `${y + 14 + height > window.innerHeight ? Math.max(0, y - 14 - height) : y + 14}px`;
  }

  const boxAt = (event) => event.target.closest(".box");
  area.addEventListener("click", (event) => zoomInto(boxAt(event)));
  area.addEventListener("pointermove", (event) => boxAt(event) && showTip(boxAt(event), event.clientX, event.clientY));
  area.addEventListener("pointerleave", () => (tip.hidden = true));
  area.addEventListener("focusout", () => (tip.hidden = true));
  area.addEventListener("keydown", (event) => {
    const next = neighbour([...nodes.keys()], document.activeElement, event.key);
    if (event.key === "Escape" && zoomed.parent) {
      zoom(zoomed.parent);
      area.firstElementChild.focus({ preventScroll: true });
    } else if (next) {
      event.preventDefault();
      next.focus();
      const { left, bottom } = next.getBoundingClientRect();
      showTip(next, left, bottom - 14);
    }
  });
  zoom(root);
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
  if (key === "ArrowDown") return after.find(isBeside);
  if (key === "ArrowUp") return before.find(isBeside);
  if (key === "ArrowLeft") return before.find((each) => level(each) < level(box));
  return key === "ArrowRight" && after.length && level(after[0]) > level(box) ? after[0] : undefined;
}
