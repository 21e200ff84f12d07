// Streams as cards.

import * as api from "./api.js";
import { bar, brief, find, make, percent, say, showBlob } from "./dom.js";
import { streams, titleOf } from "./streams.js";

const PAGE = 120; // cards at first
const cards = new Map();
const keeps = document.documentElement.dataset.thumbnails === "true";
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.visible = entry.isIntersecting;
  again();
});
let most = PAGE, fetching = 0, known = false, again = () => {};

// Called when the server has said which streams there are; before that, none are missed.
export function listed() {
  known = true;
}

// Called when there is something to draw that no answer told of.
export function onNews(call) {
  again = call;
}

export function showMore() {
  most += PAGE;
}

function row(plain) {
  const label = make("span", { class: "clamp" }), number = make("span"), whole = bar(plain);
  const line = make("div", { class: plain ? "line plain" : "line" }, label, number, whole);
  line.set = (name, share) => {
    say(label, name);
    say(number, share === null ? "" : percent(share));
    whole.hidden = share === null;
    whole.set(share || 0);
  };
  return line;
}

function makeCard(stream, open) {
  const name = make("button", { type: "button" }), number = make("small");
  const image = make("img", { class: "thumb", alt: "", hidden: "" });
  const blank = make("span", { class: "thumb", "aria-hidden": "true" });
  const ours = row(false), plain = row(true), badges = make("div", { class: "badges" });
  const head = make("h3", {}, name, number);
  const body = make("article", { class: "card" }, head, image, blank, make("div", { class: "lines" }, ours, plain), badges);
  const card = make("li", {}, body);
  Object.assign(card, { name, number, image, blank, ours, plain, badges, body, shown: 0, visible: true });
  name.addEventListener("click", () => open(stream));
  seen.observe(card);
  return card;
}

export function draw(open, chosen) {
  const wanted = find("filter").value.trim().toLowerCase();
  const fits = (one) => !wanted || one.id.includes(wanted) || titleOf(one).toLowerCase().includes(wanted);
  const all = [...streams.values()].filter(fits);
  const shown = all.slice(0, most), list = find("streams");
  for (const [id, card] of cards) {
    if (shown.some((one) => one.id === id)) continue;
    card.remove();
    cards.delete(id);
  }
  shown.forEach((stream, i) => {
    if (!cards.has(stream.id)) cards.set(stream.id, makeCard(stream, open));
    const card = cards.get(stream.id);
    if (list.children[i] !== card) list.insertBefore(card, list.children[i] || null);
    fill(card, stream, stream.id === chosen);
  });
  say(find("count"), streams.size ? (all.length < streams.size ? `${all.length} of ${streams.size}` : `${streams.size}`) : "");
  find("filter-label").hidden = streams.size < 7;
  find("more").hidden = all.length <= shown.length;
  find("empty").hidden = streams.size > 0 || !known;
}

function fill(card, stream, chosen) {
  const answer = stream.last, title = titleOf(stream);
  say(card.name, title);
  card.name.title = title.length > 24 ? brief(title, 300) : "";
  card.body.classList.toggle("chosen", chosen);
  if (chosen) card.name.setAttribute("aria-current", "true");
  else card.name.removeAttribute("aria-current");
  say(card.number, stream.seq ? `#${stream.seq}` : "");
  if (answer) {
    const top = answer.top.find((one) => one.label === answer.zero_shot_label);
    card.ours.set(answer.unknown ? "none of these" : answer.label, answer.score);
    card.plain.set(`zero-shot: ${answer.zero_shot_label}`, top ? top.zero_shot_score : null);
    card.ours.title = brief(answer.label, 300);
  } else {
    card.ours.set(stream.resident ? "no image yet" : "not in memory; comes back with its next image", null);
    card.plain.set(stream.camera && stream.camera.condition !== "live" ? stream.camera.why : "", null);
  }
  badges(card.badges, stream);
  picture(card, stream);
}

export function badgesOf(stream) {
  const answer = stream.last, found = [];
  if (answer && answer.changed) found.push(["changed", "ours"]);
  if (answer && answer.unknown) found.push(["unknown", "warn"]);
  if (answer && answer.refused) found.push(["refused: zero-shot's answer", "bad"]);
  if (stream.noticed && stream.seq - stream.noticed < 30) found.push(["change of domain", "warn"]);
  const camera = stream.camera && `camera ${stream.camera.condition}`;
  if (camera) found.push([camera, { live: "good", lost: "warn", failed: "bad" }[stream.camera.condition] || ""]);
  if (stream.error) found.push([brief(stream.error, 90), "bad"]);
  return found;
}

function badges(box, stream) {
  const found = badgesOf(stream), ms = stream.last && stream.last.ms;
  const key = JSON.stringify([found, Math.round(ms || 0)]);
  if (box.key === key) return;
  box.key = key;
  box.replaceChildren(...found.map(([text, kind]) => make("span", { class: `pill ${kind}` }, text)));
  if (ms) box.append(make("small", {}, `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`));
}

function picture(card, stream) {
  if (stream.picture && card.shown !== stream.pictureSeq) {
    card.shown = stream.pictureSeq;
    showBlob(card.image, stream.picture);
  } else if (keeps && card.visible && stream.last && card.shown < stream.seq && fetching < 4) {
    card.shown = stream.seq;
    fetching += 1;
    api.call("GET", `/v1/streams/${stream.id}/frame`)
      .then((blob) => { if (blob) showBlob(card.image, blob); })
      .catch(() => {})
      .finally(() => { fetching -= 1; again(); });
  }
  card.image.hidden = !card.image.src;
  card.blank.hidden = Boolean(card.image.src);
}
