// What the page knows of the streams.

const KEPT = 240; // points of a chart
const WINDOW = 50; // answers over which the share of changed ones is taken
const RECENT = 60; // answers that may still be shown, because their pictures come later

export const streams = new Map();
export const gone = new Set(); // streams that this page removed; what is still said of them is late

export function record(id) {
  if (!streams.has(id)) {
    streams.set(id, {
      id, name: null, resident: false, seq: 0, last: null, recent: [], error: "", camera: null, changed: [], domains: 0, marks: [],
      series: { ms: [], changed: [], strength: [], drift: [], queue: [] }, picture: null, pictureSeq: 0, trial: null,
    });
  }
  return streams.get(id);
}

export const titleOf = (stream) => stream.name || stream.id;

export function push(list, value) {
  list.push(value);
  if (list.length > KEPT) list.shift();
}

// Take over an answer; one that is not newer than the last is known already.
export function take(answer) {
  const stream = record(answer.stream);
  if (answer.seq <= stream.seq && stream.last && stream.last.ms !== undefined) return stream;
  const known = stream.last !== null;
  Object.assign(stream, { seq: answer.seq, last: answer, error: "", resident: true });
  stream.recent.push(answer);
  if (stream.recent.length > RECENT) stream.recent.shift();
  stream.changed.push(answer.changed);
  if (stream.changed.length > WINDOW) stream.changed.shift();
  push(stream.series.changed, stream.changed.filter(Boolean).length / stream.changed.length);
  if (answer.ms !== undefined && answer.ms !== null) push(stream.series.ms, answer.ms);
  const noticed = known && answer.domain_changes > stream.domains;
  stream.domains = answer.domain_changes;
  push(stream.marks, noticed);
  stream.noticed = noticed ? answer.seq : stream.noticed;
  return stream;
}

// Take over what the server says of a stream that was there before the page.
export function takeStatus(status) {
  const stream = record(status.id);
  stream.health = status.health;
  if (status.seq < stream.seq) stream.seq = 0; // the stream was made again
  if (status.last && status.seq > stream.seq) take(status.last);
  stream.seq = status.seq;
  return stream;
}
