// A line of points on two axes: what an audit draws of one head.

/// points: {x, y} references, joined; axes are logarithmic where the numbers allow it. reference: {value, label}, a level line.
function line_figure({label, x_name, y_name, points, log_x = true, log_y = true, reference = null}) {
  return chart({
    label,
    draw({svg, width, spot}) {
      const right = reference ? 12 + 6.6 * reference.label.length : 14;
      const margin = {left: 52, right, top: 28, bottom: 42}, w = width - margin.left - margin.right, h = 170;
      const xs = points.map((p) => p.x.value);
      const ys = points.map((p) => p.y.value).concat(reference ? [reference.value] : []).filter(isNumber);
      const scale = (values, log, range) => {
        const [a, b] = extent(values), usable = log && a > 0;
        const s = (usable ? d3.scaleLog() : d3.scaleLinear()).range(range);
        return a === b ? s.domain(usable ? [a / 2, b * 2] : [a - 1, b + 1]) : s.domain([usable ? a : Math.min(0, a), b]);
      };
      const x = scale(xs, log_x, [0, w]), y = scale(ys, log_y, [h, 0]);
      const g = scaled(svg.append("g").attr("transform", `translate(${margin.left},${margin.top})`), y);
      y_axis(g, y, w, y_name, 5);
      x_axis(g, x, h, x_name, {values: ticks_of(x, Math.min(5, w / 60)), width: w});
      if (reference && isNumber(reference.value)) {
        g.append("line").attr("class", "reference").attr("x2", w).attr("y1", y(reference.value)).attr("y2", y(reference.value));
        label_text(g.append("text").attr("class", "quiet").attr("x", w + 6).attr("y", y(reference.value) + 4), reference.label);
      }
      const line = d3.line().x((p) => x(p.x.value)).y((p) => y(p.y.value));
      g.append("path").attr("class", "line").attr("d", line(points));
      for (const p of points) {
        mark(g.append("circle").attr("class", "point").attr("r", 3).attr("cx", x(p.x.value)).attr("cy", y(p.y.value)), p.y, "cy");
        spot(margin.left + x(p.x.value), margin.top + y(p.y.value), `${x_name} ${number(p.x.value)}`, [[y_name, p.y]]);
      }
      return margin.top + h + margin.bottom;
    },
  });
}
