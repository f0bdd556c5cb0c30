// The dialog that adds passages: pasted or from files, in parts, with what was added at hand to delete.

import * as api from "./api.js";
import { fromFile, fromText, readHere } from "./files.js";
import { count, make, sureButton } from "./view.js";

const PART = 64;

const at = (id) => document.getElementById(id);
let files = [];
let documents = [];

export function wireAdding({ changed, remove, needKey }) {
  const dialog = at("add");
  const open = () => {
    dialog.showModal();
    at("add-text").focus();
  };
  at("open-add").addEventListener("click", open);
  at("empty-add").addEventListener("click", open);
  at("add-close").addEventListener("click", () => dialog.close());
  at("add-text").addEventListener("input", recount);
  at("add-file").addEventListener("change", () => choose(at("add-file").files));
  for (const name of ["dragover", "drop"])
    at("drop").addEventListener(name, (event) => {
      event.preventDefault();
      if (name === "drop") choose(event.dataTransfer.files);
    });
  // A file that is dropped anywhere on the page is one to add.
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (event.defaultPrevented || at("open-add").hidden || !event.dataTransfer.files.length) return;
    event.preventDefault();
    if (!dialog.open) open();
    choose(event.dataTransfer.files);
  });
  at("add-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    await send({ changed, remove, needKey });
  });
}

function pending() {
  return [...fromText(at("add-text").value, at("add-name").value.trim()), ...files];
}

function recount() {
  const parts = [[pending(), "passage"], [documents, "document"]].filter(([some]) => some.length);
  at("add-count").textContent = parts.length
    ? `${parts.map(([some, name]) => count(some.length, name)).join(" and ")} to add`
    : "";
  at("add-send").disabled = !parts.length;
}

async function choose(chosen) {
  say("");
  files = [];
  documents = [...chosen].filter((file) => !readHere(file));
  try {
    for (const file of chosen) if (readHere(file)) files.push(...(await fromFile(file)));
  } catch (error) {
    files = documents = [];
    say(error.message);
  }
  recount();
}

async function send({ changed, remove, needKey }) {
  const passages = pending();
  const progress = at("add-progress");
  say("");
  at("add-send").disabled = true;
  progress.hidden = false;
  try {
    for (let done = 0; done < passages.length; done += PART) {
      progress.value = done / passages.length;
      const part = passages.slice(done, done + PART);
      const result = await api.add(part);
      result.ids.forEach((id, i) => list(id, part[i], remove));
      changed(result.passages);
    }
    let added = passages.length;
    for (const file of [...documents]) {
      const result = await api.addDocument(file);
      documents.shift();
      added += result.ids.length;
      note(`${file.name}: ${count(result.ids.length, "passage")}`);
      changed(result.passages);
    }
    at("add-count").textContent = `${count(added, "passage")} added`;
    at("add-text").value = "";
    at("add-file").value = "";
    files = [];
  } catch (error) {
    say(error.message);
    at("add-send").disabled = false;
    if (error.status === 401) needKey();
  } finally {
    progress.hidden = true;
  }
}

function list(id, passage, remove) {
  const item = make(
    "li",
    { data: { id } },
    make("span", { className: "text" }, passage.title ? `${passage.title}: ${passage.text}` : passage.text),
    sureButton("Delete", passage.title || id, (button) => remove(id, button)),
  );
  at("added").prepend(item);
}

function note(words) {
  at("added").prepend(make("li", {}, make("span", { className: "text" }, words)));
}

function say(words) {
  at("add-problem").textContent = words;
  at("add-problem").hidden = !words;
}
