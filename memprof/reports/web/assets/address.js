// The address of the page: behind its "#" stands what is searched, selected and zoomed, as key=value. A link to anything
// is such an address, and a copy of the address opens the page as it stands.

const WRITE_AFTER = 200; // milliseconds; browsers let a page write its address some two hundred times in half a minute

const shows = new Map(); // what shows the value of a key
const address = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
let isToBeWritten = false;

// `show` gets the value from the address that the page was opened with, and from each link that is followed.
function onAddress(key, show) {
  shows.set(key, show);
}

// Without a value the key goes.
function remember(key, value) {
  if (value === null || value === "") address.delete(key);
  else address.set(key, value);
  if (isToBeWritten) return;
  isToBeWritten = true;
  setTimeout(() => {
    isToBeWritten = false;
    history.replaceState(null, "", `${location.href.split("#")[0]}#${address}`);
  }, WRITE_AFTER);
}

function follow(link) {
  if (!link.includes("=")) return reveal(document.getElementById(link));
  for (const [key, value] of new URLSearchParams(link)) shows.get(key)?.(value);
}

// Brings a part of the page up and makes it the place where Tab goes on.
function reveal(place) {
  if (!place) return;
  if (!place.matches("a, button, input, select, [tabindex]")) place.setAttribute("tabindex", -1);
  place.scrollIntoView({ block: place.matches("section") ? "start" : "nearest" });
  place.focus({ preventScroll: true });
}

function linkTo(key, value, ...content) {
  return element("a", { href: `#${new URLSearchParams({ [key]: value })}` }, ...content);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  follow(link.getAttribute("href").slice(1));
});
window.addEventListener("hashchange", () => location.reload()); // somebody has written another address

// "/" goes to a search field from anywhere, and brings up what stands around it.
function onSlash(search, around) {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input[type=search], select")) return;
    event.preventDefault();
    around.scrollIntoView();
    search.focus({ preventScroll: true });
  });
}
