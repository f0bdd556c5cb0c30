// What an answered question looks like.

import { bar, count, legend, make, milliseconds, passage, score, sureButton } from "./view.js";

const at = (id) => document.getElementById(id);

export function showAnswers(found) {
  const [best, ...others] = found.answers;
  const box = at("answers");
  if (!best) {
    box.replaceChildren(
      make("p", { className: "none" }, "No passage answers this."),
      make("p", { className: "hint" }, "The closest passages are below."),
    );
    return;
  }
  box.replaceChildren(
    make(
      "article",
      { className: "best" },
      make("p", { className: "answer", id: "best-answer", dir: "auto" }, best.text),
      passage(best.passage, [[best.start, best.end]]),
      make("p", { className: "source" }, score(best.score), source(best)),
    ),
    ...others.map((answer) =>
      make(
        "details",
        { className: "other" },
        make("summary", {}, make("span", { className: "text", dir: "auto" }, answer.text), source(answer), score(answer.score)),
        passage(answer.passage, [[answer.start, answer.end]]),
      ),
    ),
  );
}

function source(answer) {
  const { passage_id: id } = answer;
  return make("span", { className: "from", title: id, dir: "auto", data: { id } }, id);
}

export function showTime(timing, records, compare) {
  at("time").replaceChildren(
    make(
      "p",
      { className: "total" },
      make("b", { id: "total" }, milliseconds(timing.total_ms)),
      records ? ` to read ${count(records, "candidate")}` : "",
      make("button", { type: "button", id: "compare", className: "quiet", on: { click: compare } }, "Compare with the joint model"),
    ),
    bar(timing),
    legend(timing),
  );
  at("versus").replaceChildren();
}

export function showWaiting() {
  at("versus").replaceChildren(
    make("p", { className: "hint waiting" }, "The joint model reads every candidate through all of its layers…"),
  );
}

export function showVersus(split, joint) {
  const scale = Math.max(split.timing.total_ms, joint.timing.total_ms);
  const times = joint.timing.total_ms / split.timing.total_ms;
  const words = times >= 1.05 ? `${times.toFixed(1)}× faster` : times > 0.95 ? "As fast" : `${(1 / times).toFixed(1)}× slower`;
  // Weights that were trained split answer badly when they read jointly: comparing answers would mislead.
  const answers = !joint.trained_split;
  const side = (title, found, name) =>
    make(
      "div",
      { className: `side ${name}` },
      make("h3", {}, title),
      make("p", { className: "ms" }, milliseconds(found.timing.total_ms)),
      bar(found.timing, scale),
      answers ? make("ol", {}, ...best(found).map(([text, value]) => make("li", {}, make("span", {}, text), score(value)))) : "",
    );
  at("versus").replaceChildren(
    make("p", { className: "verdict" }, make("b", { id: "speedup" }, words), " than the joint model"),
    make("div", { className: "sides" }, side("Split: upper layers, stored passages", split, "split"), side("Joint: all layers, every passage", joint, "joint")),
    make(
      "p",
      { className: "hint" },
      "Same weights, same candidates; the joint time leaves out finding them.",
      answers ? "" : " Only time is compared: these weights were trained split, so they read best that way.",
    ),
  );
}

function best(found) {
  if (found.answers) return found.answers.map((answer) => [answer.text, answer.score]);
  return found.hits.slice(0, 3).map((hit) => [hit.title || hit.id, hit.score]);
}

export function showHits(hits, answers, remove) {
  at("ranked").replaceChildren(...hits.map((hit, place) => row(hit, place, answers, remove)));
  const titles = new Map(hits.filter((hit) => hit.title).map((hit) => [hit.id, hit.title]));
  for (const from of at("answers").querySelectorAll(".from"))
    from.textContent = titles.get(from.dataset.id) || from.dataset.id;
}

function row(hit, place, answers, remove) {
  const spans = answers
    .filter((answer) => answer.passage_id === hit.id)
    .map((answer) => [answer.start, answer.end].map((sign) => sign + answer.offset - hit.offset))
    .filter(([start]) => start >= 0);
  return make(
    "li",
    { className: "hit", data: { id: hit.id } },
    make("span", { className: "rank", ariaHidden: "true" }, String(place + 1)),
    make(
      "div",
      {},
      make("p", { className: "head" }, make("b", { title: hit.title || hit.id, dir: "auto" }, hit.title || hit.id), make("code", {}, hit.title ? hit.id : ""), score(hit.score)),
      passage(hit.text, spans),
      sureButton("Delete", hit.title || hit.id, (button) => remove(hit.id, button)),
    ),
  );
}
