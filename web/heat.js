// Heat maps: what a colour means, the colour bar that says so, and the map of layers × heads. A colour scale is fixed by its
// quantity and not by the data, so that the same colour means the same number on every page.

/// Black or white, whichever has the larger contrast (WCAG's luminance) with a colour: at least 4.5 to 1 on any.
const readable_on = (colour) => {
  const channel = (c) => (c / 255 <= .04045 ? c / 255 / 12.92 : ((c / 255 + .055) / 1.055) ** 2.4), {r, g, b} = d3.rgb(colour);
  return .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b) > .179 ? "#000" : "#fff";
};

// A scale is {colour(x), at(x): 0 to 1 along its bar, ticks, low, high: what its ends mean, over, under: whether numbers beyond
// them are shown as the ends} -------------------------------------------------------------------------------------------

const kBlues = d3.interpolateRgbBasis(["#dcebf5", "#5fa8d3", "#0072b2", "#00304d"]);
const kOranges = d3.interpolateRgbBasis(["#fde3cd", "#f0954a", "#d55e00", "#5c2500"]);
const clamped = (x) => Math.max(0, Math.min(1, x));

/// Ratios of which 1 is the one that matters: blue below it, orange above, a step between them. Logarithmic, from 1/8 to 8.
function about_one({low, high}) {
  const reach = 8, at = (x) => clamped((Math.log(x) / Math.log(reach) + 1) / 2);
  return {
    at: (x) => (x > 0 ? at(x) : 0),
    colour: (x) => (x > 1 ? kOranges(2 * at(x) - 1) : kBlues(x > 0 ? 1 - 2 * at(x) : 1)),
    inverse: (part) => reach ** (2 * part - 1),
    ticks: [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8],
    under: true,
    over: true,
    middle: 1,
    low,
    high,
  };
}

/// From a to b, in a scale whose lightness rises evenly, for those who see no red or green, too.
function from_to(a, b, {low, high, log = false, ticks} = {}) {
  if (!(b > a)) [a, b] = log ? [a / 2, a * 2] : [a - 1, a + 1];
  const scale = (log ? d3.scaleLog() : d3.scaleLinear()).domain([a, b]).range([0, 1]);
  const at = (x) => clamped(scale(log ? Math.max(x, a) : x));
  return {
    at,
    colour: (x) => d3.interpolateCividis(at(x)),
    inverse: (part) => scale.invert(part),
    ticks: ticks || ticks_of(scale, 5),
    low,
    high,
  };
}

/// A bar of the scale's colours with numbers under it, the name of what they are above it, and what its ends mean; returns its
/// height.
function colour_bar(g, scale, {x = 0, y = 0, width, name}) {
  const bar = g.append("g").attr("class", "colour-bar").attr("transform", `translate(${x},${y})`);
  const thick = 12, top = 18, step = 2;
  label_text(bar.append("text").attr("class", "axis-name").attr("y", 11), name);
  for (let left = 0; left < width; left += step)
    bar.append("rect")
        .attr("x", left)
        .attr("y", top)
        .attr("width", Math.min(step, width - left) + 0.5)
        .attr("height", thick)
        .attr("fill", scale.colour(scale.inverse((left + step / 2) / width)));
  const format = tick_format(scale.ticks);
  const written = (t, i) => `${scale.under && i === 0 ? "≤ " : scale.over && i + 1 === scale.ticks.length ? "≥ " : ""}${format(t)}`;
  const room = 9;  // between two numbers
  let free = -Infinity, lowest = top + thick + 16;
  scale.ticks.forEach((t, i) => {
    const text = written(t, i), at = scale.at(t) * width, wide = 6.7 * text.length;
    const from = Math.min(Math.max(at - wide / 2, 0), width - wide);
    bar.append("line").attr("class", "tick-line").attr("x1", at).attr("x2", at).attr("y1", top + thick).attr("y2", top + thick + 4);
    if (from < free) return;
    free = from + wide + room;
    bar.append("text").attr("class", "quiet").attr("x", from + wide / 2).attr("y", lowest).attr("text-anchor", "middle").text(text);
  });
  if (scale.middle !== undefined)
    bar.append("path").attr("class", "middle").attr("d", `M${scale.at(scale.middle) * width},${top - 3}v${thick + 6}`);
  if (!scale.low && !scale.high) return lowest + 4;
  lowest += 16;
  const end = (words, at, anchor) => bar.append("text").attr("class", "quiet").attr("x", at).attr("y", lowest).attr("text-anchor", anchor).text(words);
  if (scale.low) end(`◂ ${scale.low}`, 0, "start");
  if (scale.high && 6.3 * ((scale.low || "").length + scale.high.length + 8) > width) lowest += 16;
  if (scale.high) end(`${scale.high} ▸`, width, "end");
  return lowest + 4;
}

