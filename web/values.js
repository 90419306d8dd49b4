// Values and where they come from. Nothing on the page is a number of its own: whatever is shown is a reference into the JSON
// inside the page or into a result that was computed in it, and its element carries the JSON pointer (data-path) and the exact
// value (data-value).

const embedded = document.getElementById("results");
const results = embedded ? JSON.parse(embedded.textContent) : {};

const pointers = new WeakMap();  // object or array → its JSON pointer
const escaped = (key) => String(key).replace(/~/g, "~0").replace(/\//g, "~1");
/// What has been noted can be shown: its numbers know where they come from.
function note(root, at = "") {
  const todo = [[root, at]];
  while (todo.length) {
    const [node, pointer] = todo.pop();
    pointers.set(node, pointer);
    const visit = (child, key) => {
      if (child !== null && typeof child === "object") todo.push([child, `${pointer}/${escaped(key)}`]);
    };
    if (Array.isArray(node)) node.forEach(visit);  // thousands of numbers, maybe
    else Object.keys(node).forEach((key) => visit(node[key], key));
  }
  return root;
}
note(results);

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
  if (size >= 1e9 || size < 1e-4) return powered(x.toExponential(digits - 1));
  const rounded = Number(size.toPrecision(digits));  // 0.09996 becomes 0.100, which has a digit less behind the point
  return grouped(x.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(rounded)))));
}
/// "8.6e-18" as it is shown: 8.6×10⁻¹⁸.
function powered(text) {
  const [mantissa, exponent] = text.split("e");
  return `${mantissa.replace("-", "−")}×10${superscript(Number(exponent))}`;
}
const exact = (x) => (!isNumber(x) ? "–" : String(x).includes("e") ? powered(String(x)) : grouped(String(x)));
function percent(x) {
  if (!isNumber(x)) return "–";
  const y = 100 * x;
  return `${y !== 0 && Math.abs(y) < 10 ? number(y, 2) : grouped(y.toFixed(Math.abs(100 - y) < 1 && y !== 100 ? 1 : 0))} %`;
}
const digits = (n) => (x) => number(x, n);

// Elements ---------------------------------------------------------------------------------------------------------------

/// Children are nodes, references (shown as numbers) or text; text from the JSON is never read as markup. "σ_c = " and a
/// value after it stay on one line.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  const all = children.flat(Infinity);
  for (let i = 0; i < all.length; ++i) {
    const next = all[i + 1], isValue = next instanceof Element ? next.className === "v" : isRef(next ?? null);
    const equals = isValue && typeof all[i] === "string" && /\S+ [=<>≈] $/.exec(all[i]);
    if (equals) {
      add(node, all[i].slice(0, equals.index));
      const together = el("span", {class: "whole"});
      add(together, equals[0]);
      add(together, all[++i]);
      node.append(together);
    } else {
      add(node, all[i]);
    }
  }
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
const counted = (n, what) => `${grouped(String(n))} ${what}${n === 1 ? "" : "s"}`;

/// What in a text is set otherwise than it is written: names with an index, numbers with a power of ten, and what is not to
/// be broken over two lines: 12 %, σ = 1.01. A rule's own number, constant(1e-05), is what one types, and stays.
const kIndexed = ["d_k", "σ_c", "σ_q", "σ_k", "σ_h", "W_q", "W_k", "c_h", "p_max", "p_i", "s_j"];
const kSpecial = new RegExp(
    `(?<![A-Za-z\\d_])(?:1/)?√?(?:${kIndexed.join("|")})(?![A-Za-z\\d_])` +
        "|(?<![\\w.])(?<!\\w\\()-?\\d+(?:\\.\\d+)?e[-+]?\\d+(?!\\w)|[<>]?\\d[\\d.,]* %|(?<!\\w)[nσρμ] [=<>≈] [\\d.,]*\\d(?!\\w|\\.\\d)",
    "g");
/// text → [{text} | {before: "1/√", name, index} | {number} | {whole}], in order.
function pieces_of(text) {
  const out = [];
  let from = 0;
  for (const found of text.matchAll(kSpecial)) {
    if (found.index > from) out.push({text: text.slice(from, found.index)});
    const special = found[0], indexed = kIndexed.find((name) => special.endsWith(name));
    if (indexed) {
      const [name, index] = indexed.split("_");
      out.push({before: special.slice(0, -indexed.length), name, index});
    } else out.push(/e[-+]?\d/.test(special) ? {number: powered(special)} : {whole: special});
    from = found.index + special.length;
  }
  if (from < text.length) out.push({text: text.slice(from)});
  return out;
}

/// Text as it is shown, with indices set low; read or copied, "d_k" is still "d_k". A name and what it equals stay on one line.
function typeset(node, text) {
  const small = (tag, textContent, className = "") => Object.assign(document.createElement(tag), {textContent, className});
  const pieces = pieces_of(visible(text));
  pieces.forEach((piece, i) => {
    const equals = piece.name && i + 1 < pieces.length && /^ [=<>≈] -?[\d.,]*\d/.exec(pieces[i + 1].text || "");
    if (piece.name) {
      const symbol = small("span", "", "symbol");
      symbol.append(piece.before, small("i", piece.name), small("span", "_", "unseen"), small("sub", piece.index));
      if (!equals) return node.append(symbol);
      const together = small("span", "", "whole");
      together.append(symbol, equals[0]);
      node.append(together);
      pieces[i + 1].text = pieces[i + 1].text.slice(equals[0].length);
    } else if (piece.whole) {
      node.append(small("span", piece.whole, "whole"));
    } else {
      node.append(piece.text ?? piece.number);
    }
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
  const head = el("tr", {}, columns.map(of).map(
      (c) => c.title ? el("th", {scope: "col", class: c.left ? "left" : undefined}, c.title) : el("td")));  // no name: no header
  const body = rows.map(
      (row) => el(
          "tr", {},
          row.map(
              (cell, i) => el(i === 0 ? "th" : "td", {scope: i === 0 ? "row" : undefined, class: cls(of(columns[i]))}, cell))));
  return scrolled(caption, el("table", {}, el("caption", {}, el("span", {}, caption)), el("thead", {}, head), el("tbody", {}, body)));
}
/// What is wider than the page scrolls by itself, and shows that it does.
const scrolled = (name, node) => el("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": name}, node);
const kThanks = "Charts by D3 (BSD-3-Clause, Mike Bostock). Colours after Okabe and Ito. Nothing was loaded from anywhere to show this page.";
const all_numbers = (summary, ...content) => el("details", {}, el("summary", {}, summary), ...content);
