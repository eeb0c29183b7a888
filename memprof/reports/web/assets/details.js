// What an opened row says of its buffer: its facts, each a link to what it names, its source, and the whole stack.

function details(index) {
  const { start, end, offset } = buffers;
  const module = textOf("module", index);
  const source = textOf("source", index);
  const facts = [
    ["size", `${formatCount(buffers.size_bytes[index])} bytes`],
    ["category", categoryLink(buffers.category[index])],
    ["module", module && linkTo("module", module, module)],
    ["operation", textOf("op", index)],
    ["instruction", textOf("name", index)],
    ["source", source && editorLink(source)],
    ["live", element("span", {}, "positions ", timeLink(start[index]), " to ", timeLink(end[index]), ` of ${formatCount(timeline.num_positions)}`)],
    ["offset", offset[index] === null ? "outside the temp block" : `${formatCount(offset[index])} in the temp block`],
    ["rule", textOf("why", index)],
  ];
  const list = facts.filter(([, value]) => value).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  const text = report.sources[buffers.source[index]];
  return [element("dl", { class: "facts" }, ...list), ...(text ? [sourceText(text)] : []), ...whyLive(index), ...stackOfCalls(index)];
}

function categoryLink(number) {
  return linkTo("category", categories[number].name, categoryKey(number), categories[number].name);
}

function timeLink(position) {
  return linkTo("at", position, formatCount(position));
}

// A source line as a link into an editor, where the page has one and knows the whole path; what is shown of it.
function editorLink(place, ...shown) {
  if (!shown.length) shown = [place];
  const [, file, line] = place.match(/^(.*):(\d+)$/) ?? [];
  if (!report.files[file]) return element("span", {}, ...shown);
  const path = encodeURI(report.files[file].replaceAll("\\", "/")).replace(/[?#]/g, encodeURIComponent);
  const address = report.editor.replace("{file}", () => (path.startsWith("/") ? path : `/${path}`)).replace("{line}", line);
  return element("a", { href: address, title: "open in the editor" }, ...shown);
}

function sourceText({ first_line: first, line, lines }) {
  const shown = lines.map((text, number) => {
    const parts = [element("span", { class: "number" }, String(first + number)), text, "\n"];
    return element(first + number === line ? "mark" : "span", {}, ...parts);
  });
  return element("pre", { tabindex: 0 }, ...shown);
}

// Who made it, who waits for it, and what another order of the operations would hold: see views/why.py.
function whyLive(index) {
  const { facts, of, order, note, more } = report.live_at_peak;
  if (!facts || index >= report.num_at_peak) return [];
  const title = element("h3", {}, "why it is live at the peak");
  if (index >= of.length) return [title, element("p", { class: "note quiet" }, report.strings[more])];
  const listOf = (numbers) => element("dl", { class: "facts" }, ...numbers.flatMap((number, place) => factOf(facts[number], facts[numbers[place - 1]])));
  const whole = element("h3", {}, "the order of operations ", element("small", {}, "of the whole program"));
  return [title, listOf(of[index]), whole, listOf(order), element("p", { class: "note quiet" }, report.strings[note])];
}

// Several operations may wait: what has the label of the fact before it, or none, belongs to that.
function factOf([label, ...values], before) {
  const term = before && (label === before[0] || !report.strings[label]) ? [] : [element("dt", {}, report.strings[label])];
  return [...term, element("dd", {}, ...values.flatMap((value) => [element("span", {}, valueOf(value)), " "]))];
}

function valueOf(value) {
  if (!Array.isArray(value)) return editorLink(report.strings[value]);
  const [text, link] = value.map((number) => report.strings[number]);
  const [key, ...target] = link.split("=");
  return linkTo(key, target.join("="), text);
}

// The calls, outermost first, as in a traceback; those of libraries that follow one another are folded into one line.
function stackOfCalls(index) {
  const calls = report.stacks[report.stack_of[index]].map((number) => report.frames[number]);
  if (!calls.length) return [];
  const items = [];
  for (const [place, name, isOwn] of calls) {
    const call = element("li", {}, callOf(place, report.strings[name]));
    if (isOwn) items.push(call);
    else if (items.at(-1)?.dataset.folded) items.at(-1).querySelector("ol").append(call);
    else items.push(element("li", { "data-folded": "yes" }, element("details", {}, element("summary", {}), element("ol", {}, call))));
  }
  for (const folded of items.filter((item) => item.dataset.folded)) {
    const inside = [...folded.querySelectorAll("li")];
    const packages = [...new Set(inside.map((each) => each.textContent.match(/\S+(?=:\d+)/)[0].split("/")[0]))];
    folded.querySelector("summary").textContent = `${inside.length} ${inside.length === 1 ? "call" : "calls"} of ${packages.join(", ")}`;
  }
  return [element("h3", {}, "stack ", element("small", {}, "outermost call first")), element("ol", { class: "calls" }, ...items)];
}

function callOf(place, name) {
  const text = report.sources[place];
  const code = text ? [element("code", {}, text.lines[text.line - text.first_line].trim())] : [];
  return element("div", {}, element("b", {}, name || "(no name)"), " ", element("span", { class: "quiet" }, editorLink(report.strings[place])), ...code);
}
