// Pasted text and chosen files to passages: {text, title?, id?, meta?}. What cannot be read says where.

const IDS = ["id", "_id", "docid", "doc_id", "pid", "passage_id"];
const TEXTS = ["text", "contents", "content", "passage", "body"];
const TITLES = ["title"];
const METAS = ["meta", "metadata"];

export function fromText(text, title = "") {
  return text
    .split(/\r?\n[ \t]*\r?\n/)
    .map((block) => block.trim())
    .filter(Boolean)
    .map((block) => (title ? { text: block, title } : { text: block }));
}

const ending = (file) => file.name.toLowerCase().split(".").pop();

// Rows and plain text are read here; every other document is sent to the server as it is.
export const readHere = (file) => ["jsonl", "ndjson", "json", "csv", "tsv", "txt"].includes(ending(file));

export async function fromFile(file) {
  const text = await file.text();
  if (["jsonl", "ndjson"].includes(ending(file))) return fromLines(text, file.name);
  if (ending(file) === "json") return fromList(text, file.name);
  if (ending(file) === "csv") return fromTable(text, ",", file.name);
  if (ending(file) === "tsv") return fromTable(text, "\t", file.name);
  return fromText(text, file.name.replace(/\.[^.]+$/, ""));
}

function fromLines(text, name) {
  const found = [];
  text.split("\n").forEach((line, number) => {
    if (line.trim()) found.push(passage(parse(line, `${name}, line ${number + 1}`), `${name}, line ${number + 1}`));
  });
  return found;
}

function fromList(text, name) {
  const rows = parse(text, name);
  if (!Array.isArray(rows)) throw new Error(`${name} is not a list of passages`);
  return rows.map((row, number) => passage(row, `${name}, item ${number + 1}`));
}

function fromTable(text, separator, name) {
  const [names, ...rows] = cells(text, separator);
  if (!names) return [];
  return rows.map((row, number) =>
    passage(Object.fromEntries(names.map((key, i) => [key, row[i] ?? ""])), `${name}, row ${number + 2}`),
  );
}

function parse(text, where) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${where} is not JSON`);
  }
}

function passage(row, where) {
  if (row === null || typeof row !== "object") throw new Error(`${where} is not an object`);
  const lower = Object.fromEntries(Object.entries(row).map(([key, value]) => [key.trim().toLowerCase(), value]));
  const first = (names) => names.map((name) => lower[name]).find((value) => value !== undefined && value !== "");
  const text = first(TEXTS);
  if (typeof text !== "string") throw new Error(`${where} has no text; expected a field ${TEXTS.join(" or ")}`);
  const made = { text };
  if (first(IDS) !== undefined) made.id = String(first(IDS));
  if (first(TITLES) !== undefined) made.title = String(first(TITLES));
  made.meta = metadata(row, first(METAS));
  return made;
}

// As `decoupled index` reads it: what plays no other part, then what stands under `meta`.
function metadata(row, given) {
  const parts = [IDS, TEXTS, TITLES, METAS].flat();
  const simple = (value) => ["string", "number", "boolean"].includes(typeof value) && value !== "";
  const rest = Object.entries(row).filter(([key, value]) => !parts.includes(key.trim().toLowerCase()) && simple(value));
  return { ...Object.fromEntries(rest), ...(given && typeof given === "object" ? given : {}) };
}

// RFC 4180: quotes protect separators and line ends, and are doubled inside quotes.
function cells(text, separator) {
  const rows = [];
  let row = [];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const sign = text[at];
    if (quoted) {
      if (sign !== '"') cell += sign;
      else if (text[at + 1] === '"') cell += text[(at += 1)];
      else quoted = false;
    } else if (sign === '"' && cell === "") quoted = true;
    else if (sign === separator) {
      row.push(cell);
      cell = "";
    } else if (sign === "\n") {
      rows.push([...row, cell]);
      row = [];
      cell = "";
    } else if (sign !== "\r") cell += sign;
  }
  if (cell || row.length) rows.push([...row, cell]);
  return rows.filter((found) => found.some(Boolean));
}
