// Sizes as people read them: the same three digits as memprof/reports/units.py writes.

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function formatBytes(bytes) {
  const sign = bytes < 0 ? "-" : "";
  let value = Math.abs(bytes);
  if (value < 1024) return `${sign}${value} B`;
  let unit = 0;
  while (Math.round(value) >= 1024 && unit < BYTE_UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${sign}${value.toFixed(digits)} ${BYTE_UNITS[unit]}`;
}

function formatShare(part, whole) {
  if (!part || !whole) return "0%";
  if (part === whole) return "100%";
  const percent = (100 * part) / whole;
  if (percent < 0.1) return "<0.1%";
  if (percent > 99.9) return ">99.9%";
  return `${percent.toFixed(1)}%`;
}

// Round binary sizes, about six of them.
function byteTicks(low, high) {
  const step = 2 ** Math.round(Math.log2(Math.max(high - low, 8) / 6));
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) values.push(value);
  return values.map((value) => ({ value, text: formatBytes(value) }));
}

// By hand: a page that opens would wait a tenth of a second for the browser's own way to do it.
function formatCount(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
}
