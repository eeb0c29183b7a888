// Puts the interactive charts and the table of all buffers into their places.

const chart = document.querySelector('[data-chart="timeline"]');
if (chart) drawTimeline(chart);
drawIcicle(document.getElementById("icicle"));
drawAddressMap(document.getElementById("map"), document.getElementById("map-panel"));
drawBuffers();
document.documentElement.setAttribute("data-ready", "");
