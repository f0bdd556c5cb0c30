// Requests to the server that this page came from. Every failure is a Problem with words for a person.

export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const KEY = "decoupled.key";

export const key = {
  read: () => sessionStorage.getItem(KEY) || "",
  write: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export const ask = (question, options = {}, signal) =>
  call("POST", "/v1/ask", { question, ...options }, signal);
export const search = (query, options = {}, signal) =>
  call("POST", "/v1/search", { query, ...options }, signal);
export const passage = (id) => call("GET", `/v1/passages/${encodeURIComponent(id)}`);
export const add = (passages) => call("PUT", "/v1/passages", { passages });
export const addDocument = (file) => call("PUT", `/v1/documents/${encodeURIComponent(file.name)}`, file);
export const remove = (id) => call("DELETE", `/v1/passages/${encodeURIComponent(id)}`);
export const info = () => call("GET", "/v1/info");
export const questions = () => call("GET", "/static/questions.json");

async function call(method, path, body, signal) {
  const headers = { Accept: "application/json" };
  const file = body instanceof Blob;
  if (body !== undefined) headers["Content-Type"] = file ? "application/octet-stream" : "application/json";
  if (key.read()) headers.Authorization = `Bearer ${key.read()}`;
  let response;
  try {
    response = await fetch(path, { method, headers, body: file ? body : body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. Is it still running?");
  }
  const found = await response.json().catch(() => ({}));
  if (response.ok) return found;
  throw new Problem(words(response, found), response.status);
}

function words(response, found) {
  if (typeof found.error === "string") return found.error;
  if (response.status === 503) return "The server is busy. Wait a moment and try again.";
  return `The server answered ${response.status}.`;
}
