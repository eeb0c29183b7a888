// Tables that are in the page already: a click on a title sorts the rows by that column.

const QUANTITY = /^([+-]?[\d,.]+)( B| [KMGTPE]iB| ?[KMGTPE]|B|Q|x|%)?$/;
const FACTORS = { " KiB": 2 ** 10, " MiB": 2 ** 20, " GiB": 2 ** 30, " TiB": 2 ** 40, " PiB": 2 ** 50, " EiB": 2 ** 60 };
const COUNT_FACTORS = { K: 1e3, M: 1e6, G: 1e9, B: 1e9, T: 1e12, P: 1e15, Q: 1e15, E: 1e18 };

function sortValue(cell) {
  const bar = cell.querySelector(".cell-bar");
  if (bar) return parseFloat(bar.style.width);
  const text = cell.textContent.trim();
  const match = text.replace("<", "").match(QUANTITY);
  if (match) {
    const [, digits, unit = ""] = match;
    // "512 B" are bytes, "1.5B" are billions.
    const factor = FACTORS[unit] ?? (unit === " B" ? 1 : COUNT_FACTORS[unit.trim()] ?? 1);
    return parseFloat(digits.replaceAll(",", "")) * factor;
  }
  return text === "-" ? 0 : text.toLowerCase();
}

function compareValues(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.textContent) return;
    const button = element("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const isNumber = head.classList.contains("number");
      const now = head.getAttribute("aria-sort");
      const isDescending = now ? now === "ascending" : isNumber;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].map((row) => [sortValue(row.cells[column]), row]);
      rows.sort(([a], [b]) => (isDescending ? -1 : 1) * compareValues(a, b));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}
