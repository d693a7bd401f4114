"use strict";

const place = (id) => document.getElementById(id);

function bytes(count) {
  let value = count;
  for (const unit of ["B", "kB", "MB"]) {
    if (value < 999.5) return `${unit === "B" ? value : value.toPrecision(3)} ${unit}`;
    value /= 1000;
  }
  return `${value.toPrecision(3)} GB`;
}

const seconds = (value) => (value < 0.9995 ? `${Math.round(value * 1000)} ms` : `${value.toPrecision(3)} s`);

function chance(p) {
  if (p === null) return "too short to tell";
  return p < 0.0001 ? "< 0.0001" : p.toFixed(4);
}

function say(text, wrong = false) {
  place("status").textContent = text;
  place("status").classList.toggle("wrong", wrong);
}

// The token comes in the fragment of the page's address, which a browser never sends, or is pasted. It is kept for as
// long as this tab is open.
function keepToken(token) {
  sessionStorage.setItem("token", token.trim().split(/\s/).pop());
}

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given !== null) {
  keepToken(given);
  history.replaceState(null, "", location.pathname);
}

async function send(path, body) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const options = { headers, method: body ? "POST" : "GET", body: body && JSON.stringify(body) };
  let reply;
  try {
    reply = await fetch(path, options);
  } catch {
    throw new Error("The gateway does not answer. Is it still running?");
  }
  place("unlock").hidden = reply.status !== 401;
  if (reply.status === 401) throw new Error("The gateway asks for its token.");
  if (!reply.ok) throw new Error((await reply.json()).error.message);
  return reply;
}

const ask = async (path, body) => (await send(path, body)).json();

async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (left + value).split("\n\n");
    left = lines.pop();
    for (const line of lines) if (line !== "data: [DONE]") yield JSON.parse(line.slice("data: ".length));
  }
}

function rows(target, lines) {
  const heads = [...place(target).parentElement.tHead.rows[0].cells].slice(1).map((head) => head.textContent);
  place(target).replaceChildren(...lines.map(([name, ...cells]) => {
    const row = document.createElement("tr");
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = name;
    row.append(head, ...cells.map((text, column) => {
      const cell = document.createElement("td");
      if (target === "bytes" && column === 0) cell.className = "bytes";
      cell.dataset.name = heads[column];
      cell.textContent = text;
      return cell;
    }));
    return row;
  }));
}

function bar(name, share) {
  const item = document.createElement("li");
  const label = document.createElement("span");
  const line = document.createElement("progress");
  const number = document.createElement("span");
  label.textContent = name;
  line.max = 1;
  line.value = share;
  line.setAttribute("aria-label", name);
  number.textContent = `${(100 * share).toFixed(1)} %`;
  item.append(label, line, number);
  return item;
}

// What a model gives: the request to make, the answer in a line, and shares for bars.
const KINDS = {
  label: ["/v1/classify",
    ({ answers: [one] }) => (one.score === null ? one.label : `${one.label}: ${one.score.toFixed(3)}`),
    ({ answers: [one] }) => (one.score === null ? Object.entries(one.probabilities) : [])],
  tokens: ["/v1/tag",
    ({ entities: [found] }) => (found.length ? `${found.length} found` : "nothing found"),
    ({ entities: [found] }) => found.map((part) => [`${part.text} (${part.label})`, part.probability])],
  embedding: ["/v1/embed",
    ({ answers: [one] }) => `a vector of ${one.vector.length} numbers: ` +
      `${one.vector.slice(0, 4).map((value) => value.toFixed(3)).join(", ")}, …`,
    () => []],
};
let kind = "label";

function show(found) {
  const { answers: [answer], server_saw: [run], text_itself: text } = found;
  place("label").className = "label";
  place("label").textContent = KINDS[kind][1](found);
  const shares = KINDS[kind][2](found).sort((a, b) => b[1] - a[1]);
  place("probabilities").replaceChildren(...shares.map(([name, share]) => bar(name, share)));
  place("cut").hidden = !answer.truncated;
  place("cut").textContent = `Only ${answer.tokens_used} of ${answer.tokens} tokens were read: the text is too long.`;
  place("learned").textContent = `One text of at most ${run.tokens} tokens, when it came, and these bytes:`;
  const line = (name, seen) => [name, seen.first_bytes, bytes(seen.size), chance(seen.p_value)];
  rows("bytes", [line("it received", run.received), line("your text, for comparison (not sent)", text)]);
  const cost = answer.cost;
  rows("costs", [
    ["now", bytes(cost.online_bytes), seconds(cost.online_seconds), String(cost.rounds)],
    ["before", bytes(cost.offline_bytes), seconds(cost.offline_seconds), ""],
    ["set-up, once", bytes(cost.setup_bytes), seconds(cost.setup_seconds), ""],
  ]);
  for (const id of ["answer", "seen", "cost"]) place(id).hidden = false;
}

// A text, token by token as they come: after an error in the middle, what was written stays.
async function write() {
  const prompt = place("text").value;
  for (const id of ["answer", "seen", "cost", "cut"]) place(id).hidden = true;
  const reply = await send("/v1/completions", {
    prompt, max_tokens: Number(place("most").value), temperature: 0, stream: true,
    stream_options: { include_usage: true },
  });
  place("label").className = "written";
  place("label").textContent = prompt;
  place("probabilities").replaceChildren();
  place("answer").hidden = false;
  say("Writing …");
  for await (const { choices, usage, cost, error } of events(reply)) {
    if (error) throw new Error(error.message);
    if (!usage) {
      place("label").textContent += choices[0].text;
      continue;
    }
    const count = usage.completion_tokens;
    const rounds = (value) => String(Math.round(value));
    rows("costs", [
      ["now", bytes(cost.online_bytes), seconds(cost.seconds), rounds(cost.rounds)],
      ["a token", bytes(cost.online_bytes / count), seconds(cost.seconds / count), rounds(cost.rounds / count)],
      ["before", bytes(cost.offline_bytes), seconds(cost.offline_seconds), ""],
    ]);
    place("cost").hidden = false;
    place("cut").hidden = false;
    place("cut").textContent =
      `The server learned that your text has ${usage.prompt_tokens} tokens, that ${count} were written, and when.`;
  }
}

place("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = place("send");
  button.disabled = true;
  say("Computing. The first query also prepares randomness, which takes a while …");
  const started = performance.now();
  try {
    if (kind === "text") await write();
    else show(await ask(KINDS[kind][0], { texts: [place("text").value] }));
    say(`Answered after ${seconds((performance.now() - started) / 1000)}.`);
  } catch (error) {
    say(error.message, true);
  } finally {
    button.disabled = false;
  }
});

function describe() {
  ask("/v1/model").then((model) => {
    kind = model.kind;
    say("");
    if (kind === "text") {
      if (place("text").value === place("text").defaultValue) place("text").value = "Once upon a time";
      place("asked").textContent = "The beginning of a text";
      place("send").textContent = "Write privately";
      place("most").max = model.longest;
      place("wanted").hidden = false;
    }
    const gives = { embedding: "embeddings", text: `texts of up to ${model.longest} tokens` };
    place("model").textContent =
      `Server ${model.server}, model ${model.fingerprint.slice(0, 16)}, ` +
      `${gives[kind] ?? `labels ${model.labels.join(", ")}`}. ${model.promise}`;
  }).catch((error) => say(error.message, true));
}

place("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(place("token").value);
  place("token").value = "";
  describe();
});

describe();
