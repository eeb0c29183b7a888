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
for (const code of document.querySelectorAll(".code")) code.append(copyButton(code.querySelector("code")));
for (const [key, value] of opened) shows.get(key)?.(value);

const search = document.getElementById("buffer-search");
const searcher = element("button", { type: "button", class: "button", title: "search the buffers" }, "search ", element("kbd", {}, "/"));
searcher.addEventListener("click", () => reveal(search));
document.querySelector(".contents").append(searcher);
onSlash(search, document.getElementById("buffers-section"));
document.documentElement.setAttribute("data-ready", "");

// Without a clipboard the code is selected, to be copied by hand.
function copyButton(code) {
  const button = element("button", { type: "button", class: "button" }, "copy");
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    const isCopied = await Promise.resolve(navigator.clipboard?.writeText(code.textContent)).then(() => Boolean(navigator.clipboard), () => document.execCommand("copy"));
    button.textContent = isCopied ? "copied" : "selected";
  });
  return button;
}
