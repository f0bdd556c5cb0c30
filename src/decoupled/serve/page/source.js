// Where a passage stands: the text around it, in the document's order, with the passage and its answers marked.

import * as api from "./api.js";
import { highlighted, make } from "./view.js";

const at = (id) => document.getElementById(id);

// Name and place of what was found, as the index knows them: [document, heading path, characters].
export function placed({ id, passage_id: other, title, meta = {}, link = "" }) {
  const name = typeof meta.document === "string" ? meta.document : "";
  const cut = name && Number.isInteger(meta.start);
  const path = title ? title.split(" › ") : [];
  return {
    name: cut ? name : "",
    title: title || (cut ? "" : id || other),
    heading: path.at(-1) || (cut ? name.split("/").at(-1) : id || other),
    above: path.slice(0, -1).join(" › "),
    start: cut ? meta.start : null,
    end: meta.end,
    page: Number.isInteger(meta.page) ? `page ${meta.page}` : "",
    // Browsers do not follow links to files: the server sends the file, if the index lists it.
    link: link && `/v1/source/${encodeURIComponent(id || other)}${Number.isInteger(meta.page) ? `#page=${meta.page}` : ""}`,
  };
}

export function wireSource({ only }) {
  const dialog = at("source");
  let shown = "";
  at("source-close").addEventListener("click", () => dialog.close());
  at("source-only").addEventListener("click", () => {
    dialog.close();
    only(shown);
  });

  async function open(id, spans = []) {
    const box = at("source-text");
    box.replaceChildren(make("p", { className: "hint" }, "Reading…"));
    at("source-title").textContent = id;
    at("source-place").textContent = "";
    at("source-only").hidden = true;
    if (!dialog.open) dialog.showModal();
    try {
      const found = await api.passage(id);
      const { name, title, start, end } = placed(found);
      shown = name;
      at("source-only").hidden = !name;
      at("source-title").textContent = title || id;
      const place = start === null ? "" : ` · characters ${start.toLocaleString("en")}–${(end ?? start + found.text.length).toLocaleString("en")}`;
      at("source-place").textContent = `${name || id}${place}`;
      box.replaceChildren(...texts(found, spans));
      box.querySelector(".here")?.scrollIntoView({ block: "center" });
    } catch (error) {
      box.replaceChildren(make("p", { className: "problem-line" }, error.message));
    }
  }

  return { open };
}

function texts(found, spans) {
  let heading = null;
  return found.around.flatMap((one) => {
    const here = one.id === found.id;
    const head = one.title && one.title !== heading ? [make("h3", { dir: "auto" }, one.title)] : [];
    heading = one.title;
    return [...head, make("p", { className: here ? "here" : "", dir: "auto" }, ...highlighted(one.text, here ? spans : []))];
  });
}
