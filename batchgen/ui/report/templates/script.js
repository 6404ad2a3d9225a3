"use strict";
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const named = () => theme.setAttribute("aria-pressed", String(dark()));
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    named();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", named);
  named();

  // The legend of a chart shows the values at the place that is pointed at, by pointer or by arrow key.
  for (const plot of document.querySelectorAll("svg[data-pointed]")) {
    const { x, time, values } = JSON.parse(plot.dataset.pointed);
    const figure = plot.closest("figure");
    const legend = figure.querySelector(".legend");
    const when = legend.querySelector(".when");
    const shown = [...legend.querySelectorAll("b")];
    const means = shown.map((one) => one.textContent);
    const cross = plot.querySelector(".cross");
    let at = -1;
    const show = (next) => {
      at = next;
      cross.setAttribute("visibility", at < 0 ? "hidden" : "visible");
      when.textContent = at < 0 ? "mean" : time[at];
      shown.forEach((one, number) => { one.textContent = at < 0 ? means[number] : values[number][at]; });
      if (at >= 0) {
        cross.setAttribute("x1", x[at] * 10);
        cross.setAttribute("x2", x[at] * 10);
      }
    };
    const nearest = (share) => x.reduce((best, one, number) => (Math.abs(one - share) < Math.abs(x[best] - share) ? number : best), 0);
    const point = (event) => {
      const box = plot.getBoundingClientRect();
      show(nearest((100 * (event.clientX - box.left)) / box.width));
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", () => show(-1));
    plot.addEventListener("blur", () => { legend.removeAttribute("aria-live"); show(-1); });
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      legend.setAttribute("aria-live", "polite");
      show(Math.max(0, Math.min(x.length - 1, at + step)));
    });
  }

  const table = document.getElementById("table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, text: row.textContent.toLowerCase(), ok: row.classList.contains("ok") }));
  const search = document.getElementById("search");
  const which = document.getElementById("which");
  const found = document.getElementById("found");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const { row, text, ok } of rows) {
      const seen = words.every((word) => text.includes(word)) && (!which.value || (which.value === "ok") === ok);
      row.hidden = !seen;
      count += seen;
    }
    found.textContent = count === rows.length ? "" : `${count} of ${rows.length} shown`;
  };
  search.addEventListener("input", filter);
  which.addEventListener("change", filter);
  document.getElementById("tools").hidden = false;

  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    const key = ({ row }) => {
      const cell = row.cells[column];
      return head.dataset.kind === "n" ? Number(cell.dataset.value) : cell.textContent.trim();
    };
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const compare = head.dataset.kind === "n" ? (a, b) => a - b : new Intl.Collator(undefined, { numeric: true }).compare;
      const sorted = [...rows].sort((a, b) => sign * compare(key(a), key(b)));
      body.append(...sorted.map(({ row }) => row));
    });
  });
})();
