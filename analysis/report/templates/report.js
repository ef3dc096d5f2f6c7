for (const head of document.querySelectorAll("thead button")) head.onclick = () => {
  const cell = head.parentElement, body = cell.closest("table").tBodies[0];
  const down = cell.getAttribute("aria-sort") === "ascending";
  for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
  cell.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = row => row.cells[cell.cellIndex].dataset.key ?? row.cells[cell.cellIndex].textContent;
  body.append(...[...body.rows].sort((a, b) => {
    const x = key(a), y = key(b);
    if (x === "" || y === "") return (x === "") - (y === "");
    return (down ? -1 : 1) * (isNaN(x) || isNaN(y) ? x.localeCompare(y, undefined, {numeric: true}) : x - y);
  }));
};
onhashchange = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1)), fold = target?.closest("details");
  if (fold && !fold.open) { fold.open = true; target.scrollIntoView(); }
};
// The definitions stay folded on paper: they are nine pages, the same for every report.
onbeforeprint = () => { for (const part of document.querySelectorAll("details")) part.open ||= !part.closest("#methods"); };
