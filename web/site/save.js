// Saving a figure: its drawing as an SVG that needs nothing else, its numbers as CSV.

function download(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], {type}));
  const link = el("a", {href: url, download: name, hidden: ""});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/// A colour as programs other than browsers know it: #rrggbb, and how opaque.
const plain_colour = (() => {
  const known = new Map();
  let pixel = null;
  return (colour) => {
    if (!known.has(colour)) {
      pixel = pixel || Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d", {
        willReadFrequently: true
      });
      pixel.clearRect(0, 0, 1, 1);
      pixel.fillStyle = colour;
      pixel.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = pixel.getImageData(0, 0, 1, 1).data;
      known.set(colour, [`#${[r, g, b].map((x) => x.toString(16).padStart(2, "0")).join("")}`, a / 255]);
    }
    return known.get(colour);
  };
})();

/// The drawing with its style sheet's doings written into it.
function standalone_svg(svg, title) {
  const copy = svg.cloneNode(true);
  const from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node), out = to[i];
    for (const name of ["fill", "stroke"]) {
      const value = style.getPropertyValue(name);
      if (value === "none" || value.startsWith("url")) {
        out.setAttribute(name, value);
        continue;
      }
      const [colour, opaque] = plain_colour(value);
      const own = Number(style.getPropertyValue(`${name}-opacity`));
      out.setAttribute(name, colour);
      if (opaque * own < 1) out.setAttribute(`${name}-opacity`, String(opaque * own));
    }
    for (const name
             of ["stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "paint-order", "opacity"]) {
      const value = style.getPropertyValue(name);
      if (value && value !== "none" && value !== "normal" && value !== "1")
        out.setAttribute(name, value.replace(/px/g, ""));
    }
    if (node.tagName === "text" || node.tagName === "tspan")
      for (const name of ["font-family", "font-size", "font-weight", "font-style"])
        out.setAttribute(name, style.getPropertyValue(name));
    out.removeAttribute("class");
    out.removeAttribute("style");
    for (const name of out.getAttributeNames())
      if (name.startsWith("data-")) out.removeAttribute(name);
  });
  copy.querySelectorAll("[visibility=hidden]").forEach((node) => node.remove());
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const margin = 12;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", `${- margin} ${- margin} ${width + 2 * margin} ${height + 2 * margin}`);
  copy.setAttribute("width", width + 2 * margin);
  copy.setAttribute("height", height + 2 * margin);
  const make = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const paper = plain_colour(getComputedStyle(document.documentElement).getPropertyValue("--card").trim())[0];
  copy.prepend(
      Object.assign(make("title", {}), {textContent: title}),
      Object.assign(make("desc", {}), {textContent: svg.getAttribute("aria-label") || ""}),
      make("rect", {x: -margin, y: -margin, width: width + 2 * margin, height: height + 2 * margin, fill: paper}));
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

/// Numbers as they are, text quoted where it has to be.
function csv_of({columns, rows}) {
  const cell = (x) => {
    const text = x === null || x === undefined ? "" : String(x);
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return `${[columns, ...rows].map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

/// Adds to a figure the buttons that save it. numbers() → {columns, rows}; where it is absent there is no CSV.
function with_saving(figure, {name, title, numbers}) {
  const button = (kind, words, act) => {
    const node = el("button", {type: "button", "aria-label": `Save as ${kind}: ${title || name}`, title: words}, kind);
    node.addEventListener("click", act);
    return node;
  };
  const svg = button("SVG", "Save this figure as SVG", () => {
    const drawing = figure.querySelector(".canvas > svg");
    if (drawing) download(`rootdk-${name}.svg`, "image/svg+xml", standalone_svg(drawing, title || name));
  });
  const csv = numbers && button("CSV", "Save its numbers as CSV", () => {
                const found = numbers();
                if (found) download(`rootdk-${name}.csv`, "text/csv", csv_of(found));
              });
  figure.classList.add("saved");
  figure.append(el("div", {class: "saving"}, svg, csv || null));
  return figure;
}

/// The same for every figure beneath a node that has none yet.
function with_saving_all(node, {name, title}) {
  [...node.querySelectorAll("figure.chart")].forEach((figure, k) => {
    if (figure.classList.contains("saved")) return;
    with_saving(figure, {name: k ? `${name}-${k + 1}` : name, title: k ? `${title}, figure ${k + 1}` : title, numbers: () => figure.values()});
  });
}
