// Values and where they come from. Nothing on the page is a number of its own: whatever is shown is a reference into the JSON,
// and its element carries the JSON pointer (data-path) and the exact value (data-value).

const results = JSON.parse(document.getElementById("results").textContent);

const pointers = new Map();  // object or array → its JSON pointer
const escaped = (key) => String(key).replace(/~/g, "~0").replace(/\//g, "~1");
(function note(root) {
  const todo = [[root, ""]];
  while (todo.length) {
    const [node, pointer] = todo.pop();
    pointers.set(node, pointer);
    for (const [key, child] of Object.entries(node))
      if (child !== null && typeof child === "object") todo.push([child, `${pointer}/${escaped(key)}`]);
  }
})(results);

/// The value at node[key][key]…, with its pointer. An absent one has the value undefined.
function ref(node, ...keys) {
  let value = node;
  for (const key of keys) value = value === undefined || value === null ? undefined : value[key];
  return {value, path: pointers.get(node) + keys.map((key) => `/${escaped(key)}`).join("")};
}
const isRef = (x) => x !== null && typeof x === "object" && "path" in x && "value" in x;
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);

// Numbers for people ---------------------------------------------------------------------------------------------------

const superscript = (n) => [...String(n)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
const grouped = (text) => text.replace(/^(-?\d+)/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ",")).replace("-", "−");

/// So many significant digits, more where they stand before the point: 0.867, 13.7, 37,364; 4.2×10⁻¹⁸ where a decimal is long.
function number(x, digits = 3) {
  if (!isNumber(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e9 || size < 1e-4) {
    const [mantissa, exponent] = x.toExponential(digits - 1).split("e");
    return `${mantissa.replace("-", "−")}×10${superscript(Number(exponent))}`;
  }
  return grouped(x.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size)))));
}
const exact = (x) => (isNumber(x) ? grouped(String(x)) : "–");
function percent(x) {
  if (!isNumber(x)) return "–";
  const y = 100 * x;
  return `${y !== 0 && Math.abs(y) < 10 ? number(y, 2) : grouped(y.toFixed(Math.abs(100 - y) < 1 && y !== 100 ? 1 : 0))} %`;
}
const digits = (n) => (x) => number(x, n);

// Elements ---------------------------------------------------------------------------------------------------------------

/// Children are nodes, references (shown as numbers) or text; text from the JSON is never read as markup.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  for (const child of children.flat(Infinity)) add(node, child);
  return node;
}
function add(node, child) {
  if (child === undefined || child === null) return;
  if (isRef(child))
    node.append(shown(child));
  else if (child instanceof Node)
    node.append(child);
  else
    typeset(node, String(child));
}

/// Names of files and tensors may hold controls of direction, which would make a line read in another order: they
/// become visible.
const visible = (text) => text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
                                       (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/// "1 head", "12 heads".
const counted = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

/// "d_k" with its k set low; the text itself stays as it is.
function typeset(node, text) {
  visible(text).split("d_k").forEach((part, i) => {
    if (i) {
      const dk = document.createElement("d-k");
      dk.append(Object.assign(document.createElement("i"), {textContent: "d"}));
      dk.append(Object.assign(document.createElement("span"), {textContent: "_", className: "unseen"}));
      dk.append(Object.assign(document.createElement("sub"), {textContent: "k"}));
      node.append(dk);
    }
    if (part) node.append(part);
  });
}

/// A value of the JSON on the page.
function shown(reference, format = number) {
  const {value, path} = reference;
  const node = document.createElement("span");
  node.className = "v";
  if (value === undefined) return node;
  node.dataset.path = path;
  node.dataset.value = value === null ? "null" : String(value);
  if (typeof value === "string")
    typeset(node, value);
  else
    node.textContent = typeof value === "boolean" ? (value ? "yes" : "no") : format(value);
  return node;
}
/// node[key][key]… in a format.
const put = (format, node, ...keys) => shown(ref(node, ...keys), format);

/// [low, high] as "low – high".
const interval = (node, key, format = number) => el("span", {}, put(format, node, key, 0), " – ", put(format, node, key, 1));

/// columns: titles, or {title, left, kind} with kind "measured" or "predicted"; rows: cells.
function table(caption, columns, rows) {
  const of = (c) => (typeof c === "string" ? {title: c} : c);
  const cls = (c) => [c.left ? "left" : "", c.free ? "free" : "", c.kind || ""].join(" ").trim() || undefined;
  const head = el("tr", {}, columns.map(of).map((c) => el("th", {scope: "col", class: c.left ? "left" : undefined}, c.title)));
  const body = rows.map(
      (row) => el(
          "tr", {},
          row.map(
              (cell, i) => el(i === 0 ? "th" : "td", {scope: i === 0 ? "row" : undefined, class: cls(of(columns[i]))}, cell))));
  return el(
      "div", {class: "scroll", tabindex: 0, role: "region", "aria-label": caption},
      el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, body)));
}
const all_numbers = (summary, ...content) => el("details", {}, el("summary", {}, summary), ...content);
