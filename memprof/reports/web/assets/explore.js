// Unpacks plotly.js and puts the interactive charts into their places.

async function unpackPlotly() {
  const packed = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(packed), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

// The charts are drawn one after the other, so that the page answers in between.
async function drawCharts() {
  await unpackPlotly();
  const figure = document.querySelector('[data-chart="timeline"]');
  const drawings = [
    () => figure && drawTimeline(figure),
    () => drawIcicle(document.getElementById("icicle")),
    () => drawAddressMap(document.getElementById("map"), document.getElementById("map-panel")),
  ];
  for (const draw of drawings) {
    await new Promise((resolve) => setTimeout(resolve));
    draw();
  }
}

drawBuffers();
drawCharts().then(
  () => document.documentElement.setAttribute("data-ready", ""),
  (error) => {
    for (const place of document.querySelectorAll(".waiting")) place.textContent = `This picture could not be drawn: ${error}`;
    throw error;
  },
);
