// A page of tables alone: words search the rows of all of them, and the name of a configuration is lit up where it stands.

const contents = document.querySelector(".contents");
const rows = [...document.querySelectorAll("main tbody tr")];
const search = element("input", { type: "search", placeholder: "search rows  /", "aria-label": "search the rows of all tables; arrow down goes to what was found" });
const count = element("span", { class: "quiet", role: "status" });
const names = new Set([...document.querySelectorAll(".bar-label")].map((label) => label.textContent));
const opened = [...address];

function depthOf(row) {
  return Number(row.cells[0].style.getPropertyValue("--depth"));
}

// The text of each row, after the names of what it is nested in.
const texts = (() => {
  const path = [];
  return rows.map((row) => {
    path.splice(depthOf(row), Infinity, row.cells[0].textContent);
    return `${path.join("/")} ${row.textContent}`.toLowerCase();
  });
})();

// A row is shown with what it is nested in.
function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter((word) => word);
  rows.forEach((row, number) => (row.hidden = !words.every((word) => texts[number].includes(word))));
  let below = 0;
  for (const row of rows.toReversed()) {
    if (depthOf(row) < below) row.hidden = false;
    if (!row.hidden) below = depthOf(row);
  }
  for (const table of document.querySelectorAll("main table")) table.hidden = ![...table.tBodies[0].rows].some((row) => !row.hidden);
  const numShown = rows.filter((row) => !row.hidden).length;
  count.textContent = words.length ? `${numShown} of ${rows.length}` : "";
  remember("q", search.value);
}

function showNamed(name) {
  for (const place of document.querySelectorAll("tbody tr, .bar-label, thead th, .note")) {
    place.classList.toggle("named", nameOf(place) === name);
  }
  remember("row", name);
  reveal(document.querySelector("tbody tr.named"));
}

// The configuration that a row, a bar, a column or the beginning of a sentence is about.
function nameOf(place) {
  const text = (place.cells ? place.cells[0] : place).textContent;
  const bare = text.replace(/^[^\p{L}\p{N}]+/u, "");
  return names.has(bare) ? bare : place.matches(".note") && names.has(bare.split(": ")[0]) ? bare.split(": ")[0] : null;
}

function linkNames() {
  for (const place of document.querySelectorAll("tbody tr, .bar-label")) {
    const name = nameOf(place);
    const within = place.cells ? place.cells[0] : place;
    if (name) within.replaceChildren(linkTo("row", name, ...within.childNodes));
  }
}

function onKey(event) {
  const shown = [...document.querySelectorAll("main tbody tr:not([hidden])")]; // as they are sorted now
  const now = shown.indexOf(event.target.closest("tbody tr"));
  if (event.key === "Escape") {
    search.value = "";
    filter();
    reveal(search);
  } else if (event.key === "ArrowDown" || (event.key === "ArrowUp" && now >= 0)) {
    event.preventDefault();
    const next = now + (event.key === "ArrowDown" ? 1 : -1);
    reveal(next < 0 ? search : shown[Math.min(next, shown.length - 1)]);
  }
}

if (rows.length) {
  contents.append(element("span", { class: "search" }, search, count));
  search.addEventListener("input", () => {
    filter();
    rows.find((row) => !row.hidden)?.scrollIntoView({ block: "center" });
  });
  search.addEventListener("keydown", onKey);
  for (const body of document.querySelectorAll("main tbody")) body.addEventListener("keydown", onKey);
  onSlash(search, contents);
  onAddress("q", (value) => {
    search.value = value;
    filter();
  });
  onAddress("row", showNamed);
  linkNames();
  for (const [key, value] of opened) shows.get(key)?.(value);
}
