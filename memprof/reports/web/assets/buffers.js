// The table of all buffers: searched, sorted, opened. Buffers that differ in their layer alone are one row. Only the rows
// that are looked at are made.

const ROWS_AT_A_TIME = 10;
const COLUMNS = [
  { title: "size", isNumber: true, value: (index, group) => bytesOf(group), cell: (index, group) => openerOf(index, group) },
  { title: "count", isNumber: true, value: (index, group) => group.length, cell: (index, group) => formatCount(group.length) },
  { title: "array", value: (index) => textOf("array", index) },
  { title: "category", value: (index) => categories[buffers.category[index]].name, cell: (index) => forMouse(categoryLink(buffers.category[index])) },
  { title: "module", value: (index) => textOf("module", index), cell: (index, group) => moduleLink(moduleOf(group)) },
  { title: "phase", value: (index) => textOf("phase", index), cell: (index) => forMouse(linkTo("phase", textOf("phase", index), textOf("phase", index))) },
  { title: "live", isNumber: true, value: (index) => buffers.start[index], cell: (index) => lifetime(index) },
  { title: "source", value: (index) => textOf("source", index), cell: (index) => forMouse(element("span", {}, editorLink(textOf("source", index)))) },
  { title: "operation", value: (index) => textOf("op", index) },
];
const SEARCHED = ["array", "module", "op", "name", "source", "why"];

const PLACES = ["ArrowDown", "ArrowUp"];
const anyLayer = kept((name) => report.strings[name].replace(/(?<=[_/])\d+(?=\/|$)/g, "*"));

// What buffers that differ in their layer alone have in common.
const kindOf = kept((index) => {
  const { array, category, phase, module, op, source } = buffers;
  return [array[index], category[index], phase[index], source[index], anyLayer(module[index]), anyLayer(op[index])].join();
});

function moduleOf([index, ...others]) {
  const module = textOf("module", index);
  if (!others.some((other) => textOf("module", other) !== module)) return module;
  return foldedModule(index) === module ? anyLayer(buffers.module[index]) : foldedModule(index);
}

function bytesOf(group) {
  return group.reduce((sum, index) => sum + buffers.size_bytes[index], 0);
}

function drawBuffers() {
  const table = document.getElementById("buffer-table");
  const count = document.getElementById("buffer-count");
  const search = document.getElementById("buffer-search");
  const all = document.getElementById("buffer-all");
  const more = document.getElementById("buffer-more");
  const allBuffers = buffers.module.map((_, index) => index);
  const present = (field) => [...new Set(buffers[field])];
  const changed = Object.fromEntries(Object.entries(report.advice).map(([what, numbers]) => [what, new Set(numbers)]));
  const filters = {
    category: choice("category", present("category").map((number) => categories[number].name), (index, value) => categories[buffers.category[index]].name === value),
    module: choice("module", allBuffers.map(foldedModule).filter((name) => name), (index, value) => [foldedModule(index), textOf("module", index), anyLayer(buffers.module[index])].some((name) => isWithin(name, value))),
    phase: choice("phase", present("phase").map((number) => report.strings[number]), (index, value) => textOf("phase", index) === value),
    advice: choice("advice", Object.keys(changed), (index, value) => changed[value]?.has(index)),
  };
  let sorting = { column: COLUMNS[0], sign: -1 };
  let numRows = ROWS_AT_A_TIME;
  let shown = [];

  const heads = COLUMNS.map((column) => {
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      const sign = sorting.column === column ? -sorting.sign : column.isNumber ? -1 : 1;
      sorting = { column, sign };
      redraw();
    });
    return element("th", { scope: "col", class: column.isNumber ? "number" : "" }, button);
  });
  table.tHead.append(element("tr", {}, ...heads));

  // A selection of one value; a link may ask for a value that is not among those it offers.
  function choice(key, values, matches) {
    const select = document.getElementById(`buffer-${key}`);
    const offer = (value) => select.append(element("option", { value }, value));
    [...new Set(values)].sort().forEach(offer);
    const take = (value) => {
      if (value && ![...select.options].some((option) => option.value === value)) offer(value);
      select.value = value;
      restart();
    };
    if (key === "category") {
      onCategory((name) => take(name ?? ""));
      select.addEventListener("change", () => chooseCategory(select.value || null));
    } else {
      select.addEventListener("change", restart);
    }
    onAddress(key, (value) => {
      if (key === "category") chooseCategory(value);
      else take(value);
      document.getElementById("buffers-section").scrollIntoView();
      reveal(select);
    });
    return { key, select, matches };
  }

  function matching() {
    const words = search.value.toLowerCase().split(/\s+/).filter((word) => word);
    const asked = Object.values(filters).filter(({ select }) => select.value);
    const found = [];
    const last = all.checked ? numBuffers : report.num_at_peak;
    for (let index = 0; index < last; index += 1) {
      if (!asked.every(({ select, matches }) => matches(index, select.value))) continue;
      const text = () => `${SEARCHED.map((field) => textOf(field, index)).join("\n")}\n${categories[buffers.category[index]].name}`.toLowerCase();
      if (!words.length || ((haystack) => words.every((word) => haystack.includes(word)))(text())) found.push(index);
    }
    const { column, sign } = sorting;
    const order = (a, b) => (a < b ? -sign : a > b ? sign : 0);
    const groups = [...groupedBy(found, kindOf).values()];
    return groups.map((group) => [column.value(group[0], group), group]).sort(([a], [b]) => order(a, b)).map(([, group]) => group);
  }

  function redraw() {
    shown = matching();
    table.tBodies[0].replaceChildren(...shown.slice(0, numRows).map(bufferRow));
    heads.forEach((head, number) => {
      const isSorted = COLUMNS[number] === sorting.column;
      head.setAttribute("aria-sort", isSorted ? (sorting.sign > 0 ? "ascending" : "descending") : "none");
    });
    const bytes = shown.reduce((sum, group) => sum + bytesOf(group), 0);
    const number = shown.reduce((sum, group) => sum + group.length, 0);
    count.textContent = `${formatCount(number)} buffers, ${formatBytes(bytes)}${all.checked ? " (not all at one time)" : ""}`;
    more.hidden = shown.length <= numRows;
  }

  function restart() {
    numRows = ROWS_AT_A_TIME;
    redraw();
    remember("q", search.value);
    for (const { key, select } of Object.values(filters)) if (key !== "category") remember(key, select.value);
    remember("all", all.checked ? "yes" : null);
  }

  function showMore(num) {
    numRows += num;
    redraw();
  }

  // Opens the row of one buffer, whatever is searched.
  function openBuffer(index) {
    if (!(index >= 0 && index < numBuffers)) return;
    if (!shown.some((group) => group.includes(index))) {
      search.value = "";
      chooseCategory(null);
      for (const { select } of Object.values(filters)) select.value = "";
      all.checked ||= index >= report.num_at_peak;
      restart();
    }
    const place = shown.findIndex((group) => group.includes(index));
    if (place >= numRows) showMore(place + 1 - numRows);
    const opener = table.querySelector(`button[data-buffer="${shown[place][0]}"]`);
    if (opener.getAttribute("aria-expanded") === "true") toggleDetails(opener);
    toggleDetails(opener, index, shown[place]);
    reveal(opener);
    opener.closest("tr").scrollIntoView({ block: "center" });
  }

  function onKey(event) {
    const openers = [...table.querySelectorAll("tbody button[data-buffer]")];
    const now = openers.indexOf(event.target);
    if (PLACES.includes(event.key) && (now >= 0 || event.target === search)) {
      event.preventDefault();
      const next = now + (event.key === "ArrowDown" ? 1 : -1);
      reveal(next < 0 ? search : openers[Math.min(next, openers.length - 1)]);
    } else if (event.key === "Escape" && event.target === search) {
      search.value = "";
      restart();
    } else if (event.key === "Escape" && table.contains(event.target)) {
      const details = event.target.closest("td.details");
      const opener = details ? details.parentElement.previousElementSibling.querySelector("button") : event.target;
      if (opener.getAttribute("aria-expanded") === "true") opener.click();
      reveal(details ? opener : search);
    }
  }

  search.addEventListener("input", restart);
  search.addEventListener("keydown", onKey);
  table.addEventListener("keydown", onKey);
  all.addEventListener("change", restart);
  more.addEventListener("click", () => showMore(8 * ROWS_AT_A_TIME));
  onAddress("q", (value) => {
    search.value = value;
    restart();
    reveal(search);
  });
  onAddress("all", () => {
    all.checked = true;
    restart();
  });
  onAddress("buffer", (value) => openBuffer(Number(value) - 1));
  redraw();
}

