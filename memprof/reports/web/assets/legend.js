// Legends: pressing a category lights it up and dims the others, in all that stands beside the legend.

function makeLegend(legend) {
  const scope = legend.parentElement;
  for (const item of legend.children) {
    const name = item.querySelector("[data-category]").dataset.category;
    const button = element("button", { type: "button", "aria-pressed": "false" }, ...item.childNodes);
    item.append(button);
    button.addEventListener("click", () => lightUp(scope, legend, scope.dataset.only === name ? null : name));
  }
}

function lightUp(scope, legend, name) {
  if (name === null) delete scope.dataset.only;
  else scope.dataset.only = name;
  for (const part of scope.querySelectorAll(".part, svg path")) part.classList.toggle("lit", part.dataset.category === name);
  for (const item of legend.children) {
    const isLit = item.querySelector("[data-category]").dataset.category === name;
    item.firstElementChild.setAttribute("aria-pressed", String(isLit));
  }
}
