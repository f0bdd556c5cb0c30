"""A hub of models on loopback: the routes of huggingface_hub that download and push, over files in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Hub:
    """Repositories by name; a revision is a commit or a branch, each a table of files."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}
        self.branches: dict[str, dict[str, str]] = {}
        self.private: set[str] = set()
        self.gated: set[str] = set()
        self.licences: dict[str, str] = {}
        self.asked: list[str] = []

    def put(self, name: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Commit files on a branch over those that it has; the commit's hash."""
        head = self.branches.setdefault(name, {}).get(branch)
        whole = {**(self.commits[name][head] if head else {}), **files}
        digest = hashlib.sha1(f"{name}{branch}{len(self.commits.get(name, {}))}".encode())
        self.commits.setdefault(name, {})[digest.hexdigest()] = whole
        self.branches[name][branch] = digest.hexdigest()
        return digest.hexdigest()

    def put_folder(self, name: str, folder: Path, branch: str = "main") -> str:
        """Commit the files of a folder."""
        files = [path for path in folder.rglob("*") if path.is_file()]
        return self.put(
            name, {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}, branch
        )


class Routes(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def reply(self, status: int, body: bytes | object = b"", **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def url(self, path: str) -> str:
        return f"http://{self.headers['host']}/{path}"

    def refused(self, name: str, *, content: bool) -> bool:
        """Whether a repository is withheld from who has no token; the answer says why."""
        if "authorization" in self.headers:
            return False
        if name in self.hub.private or name not in self.hub.branches:
            self.reply(401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return True
        if name in self.hub.gated and content:
            self.reply(403, {"error": "gated"}, X_Error_Code="GatedRepo")
            return True
        return False

    def commit_of(self, name: str, revision: str) -> str | None:
        commits, branches = self.hub.commits.get(name, {}), self.hub.branches.get(name, {})
        commit = branches.get(revision, revision)
        if commit in commits:
            return commit
        code = "RevisionNotFound" if name in self.hub.branches else "RepoNotFound"
        self.reply(404, {"error": "not found"}, X_Error_Code=code)
        return None

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.asked.append(path)
        if path.startswith("api/models/"):
            rest = path.removeprefix("api/models/")
            name, _, revision = rest.partition("/revision/")
            name, _, tree = name.partition("/tree/")
            if self.refused(name, content=False):
                return
            if commit := self.commit_of(name, revision or tree or "main"):
                files = self.hub.commits[name][commit]
                if tree:
                    blob = {"type": "file", "oid": "0" * 40}
                    self.reply(200, [{**blob, "path": p, "size": len(b)} for p, b in files.items()])
                    return
                card = {"license": self.hub.licences[name]} if name in self.hub.licences else {}
                siblings = [{"rfilename": file} for file in files]
                facts = {"id": name, "sha": commit, "siblings": siblings, "cardData": card}
                self.reply(200, {**facts, "private": name in self.hub.private, "tags": []})
            return
        name, _, rest = path.partition("/resolve/")
        revision, _, file = rest.partition("/")
        if self.refused(name, content=True):
            return
        if commit := self.commit_of(name, revision):
            content = self.hub.commits[name][commit].get(file)
            if content is None:
                self.reply(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
                return
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            self.reply(200, content, ETag=etag, X_Repo_Commit=commit)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.asked.append(path)
        if path == "api/validate-yaml":
            self.reply(200, {"errors": [], "warnings": []})
            return
        if "authorization" not in self.headers:
            self.reply(401, {"error": "Invalid username or password."})
            return
        if path == "api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            if name in self.hub.branches:
                self.reply(409, {"error": "exists", "url": self.url(name)})
                return
            self.hub.put(name, {".gitattributes": b""})
            if asked.get("private") or asked.get("visibility") == "private":
                self.hub.private.add(name)
            self.reply(200, {"url": self.url(name)})
            return
        rest = path.removeprefix("api/models/")
        for verb in ("/preupload/", "/branch/", "/commit/"):
            if verb in rest:
                name, _, revision = rest.partition(verb)
                getattr(self, verb.strip("/"))(name, revision, body)
                return
        self.reply(404, {"error": path})

    def preupload(self, name: str, revision: str, body: bytes) -> None:
        files = json.loads(body)["files"]
        modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
        self.reply(200, {"files": modes, "commitOid": self.hub.branches[name].get(revision)})

    def branch(self, name: str, branch: str, body: bytes) -> None:
        if branch in self.hub.branches[name]:
            self.reply(409, {"error": "Reference already exists"})
            return
        self.hub.branches[name][branch] = self.hub.branches[name]["main"]
        self.reply(200, {})

    def commit(self, name: str, branch: str, body: bytes) -> None:
        rows = [json.loads(line) for line in body.splitlines() if line]
        files = {
            row["value"]["path"]: base64.b64decode(row["value"]["content"])
            for row in rows
            if row["key"] == "file"
        }
        commit = self.hub.put(name, files, branch)
        url = self.url(f"{name}/commit/{commit}")
        self.reply(200, {"success": True, "commitOid": commit, "commitUrl": url})


@contextmanager
def serving():
    """A hub that listens on loopback, and its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Routes,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
