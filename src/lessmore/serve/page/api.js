// Calls of the server. An API key stays in this tab; it goes out as a header and never stands in an address.

const KEY = "lessmore-key";
const SILENCE = 45000; // milliseconds without a word, after which a connection counts as lost

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (text) => sessionStorage.setItem(KEY, text);
export const dropKey = () => sessionStorage.removeItem(KEY);
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function headers(more = {}) {
  return hasKey() ? { ...more, Authorization: `Bearer ${sessionStorage.getItem(KEY)}` } : more;
}

async function problem(answer) {
  let told = { message: `the server answers ${answer.status}`, remedy: "", type: "unknown" };
  try {
    told = (await answer.json()).error || told;
  } catch { /* the body is not ours */ }
  const error = new Error(told.remedy ? `${told.message}; ${told.remedy}` : told.message);
  return Object.assign(error, {
    status: answer.status, type: told.type, after: Number(answer.headers.get("Retry-After")) || 0,
  });
}

// The answer to a call: JSON, a Blob for other types, null where there is nothing.
export async function call(method, path, body, type) {
  const sent = body === undefined || body instanceof Blob ? body : JSON.stringify(body);
  const kind = type || (sent === undefined ? undefined : body instanceof Blob ? body.type : "application/json");
  const answer = await fetch(path, { method, body: sent, headers: headers(kind ? { "Content-Type": kind } : {}) });
  if (!answer.ok) throw await problem(answer);
  if (answer.status === 204) return null;
  return (answer.headers.get("Content-Type") || "").startsWith("application/json") ? answer.json() : answer.blob();
}

export const text = async (path) => (await fetch(path, { headers: headers() })).text();

export const send = (stream, image) =>
  call("POST", `/v1/streams/${stream}/images`, image, image.type || "application/octet-stream");

// A call that outlives the page.
export function leave(method, path) {
  fetch(path, { method, headers: headers(), keepalive: true }).catch(() => {});
}

// Events, for as long as the page lives; after a loss, again. A browser has six connections to one server and keeps
// pages that were left for the way back, so a page that is left lets go of its connection.
let stop = new AbortController();
addEventListener("pagehide", () => stop.abort());

export async function listen(onEvent, onState) {
  let wait = 250;
  for (;;) {
    stop = new AbortController();
    try {
      const answer = await fetch("/v1/events", { headers: headers(), signal: stop.signal });
      if (!answer.ok) throw await problem(answer);
      wait = 250;
      onState("connected");
      await read(answer.body, onEvent);
    } catch (error) {
      if (error.status === 401 || error.status === 403) return onState("refused", error);
    }
    onState("reconnecting");
    await sleep(wait);
    wait = Math.min(4000, 2 * wait);
  }
}

async function read(body, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const alarm = setTimeout(() => stop.abort(), SILENCE);
    const { value, done } = await reader.read();
    clearTimeout(alarm);
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) tell(block, onEvent);
  }
}

function tell(block, onEvent) {
  const lines = block.split("\n");
  const kind = lines.find((line) => line.startsWith("event: "));
  const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
  if (kind && data) onEvent(kind.slice(7), JSON.parse(data));
}
