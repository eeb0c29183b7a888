// The table of all buffers: searched, sorted, opened. Only the rows that are looked at are made.

const ROWS_AT_A_TIME = 25;
const COLUMNS = [
  { title: "size", isNumber: true, value: (index) => buffers.size_bytes[index], text: (index) => formatBytes(buffers.size_bytes[index]) },
  { title: "array", value: (index) => textOf("array", index) },
  { title: "category", value: (index) => categories[buffers.category[index]].name },
  { title: "module", value: (index) => textOf("module", index), isLong: true },
  { title: "phase", value: (index) => textOf("phase", index) },
  { title: "live", isNumber: true, value: (index) => buffers.start[index] },
  { title: "source", value: (index) => textOf("source", index), isLong: true },
  { title: "operation", value: (index) => textOf("op", index), isLong: true },
];
const SEARCHED = ["array", "module", "op", "name", "source", "why"];

function drawBuffers() {
  const table = document.getElementById("buffer-table");
  const search = document.getElementById("buffer-search");
  const category = document.getElementById("buffer-category");
  const all = document.getElementById("buffer-all");
  const more = document.getElementById("buffer-more");
  let sorting = { column: COLUMNS[0], sign: -1 };
  let numRows = ROWS_AT_A_TIME;

  const present = categories.filter((_, number) => buffers.category.includes(number));
  category.append(...present.map(({ name, letter }) => element("option", { value: name }, `${letter} ${name}`)));
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

  function matching() {
    const words = search.value.toLowerCase().split(/\s+/).filter((word) => word);
    const found = [];
    const last = all.checked ? numBuffers : report.num_at_peak;
    for (let index = 0; index < last; index += 1) {
      if (category.value && categories[buffers.category[index]].name !== category.value) continue;
      const text = () => `${SEARCHED.map((field) => textOf(field, index)).join("\n")}\n${categories[buffers.category[index]].name}`.toLowerCase();
      if (!words.length || ((haystack) => words.every((word) => haystack.includes(word)))(text())) found.push(index);
    }
    const { column, sign } = sorting;
    const order = (a, b) => (a < b ? -sign : a > b ? sign : 0);
    return found.map((index) => [column.value(index), index]).sort(([a], [b]) => order(a, b)).map(([, index]) => index);
  }

  function redraw() {
    const found = matching();
    table.tBodies[0].replaceChildren(...found.slice(0, numRows).map(bufferRow));
    heads.forEach((head, number) => {
      const isSorted = COLUMNS[number] === sorting.column;
      head.setAttribute("aria-sort", isSorted ? (sorting.sign > 0 ? "ascending" : "descending") : "none");
    });
    const bytes = found.reduce((sum, index) => sum + buffers.size_bytes[index], 0);
    document.getElementById("buffer-count").textContent = `${formatCount(found.length)} buffers, ${formatBytes(bytes)}${all.checked ? " (not all at one time)" : ""}`;
    more.hidden = found.length <= numRows;
  }

  function restart() {
    numRows = ROWS_AT_A_TIME;
    redraw();
  }

  search.addEventListener("input", restart);
  category.addEventListener("change", restart);
  all.addEventListener("change", restart);
  more.addEventListener("click", () => {
    numRows += 8 * ROWS_AT_A_TIME;
    redraw();
  });
  redraw();
}

function bufferRow(index) {
  const cells = COLUMNS.map((column) => {
    const text = (column.text ?? column.value)(index);
    const cell = element("td", { class: column.isNumber ? "number" : column.isLong ? "long" : "" });
    if (column.title === "size") {
      const opener = element("button", { type: "button", class: "button", "aria-expanded": "false" }, text);
      opener.addEventListener("click", () => toggleDetails(opener, index));
      cell.append(opener);
    } else if (column.title === "category") cell.append(categoryKey(buffers.category[index]), text);
    else if (column.title === "live") cell.append(lifetime(index));
    else cell.append(text);
    return cell;
  });
  return element("tr", {}, ...cells);
}

function lifetime(index) {
  const { start, end } = buffers;
  const scale = 100 / Math.max(timeline.num_positions, 1);
  const bar = element("i", { style: `left:${start[index] * scale}%;width:${(end[index] - start[index] + 1) * scale}%` });
  const text = `${formatCount(start[index])} to ${formatCount(end[index])}`;
  return element("span", { class: "life", role: "img", title: text, "aria-label": text }, bar);
}

function toggleDetails(opener, index) {
  const row = opener.closest("tr");
  const isOpen = opener.getAttribute("aria-expanded") === "true";
  opener.setAttribute("aria-expanded", String(!isOpen));
  row.classList.toggle("opened", !isOpen);
  if (isOpen) row.nextElementSibling.remove();
  else row.after(element("tr", { class: "opened" }, element("td", { class: "details", colspan: COLUMNS.length }, ...details(index))));
}

function details(index) {
  const offset = buffers.offset[index];
  const facts = [
    ["size", `${formatCount(buffers.size_bytes[index])} bytes`],
    ["operation", textOf("op", index)],
    ["instruction", textOf("name", index)],
    ["source", textOf("source", index)],
    ["live", `positions ${formatCount(buffers.start[index])} to ${formatCount(buffers.end[index])} of ${formatCount(timeline.num_positions)}`],
    ["offset", offset === null ? "outside the temp block" : `${formatCount(offset)} in the temp block`],
    ["why", textOf("why", index)],
  ];
  const list = facts.filter(([, text]) => text).flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]);
  const source = report.sources[buffers.source[index]];
  return [element("dl", { class: "facts" }, ...list), ...(source ? [sourceText(source)] : [])];
}

function sourceText({ first_line: first, line, lines }) {
  const shown = lines.map((text, number) => {
    const parts = [element("span", { class: "number" }, String(first + number)), text, "\n"];
    return element(first + number === line ? "mark" : "span", {}, ...parts);
  });
  return element("pre", {}, ...shown);
}
