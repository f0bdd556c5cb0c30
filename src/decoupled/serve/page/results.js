// What an answered question looks like.

import { placed } from "./source.js";
import { bar, count, legend, make, milliseconds, passage, score, sureButton } from "./view.js";

const at = (id) => document.getElementById(id);

export function clear() {
  for (const id of ["answers", "time", "versus", "ranked"]) at(id).replaceChildren();
}

export function showAnswers(found, open) {
  const [best, ...others] = found.answers;
  const box = at("answers");
  const notes = (found.notes || []).map((note) => make("p", { className: "hint note" }, note));
  if (!best) {
    box.replaceChildren(...notes, noAnswer(found.rejected || [], open));
    return;
  }
  box.replaceChildren(
    ...notes,
    make(
      "article",
      { className: "best" },
      make("p", { className: "answer", id: "best-answer", dir: "auto" }, best.text),
      passage(best.passage, [[best.start, best.end]]),
      make("p", { className: "source" }, score(best.score), source(best, open)),
      evidence(best, open),
    ),
    ...others.map((answer) =>
      make(
        "details",
        { className: "other" },
        make("summary", {}, make("span", { className: "text", dir: "auto" }, answer.text), places(answer), score(answer.score)),
        passage(answer.passage, [[answer.start, answer.end]]),
        make("p", { className: "source" }, source(answer, open)),
        evidence(answer, open),
      ),
    ),
  );
}

// A state of its own: nothing is good enough, and who wants to may see the guesses.
function noAnswer(guesses, open) {
  return make(
    "article",
    { className: "best silent" },
    make("p", { className: "none" }, "No answer found"),
    make("p", { className: "hint" }, "Nothing in these documents answers this well enough. The closest passages are below."),
    guesses.length
      ? make(
          "details",
          { className: "other guesses" },
          make("summary", {}, guesses.length === 1 ? "Show the best guess" : "Show the best guesses"),
          ...guesses.map((guess) =>
            make("div", {}, passage(guess.passage, [[guess.start, guess.end]]), make("p", { className: "source" }, score(guess.score), source(guess, open))),
          ),
        )
      : "",
  );
}

const places = (answer) => (answer.evidence.length > 1 ? make("span", { className: "places" }, count(answer.evidence.length, "place")) : "");

// The other passages that say the same: the score is the sum of theirs.
function evidence(answer, open) {
  const rest = answer.evidence.slice(1);
  if (!rest.length) return "";
  return make(
    "details",
    { className: "evidence" },
    make("summary", {}, `Also said in ${count(rest.length, "other place")}`),
    make(
      "ol",
      {},
      ...rest.map((one) =>
        make("li", {}, passage(one.passage, [[one.start, one.end]]), make("p", { className: "source" }, score(one.score), source(one, open))),
      ),
    ),
  );
}

// Document and heading path, which open the text around.
function source(found, open) {
  const { passage_id: id, start, end, offset } = found;
  return make(
    "button",
    {
      type: "button",
      className: "from",
      title: `${id}: show the text around it`,
      dir: "auto",
      data: { id },
      on: { click: () => open(id, [[start + offset, end + offset]]) },
    },
    ...path(found),
  );
}

function path(found) {
  const { name, heading, page } = placed(found);
  const rest = [name === heading ? "" : name, page].filter(Boolean).map((part) => ` · ${part}`);
  return [make("span", { className: "document" }, heading), ...rest];
}

export function showTime(timing, records, compare) {
  at("time").replaceChildren(
    make(
      "p",
      { className: "total" },
      make("b", { id: "total" }, milliseconds(timing.total_ms)),
      records ? ` for ${count(records, "candidate")}` : "",
      make("button", { type: "button", id: "compare", className: "quiet", on: { click: compare } }, "Compare with the joint model"),
    ),
    bar(timing),
    legend(timing),
  );
  at("versus").replaceChildren();
}

export function showWaiting(run, runs) {
  const words = run ? `Run ${run} of ${runs}…` : "Loading the joint model, which reads every candidate through all of its layers…";
  at("versus").replaceChildren(make("p", { className: "hint waiting" }, words));
}

// The run in the middle, by its whole time.
const middle = (timings) => [...timings].sort((a, b) => a.total_ms - b.total_ms)[Math.floor(timings.length / 2)];

export function showVersus(runs) {
  const { joint, ...split } = runs[runs.length - 1];
  const times = { split: middle(runs.map((run) => run.timing)), joint: middle(runs.map((run) => run.joint.timing)) };
  const scale = Math.max(times.split.total_ms, times.joint.total_ms);
  const ratio = times.joint.total_ms / times.split.total_ms;
  const words = ratio >= 1.05 ? `${ratio.toFixed(1)}× faster` : ratio > 0.95 ? "As fast" : `${(1 / ratio).toFixed(1)}× slower`;
  // Weights that were trained split answer badly when they read jointly: comparing answers would mislead.
  const answers = !joint.trained_split;
  const side = (title, found, name) =>
    make(
      "div",
      { className: `side ${name}` },
      make("h3", {}, title),
      make("p", { className: "ms" }, milliseconds(times[name].total_ms)),
      bar(times[name], scale),
      answers ? make("ol", {}, ...best(found).map(([text, value]) => make("li", {}, make("span", {}, text), score(value)))) : "",
    );
  at("versus").replaceChildren(
    make("p", { className: "verdict" }, make("b", { id: "speedup" }, words), " than the joint model"),
    make("div", { className: "sides" }, side("Split: upper layers, stored passages", split, "split"), side("Joint: all layers, every passage", joint, "joint")),
    make(
      "p",
      { className: "hint" },
      `Median of ${runs.length} runs each, both loaded before. The same weights in fp32, unsplit, read the same candidates; finding them counts for the split side alone.`,
      answers ? "" : " Only time is compared: these weights were trained split, so they read best that way.",
    ),
  );
}

function best(found) {
  if (found.answers) return found.answers.map((answer) => [answer.text, answer.score]);
  return found.hits.slice(0, 3).map((hit) => [hit.title || hit.id, hit.score]);
}

export function showHits(hits, answers, acts) {
  at("ranked").replaceChildren(...hits.map((hit, place) => row(hit, place, answers, acts)));
}

function row(hit, place, answers, { remove, open }) {
  const spans = answers
    .flatMap((answer) => answer.evidence)
    .filter((one) => one.passage_id === hit.id)
    .map((one) => [one.start, one.end].map((sign) => sign + one.offset - hit.offset))
    .filter(([start]) => start >= 0);
  const { name, title, heading, above, page, link } = placed(hit);
  const file = heading === (name || hit.id) ? "" : name || hit.id;
  const whole = spans.map((span) => span.map((sign) => sign + hit.offset));
  return make(
    "li",
    { className: "hit", data: { id: hit.id } },
    make("span", { className: "rank", ariaHidden: "true" }, String(place + 1)),
    make(
      "div",
      {},
      make(
        "p",
        { className: "head" },
        make("button", { type: "button", className: "open", title: "Show the text around it", dir: "auto", on: { click: () => open(hit.id, whole) } }, heading),
        link ? make("a", { href: link, target: "_blank", rel: "noopener", title: "The file" }, make("code", {}, file || name)) : make("code", {}, file),
        page ? make("span", { className: "places" }, page) : "",
        score(hit.score),
      ),
      above ? make("p", { className: "above", dir: "auto" }, above) : "",
      passage(hit.text, spans),
      sureButton("Delete", title || hit.id, (button) => remove(hit.id, button)),
    ),
  );
}
