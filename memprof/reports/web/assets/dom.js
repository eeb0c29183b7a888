// Makes elements, whose texts are never markup.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function plainTable(titles, rows) {
  const head = element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col", class: title === "size" ? "number" : "" }, title))));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, column) => element("td", { class: titles[column] === "size" ? "number" : titles[column] === "module" || titles[column] === "source" ? "long" : "" }, cell))));
  return element("table", {}, head, element("tbody", {}, ...body));
}
