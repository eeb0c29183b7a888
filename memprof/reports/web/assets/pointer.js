// What a pointer does on a chart: it points, picks a point with a click, or selects a part by dragging.
// Points are shares of the chart's width and height, from the left and from the bottom.

const SHORTEST_DRAG = 5; // pixels; what is shorter is a click

function onPointer(area, { selectsHeight, onPoint, onLeave, onPick, onSelect }) {
  const selection = element("div", { class: "selection", hidden: "" });
  let pressed = null;
  area.append(selection);

  function pointOf({ clientX, clientY }) {
    const { left, bottom, width, height } = area.getBoundingClientRect();
    const inside = (value) => Math.min(Math.max(value, 0), 1);
    return { right: inside((clientX - left) / width), up: inside((bottom - clientY) / height) };
  }

  // The corners of what is selected, the lower left one first; none while the pointer has hardly moved.
  function cornersTo(event) {
    if (Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) < SHORTEST_DRAG) return null;
    const [a, b] = [pointOf(pressed), pointOf(event)];
    const [low, high] = selectsHeight ? [Math.min(a.up, b.up), Math.max(a.up, b.up)] : [0, 1];
    return [{ right: Math.min(a.right, b.right), up: low }, { right: Math.max(a.right, b.right), up: high }];
  }

  function show(corners) {
    selection.hidden = !corners;
    if (!corners) return;
    const [from, to] = corners.map(({ right, up }) => ({ right: 100 * right, up: 100 * up }));
    selection.style.cssText = `left:${from.right}%;width:${to.right - from.right}%;bottom:${from.up}%;height:${to.up - from.up}%`;
  }

  function release() {
    pressed = null;
    show(null);
  }

  area.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pressed = event;
    area.setPointerCapture(event.pointerId);
  });
  area.addEventListener("pointermove", (event) => {
    if (pressed) show(cornersTo(event));
    else onPoint(pointOf(event), event);
  });
  area.addEventListener("pointerup", (event) => {
    if (!pressed) return;
    const corners = cornersTo(event);
    release();
    if (corners) onSelect(...corners);
    else onPick(pointOf(event));
  });
  area.addEventListener("pointercancel", release);
  area.addEventListener("pointerleave", onLeave);
}