// Layers × heads ------------------------------------------------------------------------------------------------------------

/// Fills the width: a line for every layer, a cell for every head.
/// rows: [{name, full, cells: [{column, value: a reference, word: a verdict or "", title, lines: [[name, value]], it}]}].
/// Where cells are wide enough they say their number and word, where they are not the word's first letter.
function draw_head_map(stage, {rows, scale, name, format = number, pick, chosen = () => false, dimmed = () => false}) {
  const {svg, width, spot} = stage, most = d3.max(rows, (row) => d3.max(row.cells, (c) => c.column + 1)) || 1;
  const room = Math.max(3, Math.floor(width * (stage.narrow ? .3 : .35) / 7));
  const label = (row) => (row.name.length > room ? `…${row.name.slice(-room + 1)}` : row.name);
  const left = 18 + 7 * d3.max(rows, (row) => label(row).length), right = 2;
  const wide = (width - left - right) / most;
  const tall = Math.max(11, Math.min(34, Math.max(wide * .62, 22), 1100 / rows.length)), gap = Math.min(wide, tall) > 9 ? 2 : wide > 5 ? 1 : .5;
  const bar = colour_bar(svg, scale, {x: left, y: 0, width: Math.min(width - left - right, 560), name});
  const top = bar + 40;
  const g = svg.append("g").attr("transform", `translate(${left},${top})`);
  g.append("text").attr("class", "axis-name").attr("x", 0).attr("y", -22).text("head");
  g.append("text").attr("class", "axis-name").attr("x", -8).attr("y", -7).attr("text-anchor", "end").text("layer");
  const every = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64].find((n) => n * wide >= 22) || 128;
  for (let h = 0; h < most; h += every)
    g.append("text").attr("class", "quiet").attr("x", (h + .5) * wide).attr("y", -7).attr("text-anchor", "middle").text(h);
  const lines = Math.ceil(14 / tall);  // a name needs so many
  const fits = (text) => 7.2 * text.length + 6 <= wide - gap;
  const with_letter = ({value, word}) => [isNumber(value.value) ? format(value.value) : "", word[0]].join(" ");
  const numbered = rows.every((row) => row.cells.every((c) => !c.word || fits(with_letter(c))));  // or all have letters alone
  let around = null;
  rows.forEach((row, r) => {
    const y = r * tall;
    if (r % lines === 0)
      g.append("text").attr("class", "quiet").attr("x", -8).attr("y", y + tall / 2 + 4).attr("text-anchor", "end").text(label(row))
          .append("title").text(row.full || row.name);
    for (const cell of row.cells) {
      const {value} = cell, known = isNumber(value.value), fill = known ? scale.colour(value.value) : null;
      const rect = g.append("rect").datum(cell.it).attr("class", known ? "cell" : "cell unknown").attr("x", cell.column * wide)
                       .attr("y", y).attr("width", wide - gap).attr("height", tall - gap).attr("rx", gap > 1 ? 2 : 0)
                       .classed("picked", chosen(cell.it)).classed("dimmed", dimmed(cell.it));
      if (chosen(cell.it)) around = {x: cell.column * wide - 2, y: y - 2, width: wide - gap + 4, height: tall - gap + 4};
      if (known) rect.attr("fill", fill);
      mark(rect, value);
      const text = cell_text(cell, {fits, numbered, format}, wide - gap, tall - gap);
      if (text)
        g.append("text").attr("class", "in-cell").attr("x", cell.column * wide + (wide - gap) / 2)
            .attr("y", y + (tall - gap) / 2 + (tall < 16 ? 3.5 : 4)).style("fill", known ? readable_on(fill) : null)
            .style("font-size", tall < 16 || wide < 14 ? "10px" : null).text(text);
      spot(left + cell.column * wide + (wide - gap) / 2, top + y + (tall - gap) / 2, cell.title, cell.lines,
           {line: r, half: [(wide - gap) / 2, (tall - gap) / 2], pick: () => pick(cell.it)});
    }
  });
  if (around)
    for (const name of ["picked-edge", "picked-ring"])
      Object.entries(around).reduce((rect, [key, value]) => rect.attr(key, value), g.append("rect").attr("class", name).attr("rx", 2));
  return top + rows.length * tall + 6;
}

/// What there is room for: "1.29 frozen", "1.29 F", "1.29", "F". numbered: cells with a word show their number, too.
function cell_text({value, word}, {fits, numbered, format}, wide, tall) {
  if (tall < 10) return "";
  const number_text = isNumber(value.value) ? format(value.value) : "", letter = word ? word[0].toUpperCase() : "";
  const choices = word && !numbered ? [] : [[number_text, word], [number_text, letter]].map((parts) => parts.filter(Boolean).join(" "));
  return choices.find((text) => text && fits(text)) || (letter && wide >= 9 ? letter : "");
}