function isWithin(module, value) {
  return module === value || module.startsWith(`${value}/`);
}

function bufferRow(group) {
  const [index] = group;
  const cells = COLUMNS.map((column) => {
    const cell = element("td", { class: column.isNumber ? "number" : "" });
    cell.append(column.cell ? column.cell(index, group) : column.value(index, group));
    return cell;
  });
  return element("tr", {}, ...cells);
}

function openerOf(index, group) {
  const opener = element("button", { type: "button", class: "button", "data-buffer": index, "aria-expanded": "false" }, formatBytes(bytesOf(group)));
  opener.addEventListener("click", () => toggleDetails(opener, index, group));
  return opener;
}

// The links of a row are for the mouse; the keyboard finds them in its details.
function forMouse(place) {
  for (const link of [place, ...place.children]) if (link.matches("a")) link.setAttribute("tabindex", -1);
  return place;
}

function moduleLink(module) {
  return module ? forMouse(linkTo("module", module, module)) : "";
}

function lifetime(index) {
  const { start, end, category } = buffers;
  const scale = 100 / Math.max(timeline.num_positions, 1);
  const style = `left:${start[index] * scale}%;width:${(end[index] - start[index] + 1) * scale}%`;
  const text = `live from ${formatCount(start[index])} to ${formatCount(end[index])}`;
  const link = forMouse(linkTo("at", start[index], element("i", { style, "data-category": categories[category[index]].name })));
  for (const [name, value] of [["class", "life"], ["title", text], ["aria-label", text]]) link.setAttribute(name, value);
  return link;
}

// Of several alike buffers the details are those of one, with links to the others.
function toggleDetails(opener, index, group = []) {
  const row = opener.closest("tr");
  const isOpen = opener.getAttribute("aria-expanded") === "true";
  opener.setAttribute("aria-expanded", String(!isOpen));
  row.classList.toggle("opened", !isOpen);
  remember("buffer", isOpen ? null : index + 1);
  if (isOpen) return row.nextElementSibling.remove();
  const others = group.length > 1 ? [alike(group, index)] : [];
  row.after(element("tr", { class: "opened" }, element("td", { class: "details", colspan: COLUMNS.length }, element("div", {}, ...others, ...details(index)))));
}

const MAX_ALIKE = 200;

function alike(group, index) {
  const links = group.slice(0, MAX_ALIKE).map((each) => {
    const name = textOf("module", each) || textOf("name", each) || `#${each + 1}`;
    return element("li", {}, each === index ? element("b", {}, name) : linkTo("buffer", each + 1, name));
  });
  const title = element("h3", {}, `one of ${formatCount(group.length)} alike, of ${formatBytes(buffers.size_bytes[index])} each`);
  return element("div", {}, title, element("ul", { class: "alike" }, ...links));
}
