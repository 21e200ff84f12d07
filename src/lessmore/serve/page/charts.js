// Small line charts, drawn as SVG.

import { make, say } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240, HEIGHT = 56, EDGE = 3;

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// options: most, the top of the scale where it is fixed; text, how a value is written; names, of several curves.
export function chart(title, options = {}) {
  const value = make("b");
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const figure = make("figure", {}, make("figcaption", {}, make("span", {}, title), value), svg);
  figure.draw = (curves, marks = []) => {
    const most = options.most || Math.max(1e-6, ...curves.flat()) * 1.1;
    svg.replaceChildren(shape("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - EDGE, y2: HEIGHT - EDGE }));
    marks.forEach((mark, i) => {
      const x = at(i, marks.length);
      if (mark) svg.append(shape("line", { class: "mark", x1: x, x2: x, y1: 0, y2: HEIGHT }));
    });
    curves.forEach((curve, k) => svg.prepend(line(curve, most, k === curves.length - 1 && k ? "second" : "")));
    const last = curves.map((curve) => (curve.length ? options.text(curve[curve.length - 1]) : "–"));
    say(value, last.join(" / "));
    const changes = marks.filter(Boolean).length;
    svg.setAttribute("aria-label", `${title}: now ${last.join(" against ")}${changes ? `; ${changes} changes of domain` : ""}`);
  };
  figure.draw([[]]);
  return figure;
}

const at = (i, count) => (count < 2 ? WIDTH : (i / (count - 1)) * WIDTH);

function line(curve, most, kind) {
  const points = curve.map((value, i) => {
    const y = HEIGHT - EDGE - (Math.min(value, most) / most) * (HEIGHT - 2 * EDGE);
    return `${at(i, curve.length).toFixed(1)},${y.toFixed(1)}`;
  });
  return shape("polyline", { class: `curve ${kind}`, points: points.join(" ") });
}
