// Puts the interactive charts and the table of all buffers into their places, and opens the page as its address says.

const chart = document.querySelector('[data-chart="timeline"]');
const opened = [...address];
if (chart) drawTimeline(chart);
drawFlame(document.getElementById("flame"), document.getElementById("flame-by"));
drawAddressMap(document.getElementById("map"), document.getElementById("map-panel"));
drawBuffers();
for (const place of document.querySelectorAll("[data-link]")) {
  place.replaceWith(element("a", { href: `#${place.dataset.link}` }, ...place.childNodes));
}
for (const [key, value] of opened) shows.get(key)?.(value);

const search = document.getElementById("buffer-search");
const searcher = element("button", { type: "button", class: "button", title: "search the buffers" }, "search ", element("kbd", {}, "/"));
searcher.addEventListener("click", () => reveal(search));
document.querySelector(".contents").append(searcher);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input[type=search], select")) return;
  event.preventDefault();
  document.getElementById("buffers-section").scrollIntoView();
  search.focus({ preventScroll: true });
});
document.documentElement.setAttribute("data-ready", "");
