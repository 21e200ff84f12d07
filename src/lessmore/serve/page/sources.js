// Where images come from: files, this device's camera, the rendered camera.

import * as api from "./api.js";
import { find, make, say } from "./dom.js";
import { gone, push, record, streams, take } from "./streams.js";

const CLOSE = 15; // frames are fetched when fewer than this are left
const FRAMES = 40;
const NAMES = { belt: "Rendered camera over a belt", spot: "Rendered camera over a spot" };
const FACTS = 60; // frames whose truth may still be shown

// Send one image, and keep it as the stream's picture.
export async function sendImage(stream, image, onAnswer) {
  const answer = await api.send(stream.id, image);
  stream.picture = image;
  stream.pictureSeq = answer.seq;
  take(answer);
  await onAnswer(stream, answer);
  return answer;
}

// The browser's own camera: as many images as the server answers, four a second at most.
export class DeviceCamera {
  constructor(stream, onAnswer, paused) {
    Object.assign(this, { stream, onAnswer, paused, running: false });
  }

  async start() {
    this.media = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" }, audio: false });
    this.video = make("video", { muted: "", playsinline: "" });
    this.video.srcObject = this.media;
    await this.video.play();
    this.running = true;
    this.loop();
  }

  stop() {
    this.running = false;
    for (const track of this.media ? this.media.getTracks() : []) track.stop();
  }

  async loop() {
    const canvas = make("canvas");
    while (this.running) {
      if (!this.paused()) {
        const side = 384 / Math.max(1, Math.min(this.video.videoWidth, this.video.videoHeight));
        canvas.width = Math.round(this.video.videoWidth * side);
        canvas.height = Math.round(this.video.videoHeight * side);
        canvas.getContext("2d").drawImage(this.video, 0, 0, canvas.width, canvas.height);
        const image = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
        try {
          await sendImage(this.stream, image, this.onAnswer);
        } catch (error) {
          say(find("status"), error.message);
          await api.sleep(1000 * (error.after || 1));
        }
      }
      await api.sleep(250);
    }
  }
}

// A rendered camera over the embedded world. The world knows the truth, so both accuracies can be counted.
export class Trial {
  constructor(kind, onAnswer, paused) {
    Object.assign(this, { kind, onAnswer, paused, frames: [], next: 0, running: false, stream: null, seed: 1 });
  }

  async start() {
    await this.fetchFrames();
    await this.makeStream();
    this.running = true;
    this.ended = this.loop();
  }

  async makeStream() {
    const { id } = await api.call("POST", "/v1/streams", { ...this.setting, name: NAMES[this.kind] });
    this.stream = record(id);
    Object.assign(this.stream, { name: NAMES[this.kind], resident: true });
    this.stream.trial = {
      ours: [], plain: [], marks: [], facts: new Map(), right: 0, plainRight: 0, scored: 0, domains: 0,
    };
  }

  async fetchFrames() {
    const found = await api.call("GET", `/v1/camera?kind=${this.kind}&seed=${this.seed}&start=${this.next}&count=${FRAMES}`);
    this.setting = found.stream;
    this.next += found.frames.length;
    this.frames.push(...found.frames);
  }

  // Its stream goes after the image that is under way; at once, where the page goes too.
  async stop(atOnce) {
    this.running = false;
    if (!this.stream) return;
    const { id } = this.stream;
    streams.delete(id);
    gone.add(id);
    if (!atOnce) await this.ended;
    api.leave("DELETE", `/v1/streams/${id}`);
  }

  async loop() {
    while (this.running) {
      const begun = performance.now();
      try {
        if (this.frames.length < CLOSE && !this.fetching) {
          this.fetching = this.fetchFrames().catch(() => {}).finally(() => { this.fetching = null; });
        }
        if (!this.frames.length) await (this.fetching || this.fetchFrames());
        else if (!this.paused()) await this.step(this.frames[0]);
        else await api.sleep(100);
      } catch (error) {
        if (!this.running) return;
        if (error.status === 404) await this.again();
        else await api.sleep(1000 * (error.after || 1));
      }
      const left = 1000 / Number(find("trial-speed").value) - (performance.now() - begun);
      if (left > 0) await api.sleep(left);
    }
  }

  // The server was started again and knows nothing of the stream: go on with a new one.
  async again() {
    const { trial, id } = this.stream;
    streams.delete(id);
    gone.add(id);
    await this.makeStream().catch(() => api.sleep(1000));
    Object.assign(this.stream, { trial });
  }

  async step(frame) {
    const bytes = Uint8Array.from(atob(frame.image), (letter) => letter.charCodeAt(0));
    const answer = await api.send(this.stream.id, new Blob([bytes], { type: "image/png" }));
    this.frames.shift();
    this.count(frame, answer);
    this.stream.picture = new Blob([bytes], { type: "image/png" });
    this.stream.pictureSeq = answer.seq;
    if (!this.running) return;
    take(answer);
    await this.onAnswer(this.stream, answer);
  }

  count(frame, answer) {
    const { trial } = this.stream;
    const correct = frame.label === null ? null : answer.label === frame.label;
    trial.facts.set(answer.seq, { truth: frame.label, condition: frame.condition, correct });
    trial.facts.delete(answer.seq - FACTS);
    if (frame.label !== null) {
      trial.scored += 1;
      trial.right += correct;
      trial.plainRight += answer.zero_shot_label === frame.label;
      push(trial.ours, trial.right / trial.scored);
      push(trial.plain, trial.plainRight / trial.scored);
      push(trial.marks, answer.domain_changes > trial.domains);
    }
    trial.domains = answer.domain_changes;
  }
}
