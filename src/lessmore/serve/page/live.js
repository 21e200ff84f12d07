// The live page begins here: it connects, keeps the list of streams, and hands what happens to cards and stage.

import * as api from "./api.js";
import * as cards from "./cards.js";
import { find, make, percent, press, say } from "./dom.js";
import { DeviceCamera, sendImage, Trial } from "./sources.js";
import * as stage from "./stage.js";
import { gone, push, record, streams, take, takeStatus, titleOf } from "./streams.js";

const LIST_EVERY = 5000, QUEUE_EVERY = 2000, DRAW_EVERY = 100, STATUSES = 64, AT_ONCE = 3;
let paused = false, missed = 0, dirty = true, listing = false, trial = null, device = null, drawn = 0;

const tell = (text) => say(find("status"), text);
const touch = () => { dirty = true; };
const failed = (error) => tell(error.message);

async function list() {
  if (listing) return;
  listing = true;
  try {
    const found = (await api.call("GET", "/v1/streams?limit=1000")).streams.filter((one) => !gone.has(one.id));
    const known = new Set(found.map((one) => one.id));
    for (const id of [...streams.keys()]) if (!known.has(id) && !(trial && trial.stream === streams.get(id))) streams.delete(id);
    for (const one of found) Object.assign(record(one.id), { name: one.name, resident: one.resident, camera: one.camera });
    if (stage.current() && !streams.has(stage.current().id)) stage.close();
    // A stream that is not in memory stays out of it: to look at a page is no reason to load thousands.
    const new_ = found.filter((one) => one.resident && !streams.get(one.id).last).slice(0, STATUSES);
    cards.listed();
    touch();
    for (let i = 0; i < new_.length; i += AT_ONCE) {
      await Promise.all(new_.slice(i, i + AT_ONCE).map(
        (one) => api.call("GET", `/v1/streams/${one.id}`).then(takeStatus).catch(() => {})));
      touch();
    }
  } catch (error) {
    if (error.status === 401) askKey(error.message);
  } finally {
    listing = false;
  }
}

async function queue() {
  if (paused || document.hidden || !stage.current()) return;
  const found = /^lessmore_queue_depth (\S+)/m.exec(await api.text("/metrics").catch(() => ""));
  if (found) for (const stream of streams.values()) push(stream.series.queue, Number(found[1]));
}

function onEvent(kind, value) {
  if (gone.has(value.stream)) return;
  if (kind === "error") {
    record(value.stream).error = value.message;
  } else if (kind === "camera") {
    const stream = record(value.stream), lost = value.condition !== "live";
    if (stream.camera && stream.camera.condition !== value.condition) {
      tell(`${titleOf(stream).slice(0, 60)}: camera ${value.condition}${lost && value.why ? `: ${value.why}` : ""}`);
    }
    stream.camera = value;
  } else if (kind === "answer") {
    if (!streams.has(value.stream)) setTimeout(list, 300);
    const before = record(value.stream).noticed, stream = take(value);
    if (stream.noticed !== before) tell(`${titleOf(stream).slice(0, 60)}: a change of domain was noticed at image ${value.seq}`);
    if (stream === stage.current() && !paused && !(trial && trial.stream === stream)) soon(stream);
    missed += paused;
  }
  touch();
}

let asked = null;
function soon(stream) {
  if (asked) return;
  asked = setTimeout(() => { asked = null; stage.refresh(stream); }, 200);
}

function onState(state, error) {
  const pill = find("connection");
  say(pill, state);
  pill.className = `pill ${{ connected: "good", reconnecting: "warn", refused: "bad" }[state] || ""}`;
  if (state === "connected") list();
  if (state === "refused") askKey(error.message);
}

function askKey(text) {
  api.dropKey();
  find("key").hidden = false;
  find("key-text").focus();
  if (text) tell(text);
}

function draw(now) {
  requestAnimationFrame(draw);
  if (!dirty || paused || now - drawn < DRAW_EVERY) return;
  [dirty, drawn] = [false, now];
  const chosen = stage.current();
  cards.draw(open, chosen && chosen.id);
  stage.drawStage();
  drawTrial();
}

