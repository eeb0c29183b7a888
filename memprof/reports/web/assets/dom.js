// Makes elements, whose texts are never markup.
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function plainTable(titles, rows) {
  const head = element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col", class: title === "size" ? "number" : "" }, title))));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, column) => element("td", { class: titles[column] === "size" ? "number" : titles[column] === "module" || titles[column] === "source" ? "long" : "" }, cell))));
  return element("table", {}, head, element("tbody", {}, ...body));
}

// A path that breaks after a slash alone.
function breakable(path) {
  return path.split(/(?<=\/)/).flatMap((part, number) => (number ? [element("wbr", {}), part] : [part]));
}
