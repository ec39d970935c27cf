for (const table of document.querySelectorAll("table[data-table]")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = head.classList.contains("text") ? "ascending" : "descending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[at].dataset.value ?? row.cells[at].textContent.trim();
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "\u2013" || y === "\u2013") return (x === "\u2013") - (y === "\u2013");
        const [p, q] = [x, y].map((text) => Number(text.replace("< ", "")));
        return sign * (isNaN(p) || isNaN(q) ? x.localeCompare(y) : p - q);
      });
      table.tBodies[0].append(...rows);
    });
  });
}
const reveal = () => {
  for (let at = document.getElementById(location.hash.slice(1)); at; at = at.parentElement) {
    if (at.tagName === "DETAILS") at.open = true;
  }
};
addEventListener("hashchange", reveal);
reveal();
