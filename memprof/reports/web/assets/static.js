// What works on every page: sorted tables, and legends that light up one category.

document.querySelectorAll("table[data-sortable]").forEach(makeSortable);

document.querySelectorAll(".legend").forEach(makeLegend);