function drawTrial() {
  const mine = trial && trial.stream && stage.current() === trial.stream;
  find("trial").hidden = find("trial-tools").hidden = !mine;
  find("send").hidden = Boolean(mine);
  if (!mine) return;
  const { facts: known, scored, right, plainRight: plain } = trial.stream.trial, answer = stage.shown();
  if (!answer || !known.has(answer.seq)) return;
  const { truth, condition, correct } = known.get(answer.seq);
  const verdict = correct === null ? "" : correct ? " ✓" : " ✗";
  const facts = [
    ["it is", condition], ["the truth", truth === null ? "nothing to see" : `${truth}${verdict}`],
    ["adapted", scored ? percent(right / scored, 1) : "–"], ["zero-shot", scored ? percent(plain / scored, 1) : "–"],
  ];
  find("trial-score").replaceChildren(
    ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

async function open(stream) {
  await stage.open(stream);
  touch();
}

// A paused page stands still, and so do its own sources.
find("pause").addEventListener("click", () => {
  paused = !paused;
  press(find("pause"), paused);
  tell(paused ? "Paused: the page stands still; the server does not." : `Going on${missed ? `; ${missed} answers came in between` : ""}.`);
  missed = 0;
  touch();
});

find("compare").addEventListener("click", () => {
  const off = document.body.classList.toggle("off");
  press(find("compare"), !off);
});

find("stage-close").addEventListener("click", () => {
  const { id } = stage.current();
  stop();
  stage.close();
  touch();
  const at = [...streams.keys()].indexOf(id);
  const button = find("streams").querySelectorAll("h3 button")[Math.max(0, at)];
  (button || find("try")).focus();
});

function stop(atOnce = false) {
  if (trial) trial.stop(atOnce);
  trial = null;
  if (device) device.stop();
  device = null;
  say(find("camera"), "Use this device's camera");
}

async function onAnswer(stream) {
  if (stage.current() === stream) await stage.refresh(stream);
  drawTrial(); // before the browser paints: the truth belongs to the picture
  touch();
}

async function tryIt() {
  if (trial) return open(trial.stream);
  trial = new Trial(find("trial-kind").value, onAnswer, () => paused);
  try {
    await trial.start();
    await open(trial.stream);
    tell("A rendered camera sends its frames to a stream of its own. It is removed when you stop it or leave.");
  } catch (error) {
    trial = null;
    failed(error);
  }
}

async function sendFiles(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  if (!images.length) return tell("There is no image among these files.");
  try {
    const stream = stage.current() || await newStream();
    for (const [i, image] of images.entries()) {
      tell(`image ${i + 1} of ${images.length}: ${image.name.slice(0, 80)}`);
      await sendImage(stream, image, onAnswer);
    }
    tell(`${images.length} ${images.length === 1 ? "image was" : "images were"} answered.`);
  } catch (error) {
    failed(error);
  }
}

async function newStream() {
  const { id } = await api.call("POST", "/v1/streams", { name: "From the live page" });
  const stream = Object.assign(record(id), { name: "From the live page", resident: true });
  await open(stream);
  return stream;
}

async function useCamera() {
  if (device) return stop();
  if (!navigator.mediaDevices) return tell("A browser gives its camera to pages of this machine or over HTTPS alone.");
  const mine = device = new DeviceCamera(stage.current(), onAnswer, () => paused);
  try {
    await mine.start();
    say(find("camera"), "Stop the camera");
  } catch (error) {
    device = null;
    tell(`The camera cannot be used: ${error.message}`);
  }
}

for (const id of ["try", "try-too"]) find(id).addEventListener("click", tryIt);
find("trial-stop").addEventListener("click", () => { stop(); stage.close(); touch(); find("try").focus(); });
find("trial-kind").addEventListener("change", () => { stop(); tryIt(); });
find("camera").addEventListener("click", useCamera);
find("file").addEventListener("change", (event) => { sendFiles(event.target.files); });
find("filter").addEventListener("input", touch);
find("more").addEventListener("click", () => { cards.showMore(); touch(); });
find("key").addEventListener("submit", (event) => {
  event.preventDefault();
  api.setKey(find("key-text").value.trim());
  find("key-text").value = "";
  find("key").hidden = true;
  tell("");
  api.listen(onEvent, onState);
});

for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    document.body.classList.toggle("over", kind === "dragover");
    if (kind === "drop") sendFiles(event.dataTransfer.files);
  });
}
addEventListener("pagehide", () => stop(true));

say(find("commands"), [
  `curl --json '{"id": "door"}' ${location.origin}/v1/streams`,
  `curl -F image=@photo.jpg ${location.origin}/v1/streams/door/images`,
].join("\n"));
const keeps = document.documentElement.dataset.thumbnails === "true";
say(find("kept"), keeps ? "" : " The server keeps no pictures: start it with --thumbnails true to see those of other clients.");
cards.onNews(touch);
setInterval(list, LIST_EVERY);
setInterval(queue, QUEUE_EVERY);
requestAnimationFrame(draw);
if (document.documentElement.dataset.keys === "true" && !api.hasKey()) askKey("");
else api.listen(onEvent, onState);
if (location.hash === "#try") tryIt();
