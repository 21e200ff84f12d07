// Small line charts, drawn as SVG.

import { make, say } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240, HEIGHT = 56, EDGE = 3;

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// options: most, the top of the scale where it is fixed; atLeast, the lowest that it may be; text, how a value is written; close, whether the scale begins
// below the lowest value instead of at 0, and says so.
export function chart(title, options = {}) {
  const value = make("b"), name = make("span", {}, title);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const figure = make("figure", {}, make("figcaption", {}, name, value), svg);
  figure.draw = (curves, marks = []) => {
    const most = options.most || Math.max(options.atLeast || 1e-6, ...curves.flat()) * 1.1;
    const lowest = options.close ? Math.max(0, Math.floor(10 * Math.min(most, ...curves.flat()) - 0.5) / 10) : 0;
    if (options.close) say(name, `${title}, from ${options.text(lowest)}`);
    svg.replaceChildren(shape("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - EDGE, y2: HEIGHT - EDGE }));
    marks.forEach((mark, i) => {
      const x = at(i, marks.length);
      if (mark) svg.append(shape("line", { class: "mark", x1: x, x2: x, y1: 0, y2: HEIGHT }));
    });
    curves.forEach((curve, k) => svg.prepend(line(curve, lowest, most, k === curves.length - 1 && k ? "second" : "")));
    const last = curves.map((curve) => (curve.length ? options.text(curve[curve.length - 1]) : "–"));
    say(value, last.join(" / "));
    const changes = marks.filter(Boolean).length;
    svg.setAttribute("aria-label", `${title}: now ${last.join(" against ")}${changes ? `; ${changes} changes of domain` : ""}`);
  };
  figure.draw([[]]);
  return figure;
}

const at = (i, count) => (count < 2 ? WIDTH : (i / (count - 1)) * WIDTH);

function line(curve, lowest, most, kind) {
  const points = curve.map((value, i) => {
    const height = (Math.min(value, most) - lowest) / (most - lowest);
    const y = HEIGHT - EDGE - height * (HEIGHT - 2 * EDGE);
    return `${at(i, curve.length).toFixed(1)},${y.toFixed(1)}`;
  });
  return shape("polyline", { class: `curve ${kind}`, points: points.join(" ") });
}
