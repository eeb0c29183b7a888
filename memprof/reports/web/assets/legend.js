// Legends: pressing a category lights it up and dims the others, in all that stands beside the legend. On the page of a
// report it is the category of the whole page: of the charts, the flame graph and the buffers; and it is in the address.

const followers = []; // of the page's category
let chosenCategory = null;

function onCategory(follower) {
  followers.push(follower);
}

function chooseCategory(name) {
  if (name === chosenCategory) return;
  chosenCategory = name;
  remember("category", name);
  for (const legend of document.querySelectorAll(".legend")) lightUp(legend.parentElement, legend, name);
  for (const follower of followers) follower(name);
}

function makeLegend(legend) {
  const scope = legend.parentElement;
  for (const item of legend.children) {
    const name = item.querySelector("[data-category]").dataset.category;
    const button = element("button", { type: "button", "aria-pressed": "false" }, ...item.childNodes);
    item.append(button);
    button.addEventListener("click", () => {
      const next = scope.dataset.only === name ? null : name;
      if (followers.length) chooseCategory(next);
      else lightUp(scope, legend, next);
    });
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
