// How the charts look: the page's own colours, light or dark.

const PLOT_CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
};

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function isNarrow() {
  return window.innerWidth <= 640;
}

function themed(layout) {
  const axis = { gridcolor: color("line"), linecolor: color("line"), zeroline: false };
  const axes = Object.keys(layout).filter((name) => /^[xy]axis/.test(name));
  return {
    paper_bgcolor: color("background"),
    plot_bgcolor: color("background"),
    font: { color: color("text"), size: 12, family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { align: "left", bgcolor: color("panel"), bordercolor: color("line"), font: { color: color("text") } },
    margin: { l: isNarrow() ? 62 : 76, r: 12, t: 28, b: 44 },
    ...layout,
    ...Object.fromEntries(axes.map((name) => [name, { ...axis, ...layout[name] }])),
  };
}

function onThemeChange(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
