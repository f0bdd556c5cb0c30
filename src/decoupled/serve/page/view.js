// Elements from data. Text only ever becomes text nodes, so nothing in a passage can act.

export function make(name, options = {}, ...children) {
  const { on = {}, data = {}, ...rest } = options;
  const element = Object.assign(document.createElement(name), rest);
  for (const [event, act] of Object.entries(on)) element.addEventListener(event, act);
  for (const [name, value] of Object.entries(data)) element.dataset[name] = value;
  element.append(...children.filter((child) => child !== null && child !== ""));
  return element;
}

export const percent = (share) => (share >= 0.9995 ? "100" : (share * 100).toFixed(share < 0.0995 ? 1 : 0)) + " %";
export const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
export const milliseconds = (ms) => (ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${ms.toFixed(ms < 10 ? 1 : 0)} ms`);

// The server counts characters as Unicode does; a JavaScript string counts an emoji twice.
export function highlighted(text, spans, from = 0, to = Infinity) {
  const signs = Array.from(text).slice(0, to);
  const parts = [];
  let at = from;
  for (const [start, end] of [...spans].sort((a, b) => a[0] - b[0])) {
    if (start < at || end > signs.length || end <= start) continue;
    parts.push(signs.slice(at, start).join(""), make("mark", {}, signs.slice(start, end).join("")));
    at = end;
  }
  return [...parts, signs.slice(at).join("")];
}

const ROOM = 160;
const WORD = 40;

// The end of the word at a place; the place itself in scripts that put no spaces between words.
function wordEnd(signs, place) {
  const gap = signs.indexOf(" ", place);
  return gap >= 0 && gap - place <= WORD ? gap : Math.min(place, signs.length);
}

// Lines as one, paragraphs apart; as long as before, so that places stay what they are.
const flowing = (text) =>
  text.replace(/\s+/g, (gap) => {
    const lines = gap.split("\n").length;
    return lines > 2 ? "\n".padEnd(gap.length) : lines > 1 ? " ".padStart(gap.length) : gap;
  });

// A passage with its spans marked; a long one shows what stands around the first span until asked for all.
export function passage(whole, spans) {
  const text = flowing(whole);
  const signs = Array.from(text);
  const [first, last] = spans.length ? spans[0] : [0, 0];
  const from = first <= ROOM ? 0 : wordEnd(signs, first - ROOM);
  const to = wordEnd(signs, last + ROOM + Math.max(0, ROOM - first));
  const all = from === 0 && to >= signs.length - WORD;
  const words = make("p", { className: "words", dir: "auto" });
  const short = () =>
    words.replaceChildren(from ? "… " : "", ...highlighted(text, spans, from, to), to < signs.length ? " …" : "");
  const long = () => words.replaceChildren(...highlighted(text, spans));
  if (all) {
    long();
    return make("div", { className: "passage" }, words);
  }
  short();
  const more = make("button", { type: "button", className: "link more", textContent: "Show all" });
  more.addEventListener("click", () => {
    const open = more.textContent === "Show all";
    (open ? long : short)();
    more.textContent = open ? "Show less" : "Show all";
  });
  return make("div", { className: "passage" }, words, more);
}

const STAGES = [
  ["encode", "query through the lower layers"],
  ["retrieve", "candidates from the index"],
  ["fetch", "their stored states"],
  ["cross", "query and passages through the upper layers"],
];

// One bar: what share of the longest of `scale` milliseconds each stage took.
export function bar(timing, scale = timing.total_ms) {
  const share = (ms) => `${Math.max(0, (100 * ms) / Math.max(scale, 1e-9))}%`;
  const known = STAGES.reduce((sum, [name]) => sum + timing[`${name}_ms`], 0);
  const rest = Math.max(0, timing.total_ms - known);
  const pieces = [...STAGES.map(([name]) => [name, timing[`${name}_ms`]]), ["other", rest]];
  const element = make("div", { className: "bar", role: "img" });
  element.setAttribute("aria-label", pieces.map(([name, ms]) => `${name} ${milliseconds(ms)}`).join(", "));
  for (const [name, ms] of pieces) {
    const piece = make("span", { className: `stage ${name}`, title: `${name} ${milliseconds(ms)}` });
    piece.style.width = share(ms);
    element.append(piece);
  }
  return element;
}

export function legend(timing) {
  return make(
    "ul",
    { className: "legend" },
    ...STAGES.map(([name, words]) =>
      make(
        "li",
        { title: words },
        make("i", { className: `stage ${name}` }),
        make("span", {}, name),
        make("b", {}, milliseconds(timing[`${name}_ms`])),
      ),
    ),
  );
}

export function score(value) {
  const fill = make("i", {});
  fill.style.width = `${Math.round(100 * value)}%`;
  const element = make("span", { className: "score", title: "score, between 0 and 1" }, make("b", {}, percent(value)));
  element.append(make("span", { className: "meter" }, fill));
  return element;
}

// A button that asks once more before it acts; `what` it acts on is for those who cannot see where it stands.
export function sureButton(label, what, act) {
  const button = make("button", { type: "button", className: "quiet delete" });
  const say = (words) => Object.assign(button, { textContent: words, ariaLabel: `${words} ${what}` });
  say(label);
  let armed = null;
  const calm = () => {
    clearTimeout(armed);
    armed = null;
    say(label);
    button.classList.remove("armed");
  };
  button.addEventListener("click", () => {
    if (armed) {
      calm();
      act(button);
      return;
    }
    say("Really delete?");
    button.classList.add("armed");
    armed = setTimeout(calm, 4000);
  });
  button.addEventListener("blur", calm);
  return button;
}
