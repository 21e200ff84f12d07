"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const PAGE = 50;
  const VERDICTS = ["fixed", "broken", "both right", "both wrong", "failed"];

  /** An element with attributes and children; texts become text, never markup. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  // Light and dark
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const remembered = (value) => {
    try {
      if (value) localStorage.setItem("lessmore-theme", value);
      return localStorage.getItem("lessmore-theme");
    } catch {
      return null; // pages opened from a file may be refused a memory
    }
  };
  function showTheme() {
    $("theme").textContent = isDark() ? "Light" : "Dark";
    $("theme").setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  }
  const theme = remembered();
  if (theme) root.dataset.theme = theme;
  $("theme").hidden = false;
  $("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);
  showTheme();

  // State: which run, which samples pass the filters, which of them is shown
  let run, classes, verdicts, haystack;
  let passing = [];
  let at = 0; // position of the shown sample among the passing ones
  let block = Infinity; // as far as a picture goes

  function verdictOf(i) {
    if (run.after[i] < 0) return "failed";
    const before = run.zero[i] === run.label[i];
    const after = run.after[i] === run.label[i];
    if (before === after) return after ? "both right" : "both wrong";
    return after ? "fixed" : "broken";
  }

  const css = (verdict) => verdict.replace(" ", "-");

  function openRun(number) {
    run = data.runs[number];
    classes = data.classes[run.classes];
    verdicts = run.label.map((_, i) => verdictOf(i));
    const name = (c) => (c < 0 ? "" : classes[c]);
    haystack = run.id.map((id, i) =>
      `${data.ids[id]}\n${name(run.label[i])}\n${name(run.zero[i])}\n${name(run.after[i])}`.toLowerCase());
    for (const panel of document.querySelectorAll("[data-run]")) panel.hidden = panel.dataset.run !== String(number);
    for (const place of document.querySelectorAll(".which")) place.textContent = run.title;
    $("pick").value = number;
    showThreshold();
    fillFilters();
    filter();
  }

  // The threshold: chosen, or found for a wanted share of right answers
  const chooser = () => document.querySelector("article.panel:not([hidden]) .chooser");

  /** Wilson's 95 % interval of a share, in percent. */
  function interval(right, taken) {
    const [z2, p] = [3.8416, right / taken];
    const half = Math.sqrt(z2 * (p * (1 - p) / taken + z2 / (4 * taken * taken)));
    return [-1, 1].map((side) => (100 * (p + z2 / (2 * taken) + side * half) / (1 + z2 / taken)).toFixed(1));
  }

  function showThreshold(note = "") {
    const place = chooser();
    const percent = place.querySelector("[type=range]").value;
    const [taken, right] = run.above.reported.map((counts) => counts[percent]);
    const all = run.above.reported[0][0];
    const share = (part, whole) => `${(100 * part / whole).toFixed(1)} %`;
    const count = (number) => number.toLocaleString("en");
    place.hidden = false;
    place.querySelector("output").textContent = `${percent} %`;
    const passed = taken
      ? `${count(taken)} of ${count(all)} answers pass (${share(taken, all)}); of these ${share(right, taken)} are right ` +
        `(95 % interval ${interval(right, taken).join(" to ")})`
      : `None of ${count(all)} answers passes`;
    place.querySelector("[role=status]").textContent =
      `${note}${passed}. ${count(all - taken)} are left to others. Check the threshold on other images.`;
  }

  function findThreshold() {
    const wanted = Number(chooser().querySelector("[type=number]").value) / 100;
    const [taken, right] = run.above.reported;
    const found = taken.findIndex((count, percent) => count && right[percent] >= wanted * count);
    if (found >= 0) chooser().querySelector("[type=range]").value = found;
    showThreshold(found < 0 ? `No threshold gives ${(100 * wanted).toFixed(1)} % here. ` : "");
  }

  for (const place of document.querySelectorAll(".chooser")) {
    place.querySelector("[type=range]").addEventListener("input", () => showThreshold());
    place.querySelector("[type=number]").addEventListener("change", findThreshold);
    place.querySelector("button").addEventListener("click", findThreshold);
  }

  function fillFilters() {
    const counts = Object.fromEntries(VERDICTS.map((name) => [name, 0]));
    for (const verdict of verdicts) counts[verdict] += 1;
    const chosen = document.querySelector("#verdicts input:checked")?.value ?? "";
    const shown = ["", ...VERDICTS.filter((name) => name !== "failed" || counts.failed)];
    $("verdicts").replaceChildren(...shown.map((name) => {
      const box = make("input", { type: "radio", name: "verdict", value: name });
      box.checked = name === (shown.includes(chosen) ? chosen : "");
      const text = name ? `${name} ${counts[name].toLocaleString("en")}` : "all";
      return make("label", {}, box, text);
    }));
    const seen = [...new Set(run.label)].sort((a, b) => classes[a].localeCompare(classes[b]));
    options($("class"), [["", "all classes"], ...seen.map((c) => [c, classes[c]])]);
    options($("domain"), [["", "all domains"], ...run.domains.map((name, d) => [d, name])]);
    $("domain-field").hidden = run.domains.length < 2;
  }

  function options(select, pairs) {
    select.replaceChildren(...pairs.map(([value, text]) => make("option", { value }, text)));
  }

  function filter() {
    const verdict = document.querySelector("#verdicts input:checked").value;
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const [label, domain] = [$("class").value, $("domain").value];
    passing = run.label.map((_, i) => i).filter((i) =>
      (!verdict || verdicts[i] === verdict) &&
      (label === "" || run.label[i] === Number(label)) &&
      (domain === "" || run.domain[i] === Number(domain)) &&
      (!$("pictured").checked || i in run.pictures) &&
      words.every((word) => haystack[i].includes(word)));
    const total = run.label.length.toLocaleString("en");
    $("count").textContent = `${passing.length.toLocaleString("en")} of ${total} images`;
    // The first with a picture has most to show.
    choose(Math.max(0, passing.findIndex((i) => i in run.pictures)), false);
  }

  // The list: one page of it at a time
  function choose(position, announce = true) {
    at = Math.max(0, Math.min(position, passing.length - 1));
    drawList();
    drawSample(announce);
  }

  function drawList() {
    const first = at - (at % PAGE);
    const rows = passing.slice(first, first + PAGE).map((i, k) => listRow(i, first + k));
    if (!rows.length) rows.push(make("p", { class: "notes row" }, "", "No image passes these filters."));
    $("list").replaceChildren(...rows);
    if (passing.length) $("list").setAttribute("aria-activedescendant", `row-${passing[at]}`);
    else $("list").removeAttribute("aria-activedescendant");
    const chosen = $("list").querySelector("[aria-selected=true]");
    if (chosen) keepInView(chosen);
    const pages = Math.max(1, Math.ceil(passing.length / PAGE));
    $("place").textContent = `page ${(first / PAGE + 1).toLocaleString("en")} of ${pages.toLocaleString("en")}`;
    $("back").disabled = first === 0;
    $("next").disabled = first + PAGE >= passing.length;
  }

  /** Scrolls the list alone; scrollIntoView would move the page as well. */
  function keepInView(row) {
    const list = $("list");
    if (row.offsetTop < list.scrollTop + list.offsetTop) list.scrollTop = row.offsetTop - list.offsetTop;
    const below = row.offsetTop + row.offsetHeight - list.offsetTop - list.clientHeight;
    if (below > list.scrollTop) list.scrollTop = below;
  }

  function listRow(i, position) {
    const attributes = { id: `row-${i}`, class: "row", role: "option", "aria-selected": position === at };
    attributes["aria-posinset"] = position + 1;
    attributes["aria-setsize"] = passing.length;
    const badge = make("span", { class: `badge ${css(verdicts[i])}` }, verdicts[i]);
    const row = make("div", attributes, badge, make("span", {}, classes[run.label[i]]), make("small", {}, data.ids[run.id[i]]));
    if (i in run.pictures) row.children[1].append(make("span", { title: "with a picture" }, " ▣"));
    row.addEventListener("click", () => choose(position));
    return row;
  }

  const STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: PAGE, PageUp: -PAGE, Home: -Infinity, End: Infinity };
  $("list").addEventListener("keydown", (event) => {
    if (!(event.key in STEPS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(at + STEPS[event.key]);
  });
  $("back").addEventListener("click", () => choose(at - (at % PAGE) - PAGE));
  $("next").addEventListener("click", () => choose(at - (at % PAGE) + PAGE));

  // One sample
  const percent = (thousandths) => `${(thousandths / 10).toFixed(1)} %`;

  function drawSample(announce) {
    $("shown").hidden = !passing.length;
    if (!passing.length) return;
    const i = passing[at];
    $("shown-title").replaceChildren(
      make("span", { class: `verdict ${css(verdicts[i])}` }, verdicts[i]), " ", classes[run.label[i]], " ",
      make("small", {}, data.ids[run.id[i]]));
    const names = { zero: "zero-shot, all tokens", before: "condensed, before adaptation", after: "adapted" };
    $("answers").replaceChildren(...(verdicts[i] === "failed" ? [] : Object.entries(names)).map(([key, name]) => {
      const right = run[key][i] === run.label[i];
      const mark = make("span", { class: right ? "right" : "wrong" }, `${right ? "✓" : "✗"} ${classes[run[key][i]]}`);
      return make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, mark), make("td", {}, percent(run[`${key}P`][i])));
    }));
    const place = `Number ${(i + 1).toLocaleString("en")} of the stream, domain ${run.domains[run.domain[i]]}`;
    $("more").textContent = verdicts[i] === "failed"
      ? `${place}. It could not be read: ${run.errors[i]}`
      : `${place}; entropy before adaptation ${(run.entropy[i] / 1000).toFixed(2)} nats.`;
    $("announce").textContent = announce ? `${verdicts[i]}: ${classes[run.label[i]]}, ${answered(i)}` : "";
    drawTop(i);
    openPicture(i);
  }

  function answered(i) {
    if (verdicts[i] === "failed") return run.errors[i];
    return `zero-shot says ${classes[run.zero[i]]}, adapted ${classes[run.after[i]]}`;
  }

  function drawTop(i) {
    $("top").replaceChildren(...(run.pictures[i]?.top ?? []).map(([c, chance]) => {
      const bar = make("i");
      bar.style.width = `${chance / 10}%`;
      return make("div", { class: "chance" }, bar, make("span", {}, classes[c]), make("span", {}, percent(chance)));
    }));
  }

  // Its picture, block by block
  let picture = null;

  function openPicture(i) {
    const found = run.pictures[i];
    const stages = found?.maps?.length ?? 0;
    $("canvas").hidden = !found;
    $("no-picture").hidden = Boolean(found);
    $("no-picture").textContent = "No picture of this image is in the page.";
    $("slider").hidden = $("legend").hidden = !stages;
    $("block").max = stages;
    block = Math.min(block, stages);
    $("block").value = block;
    picture = null;
    if (!found) return;
    const image = new Image();
    image.onload = () => {
      picture = image;
      drawPicture(found);
    };
    image.src = data.uris[run.id[i]];
    tellBlock(found);
  }

  function tellBlock(found) {
    const map = block ? found.maps[block - 1] : "";
    const count = (test) => [...map].filter(test).length;
    const [pruned, kept] = [count((c) => c === "#"), count((c) => c === ".")];
    const merged = map.length - pruned - kept;
    const text = block
      ? `After block ${found.blocks[block - 1]}: ${found.left[block - 1]} patch tokens; of ${map.length} patches ${kept} kept, ` +
        `${merged} merged, ${pruned} pruned so far`
      : found.maps ? `All ${found.maps[0].length} patches, before any are condensed` : "Nothing is condensed in this run";
    $("block-text").textContent = text;
    $("block").setAttribute("aria-valuetext", text);
    $("canvas").setAttribute("aria-label", `${$("shown-title").textContent}. ${text}`);
  }

  function drawPicture(found) {
    const patches = found.maps?.[0].length ?? 1;
    const grid = columnsOf(patches, picture.width / picture.height);
    const cell = Math.ceil(400 / grid);
    const canvas = $("canvas");
    [canvas.width, canvas.height] = [grid * cell, (patches / grid) * cell];
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = picture.width > 96;
    pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
    if (block) paint(pen, found.maps[block - 1], grid, cell);
  }

  /** Patches side by side in a picture of this width over height; they are squares, and fill it. */
  function columnsOf(patches, ratio) {
    const miss = (columns) => Math.abs(Math.log((columns * columns) / (patches * ratio)));
    let best = 1;
    for (let n = 2; n <= patches; n += 1) if (patches % n === 0 && miss(n) < miss(best)) best = n;
    return best;
  }

  function paint(pen, map, grid, cell) {
    for (let patch = 0; patch < map.length; patch += 1) {
      if (map[patch] === ".") continue;
      const colour = data.palette[map.charCodeAt(patch) - 97];
      pen.fillStyle = map[patch] === "#" ? "black" : `rgba(${colour.join(",")},${data.tint})`;
      pen.fillRect((patch % grid) * cell, Math.floor(patch / grid) * cell, cell, cell);
      if (map[patch] === "#") hatch(pen, (patch % grid) * cell, Math.floor(patch / grid) * cell, cell);
    }
  }

  /** Lines over what is black, so that it can be told from a dark object. */
  function hatch(pen, left, top, cell) {
    pen.save();
    pen.beginPath();
    pen.rect(left, top, cell, cell);
    pen.clip();
    pen.strokeStyle = "#888";
    pen.beginPath();
    for (let x = -cell; x < cell; x += 8) {
      pen.moveTo(left + x, top + cell);
      pen.lineTo(left + x + cell, top);
    }
    pen.stroke();
    pen.restore();
  }

  $("block").addEventListener("input", () => {
    block = Number($("block").value);
    const found = run.pictures[passing[at]];
    tellBlock(found);
    if (picture) drawPicture(found);
  });

  // Wiring
  for (const id of ["class", "domain", "pictured", "verdicts"]) $(id).addEventListener("change", filter);
  $("search").addEventListener("input", filter);
  document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
  $("pick").addEventListener("change", () => openRun(Number($("pick").value)));
  for (const link of document.querySelectorAll("[data-show]")) {
    link.addEventListener("click", () => openRun(Number(link.dataset.show)));
  }
  $("browser").hidden = false;
  const asked = /^#run-(\d+)$/.exec(location.hash);
  openRun(asked && data.runs[asked[1]] ? Number(asked[1]) : Number($("pick").value));
})();
