// The page: one question at a time, its answers, and where the milliseconds went.

import * as api from "./api.js";
import { wireAdding } from "./adding.js";
import { clear, showAnswers, showHits, showTime, showVersus, showWaiting } from "./results.js";
import { wireSource } from "./source.js";
import { count, make } from "./view.js";

const ANSWERS = 3;
const HITS = 10;
const EXAMPLES = 6;

const at = (id) => document.getElementById(id);
const COMPARED = 5;
const state = { question: "", source: "", running: null, passages: null, again: () => {} };

// Asking ------------------------------------------------------------------------------------------

const scope = () => (state.source ? { where: { document: state.source } } : {});

async function askFor(question) {
  state.running?.abort();
  state.running = new AbortController();
  const { signal } = state.running;
  state.question = question;
  document.body.classList.add("asked");
  remember(question, state.source);
  showFilter();
  await attempt(() => askFor(question), signal, async () => {
    const found = await readSpans(question, signal);
    if (found) {
      showAnswers(found, source.open);
      showTime(found.timing, candidates(), () => compare(question));
      reveal();
    }
    const ranked = await api.search(question, { k: HITS, ...scope() }, signal);
    if (!found) {
      at("answers").replaceChildren();
      showTime(ranked.timing, candidates(), () => compare(question));
    }
    showHits(ranked.hits, found ? found.answers : [], { remove, open: source.open });
    reveal();
  });
}

// A model without a span head ranks, and that is fine.
async function readSpans(question, signal) {
  try {
    return await api.ask(question, { k: ANSWERS, ...scope() }, signal);
  } catch (error) {
    if (error.status === 422) return null;
    throw error;
  }
}

async function compare(question) {
  const button = at("compare");
  button.disabled = true;
  const { signal } = state.running;
  const call = at("answers").childElementCount > 0 ? api.ask : api.search;
  try {
    const runs = [];
    // The first run loads what either side needs, and does not count.
    for (let run = 0; run <= COMPARED; run += 1) {
      showWaiting(run, COMPARED);
      runs.push(await call(question, { k: ANSWERS, joint: true, ...scope() }, signal));
    }
    showVersus(runs.slice(1));
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) askForKey();
    at("versus").replaceChildren(make("p", { className: "problem-line" }, error.message));
  }
  button.disabled = false;
}

function only(name) {
  state.source = name;
  showFilter();
  if (state.question) askFor(state.question);
}

function showFilter() {
  at("filter").hidden = !state.source;
  at("filter-name").textContent = state.source;
}

async function remove(id, button) {
  button.disabled = true;
  try {
    const left = await api.remove(id);
    const shown = [...document.querySelectorAll("[data-id]")].filter((item) => item.dataset.id === id);
    for (const item of shown) item.closest("li")?.remove();
    tell("Deleted");
    holds(left.passages);
    if (shown.some((item) => at("answers").contains(item))) askFor(state.question);
  } catch (error) {
    button.disabled = false;
    if (error.status === 401) askForKey();
    else tell(error.message);
  }
}

const candidates = () => (state.passages === null ? 0 : Math.min(100, state.passages));

// States of the page ------------------------------------------------------------------------------

async function attempt(again, signal, work) {
  state.again = again;
  at("problem").hidden = true;
  const waiting = setTimeout(() => (at("busy").hidden = false), 120);
  at("results").classList.add("stale");
  try {
    await work();
  } catch (error) {
    if (signal.aborted) return;
    fail(error);
  } finally {
    clearTimeout(waiting);
    if (!signal.aborted) {
      at("busy").hidden = true;
      at("results").classList.remove("stale");
    }
  }
}

function fail(error) {
  if (error.status === 401) askForKey();
  at("problem-text").textContent = error.message;
  at("problem").hidden = false;
  // What is left of an earlier question would look like the answer to this one.
  clear();
  at("results").hidden = true;
}

function reveal() {
  at("busy").hidden = true;
  at("results").hidden = false;
}

function holds(passages) {
  state.passages = passages;
  at("empty").hidden = passages !== 0;
  const facts = at("facts");
  const name = facts.dataset.name ? `${facts.dataset.name} · ` : "";
  facts.replaceChildren(name, make("b", {}, count(passages, "passage")));
}

function tell(words) {
  const toast = at("toast");
  toast.textContent = words;
  toast.hidden = false;
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => (toast.hidden = true), 4000);
}

function startOver() {
  state.running?.abort();
  at("question").value = "";
  at("results").hidden = at("problem").hidden = at("busy").hidden = true;
  document.body.classList.remove("asked");
  state.question = state.source = "";
  showFilter();
  remember("");
}

// The question is part of the address: a link to share, and a place to come back to.
const named = (name = "q") => (new URLSearchParams(location.search).get(name) || "").trim();

function remember(question, source = "") {
  const within = source ? `&in=${encodeURIComponent(source)}` : "";
  const place = question ? `?q=${encodeURIComponent(question)}${within}` : location.pathname;
  if (question !== named() || source !== named("in")) history.pushState(null, "", place);
  document.title = question ? `${question} · decoupled` : "decoupled";
}

// Set-up ------------------------------------------------------------------------------------------

async function describe() {
  try {
    const found = await api.info();
    at("model").textContent = ["Read with", found.model, found.codec && `stored as ${found.codec}`].filter(Boolean).join(" ");
    at("facts").dataset.name = found.name || "";
    offerExamples(found.samples || []);
    at("ask").hidden = at("open-add").hidden = found.kind !== "index";
    at("model-only").hidden = found.kind === "index";
    if (found.kind === "index") holds(found.passages);
  } catch (error) {
    state.again = describe;
    fail(error);
  }
}

async function offerExamples(samples) {
  const { questions: chosen } = await api.questions().catch(() => ({ questions: [] }));
  const questions = chosen.length ? chosen : samples;
  at("examples").replaceChildren(
    ...questions.slice(0, EXAMPLES).map((question) =>
      make("button", { type: "button", textContent: question, on: { click: () => submit(question) } }),
    ),
  );
  at("examples").hidden = !questions.length;
}

function submit(question) {
  at("question").value = question;
  if (question.trim()) askFor(question.trim());
}

function askForKey() {
  at("key-hint").textContent = "This server asks for a key. It is sent with every request, and forgotten when this tab closes.";
  openKey();
}

function openKey() {
  at("key-value").value = api.key.read();
  if (!at("key").open) at("key").showModal();
}

function wireKey() {
  at("open-key").addEventListener("click", openKey);
  at("key-close").addEventListener("click", () => at("key").close());
  at("key-form").addEventListener("submit", () => {
    api.key.write(at("key-value").value.trim());
    at("problem").hidden = true;
    state.again();
  });
}

function wireTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = localStorage.getItem("decoupled.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  at("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("decoupled.theme", next);
  });
}

function wireKeys() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      at("question").focus();
      at("question").select();
    }
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      startOver();
      at("question").focus();
    }
  });
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  submit(at("question").value);
});
at("retry").addEventListener("click", () => {
  at("problem").hidden = true;
  state.again();
});
const source = wireSource({ only });
at("filter-off").addEventListener("click", () => only(""));
addEventListener("offline", () => tell("You are offline: questions cannot be answered"));
addEventListener("online", () => {
  if (!at("problem").hidden) state.again();
});
wireTheme();
wireKeys();
wireKey();
wireAdding({ changed: holds, remove, needKey: askForKey });
describe();
const resume = () => {
  state.source = named("in");
  submit(named());
};
addEventListener("popstate", () => (named() ? resume() : startOver()));
if (named()) resume();
