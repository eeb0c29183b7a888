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
onSlash(search, document.getElementById("buffers-section"));
document.documentElement.setAttribute("data-ready", "");
