// One stream in detail: its picture and tokens, its answer, why, and how it is doing.

import * as api from "./api.js";
import { badgesOf } from "./cards.js";
import { chart } from "./charts.js";
import { bar, brief, find, make, percent, press, say } from "./dom.js";
import { overlay, paint } from "./overlay.js";
import { push, titleOf } from "./streams.js";

const share = { most: 1, text: (value) => percent(value) };
const CHARTS = {
  accuracy: chart("accuracy: adapted / zero-shot", { most: 1, close: true, text: (value) => percent(value, 1) }),
  strength: chart("strength of debiasing", { ...share, text: (value) => value.toFixed(2) }),
  drift: chart("drift: evidence of a change", { text: (value) => value.toFixed(1) }),
  changed: chart("changed answers, last 50", share),
  ms: chart("latency", { text: (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms` }),
  queue: chart("images waiting, all streams", { atLeast: 4, text: (value) => String(Math.round(value)) }),
};
const REASONS = { newer: "late", every: "between", still: "without motion", corrupt: "damaged" };
find("charts").append(...Object.values(CHARTS));

let chosen = null, look = null, bitmap = null, bitmapSeq = -1, withTokens = false, block = Infinity;

export const current = () => chosen;

// The answer to the image whose picture and tokens are shown; the newest one where they are not there yet.
export const shown = () => (look && chosen.recent.find((one) => one.seq === look.seq)) || chosen.last;

export function open(stream) {
  chosen = stream;
  look = bitmap = null;
  bitmapSeq = -1;
  find("stage").hidden = false;
  say(find("verdict"), "");
  find("why").replaceChildren();
  const canvas = find("picture");
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  drawStage();
  find("stage-name").focus({ preventScroll: true });
  find("stage").scrollIntoView({ block: "start" });
  return refresh(stream);
}

export function close() {
  chosen = null;
  find("stage").hidden = true;
}

// Ask where the newest image's tokens went and who voted; then draw all of it.
export async function refresh(stream) {
  try {
    const found = await api.call("GET", `/v1/streams/${stream.id}/look`);
    if (stream !== chosen) return;
    if (found.seq && (!look || found.seq !== look.seq)) {
      push(stream.series.strength, found.strength);
      push(stream.series.drift, found.drift);
    }
    look = found;
    await pictureOf(stream);
    drawStage();
  } catch (error) {
    if (stream === chosen && error.status !== undefined) say(find("stage-facts"), error.message);
  }
}

async function pictureOf(stream) {
  const own = stream.picture && stream.pictureSeq === look.seq ? stream.picture : null;
  if (bitmapSeq === look.seq || (!own && !look.frame)) return;
  const seq = look.seq;
  bitmap = await createImageBitmap(own || dataBlob(look.frame));
  bitmap.cut = own ? look.square : "squash"; // what the server keeps is what the tower saw
  bitmap.ratio = own && look.square !== "keep" ? 1 : bitmap.width / bitmap.height;
  bitmapSeq = seq;
}

function dataBlob(uri) {
  const bytes = Uint8Array.from(atob(uri.split(",")[1]), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/jpeg" });
}

export function drawStage() {
  if (!chosen) return;
  say(find("stage-name"), brief(titleOf(chosen), 160));
  say(find("stage-facts"), [chosen.seq ? `${chosen.seq} images, ${chosen.domains} changes of domain noticed` : "no image yet",
    cameraText(chosen.camera)].filter(Boolean).join("; "));
  drawPicture();
  drawAnswer(shown());
  drawWhy();
  const { series, trial, marks } = chosen;
  CHARTS.accuracy.hidden = !trial;
  if (trial) CHARTS.accuracy.draw([trial.ours, trial.plain], trial.marks);
  for (const name of ["strength", "drift", "changed", "ms", "queue"]) {
    CHARTS[name].draw([series[name]], name === "drift" || name === "changed" ? marks.slice(-series[name].length) : []);
  }
}

function cameraText(camera) {
  if (!camera) return "";
  const left = Object.entries(camera.dropped).filter(([, count]) => count).map(([why, count]) => `${count} ${REASONS[why] || why}`);
  return brief([`camera ${camera.source} ${camera.condition}`, camera.why, left.length ? `left out: ${left.join(", ")}` : ""]
    .filter(Boolean).join("; "), 300);
}

function drawPicture() {
  const canvas = find("picture"), tokens = look && look.tokens, fits = bitmap && look && bitmapSeq === look.seq;
  if (bitmap) paint(canvas, bitmap, bitmap.cut);
  else if (tokens && withTokens) canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  if (tokens) {
    find("block").max = tokens.blocks.length - 1;
    block = Math.min(block, tokens.blocks.length - 1);
    find("block").value = block;
    say(find("block-text"), String(tokens.blocks[block]));
    if (withTokens && (fits || !bitmap)) overlay(canvas, tokens, block, bitmap ? bitmap.ratio : 1);
  }
  find("tokens").disabled = look !== null && !tokens;
  find("block-label").hidden = find("tokens-key").hidden = !withTokens || !tokens;
  const what = bitmap ? `image ${bitmapSeq}` : "this page has no picture of the newest image";
  const left = tokens ? `${tokens.left[block]} of ${tokens.fate[block].length} patches are left after block ${tokens.blocks[block]}` : "";
  say(find("picture-text"), bitmap || look ? [what, withTokens ? left : ""].filter(Boolean).join("; ") : "");
  canvas.setAttribute("aria-label", [what, withTokens ? left : ""].filter(Boolean).join("; "));
}

function drawAnswer(answer) {
  if (!answer) return say(find("verdict"), "no image yet");
  const label = make("b", { class: "clamp", title: brief(answer.label, 300) }, answer.unknown ? "none of these" : answer.label);
  const pills = badgesOf(chosen).map(([text, kind]) => make("span", { class: `pill ${kind}` }, text));
  if (answer.changed) pills.unshift(make("span", { class: "faint clamp plain" }, `zero-shot: ${answer.zero_shot_label}`));
  find("verdict").replaceChildren(label, ...pills);
  const rows = answer.top.map((one) => {
    const [ours, plain] = [bar(), bar(true)];
    ours.set(one.score);
    plain.set(one.zero_shot_score);
    return make("tr", {},
      make("th", { scope: "row" }, make("span", { class: "clamp", title: brief(one.label, 300) }, one.label)),
      make("td", {}, percent(one.score, 1), ours),
      make("td", { class: "plain" }, percent(one.zero_shot_score, 1), plain));
  });
  find("scores").tBodies[0].replaceChildren(...rows);
}

function drawWhy() {
  const votes = (look && look.votes) || [];
  const key = JSON.stringify(votes.map((vote) => [vote.label, vote.images.map((image) => [image.number, image.added])]));
  const box = find("why");
  if (box.key === key && box.childElementCount) return;
  box.key = key;
  if (!votes.some((vote) => vote.images.length)) {
    return box.replaceChildren(make("p", {}, "No stored image votes: nothing is stored of these classes, or this setting gives memory no vote."));
  }
  box.replaceChildren(...votes.flatMap((vote) => [
    make("p", { class: "clamp" }, vote.label),
    make("ul", {}, ...(vote.images.length ? vote.images.map(voter) : [make("li", {}, "none")])),
  ]));
}

function voter(image) {
  const added = image.added === null ? "" : `${image.added < 0 ? "−" : "+"}${Math.abs(image.added).toFixed(2)}`;
  const picture = image.thumbnail
    ? make("img", { src: image.thumbnail, alt: `stored image ${image.number}`, width: 64, height: 64 })
    : make("span", { class: "blank", "aria-hidden": "true" });
  const title = `image ${image.number} added ${added || "nothing finite"}; entropy of its answer: ${image.entropy.toFixed(3)} nats`;
  return make("li", { title }, picture, make("span", {}, `#${image.number}`), make("b", {}, added));
}

find("tokens").addEventListener("click", () => {
  withTokens = !withTokens;
  press(find("tokens"), withTokens);
  drawStage();
});
find("picture").addEventListener("click", () => find("tokens").click());
find("block").addEventListener("input", (event) => {
  block = Number(event.target.value);
  drawStage();
});
