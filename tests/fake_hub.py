"""A model hub on this machine: what huggingface_hub asks of one to make, fill and read dataset repositories."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["TOKEN", "FakeHub", "Repository", "fake_hub"]

TOKEN = "hf_right"


@dataclass
class Repository:
    """A dataset repository; its commits have all files each."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[self.head]

    def commit(self, files: dict[str, bytes]) -> str:
        name = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits[name] = files
        return name

    def at(self, revision: str) -> str | None:
        return self.head if revision == "main" else revision if revision in self.commits else None


@dataclass
class FakeHub:
    """The state of the hub, and what it was asked."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    """Content of large files by SHA-256."""
    requests: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    """Status codes by a pattern of `METHOD path`."""

    def add(self, name: str, files: dict[str, bytes]) -> Repository:
        repository = self.repositories[name] = Repository()
        repository.commit(files)
        return repository


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub that listens until the end of the context."""
    hub = FakeHub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.sent = self._body()
        path = unquote(urlsplit(self.path).path)
        self.state.requests.append(asked := f"{self.command} {path}")
        for pattern, status in self.state.faults.items():
            if fnmatch.fnmatch(asked, pattern):
                self._json({"error": f"answered with {status} as told"}, status)
                return
        writes = self.command not in {"GET", "HEAD"} and not path.startswith("/upload/")
        if (writes or path == "/api/whoami-v2") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json({"error": "Invalid username or password."}, 401)
            return
        for method, pattern, action in _ROUTES:
            if (self.command == method or (self.command == "HEAD" and method == "GET")) and (
                found := re.fullmatch(pattern, path)
            ):
                self.named = {name: value or "" for name, value in found.groupdict().items()}
                if "revision" in self.named and self._files() is None:
                    there = self.named["repo"] in self.state.repositories
                    self._missing("RevisionNotFound" if there else "RepoNotFound")
                else:
                    action(self)
                return
        self._json({"error": "not found"}, 404)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send(self, content: bytes, status: int = 200, /, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, answer: Any, status: int = 200, /, **headers: str) -> None:
        self._send(json.dumps(answer).encode(), status, Content_Type="application/json", **headers)

    def _files(self) -> dict[str, bytes] | None:
        """Those of the revision that the path names."""
        repository = self.state.repositories.get(self.named["repo"])
        commit = None if repository is None else repository.at(self.named["revision"] or "main")
        return None if repository is None or commit is None else repository.commits[commit]

    def _missing(self, kind: str) -> None:
        self._json({"error": f"{kind} as told"}, 404, X_Error_Code=kind)

    def _who(self) -> None:
        self._json({"type": "user", "name": "someone", "orgs": [], "auth": {"type": "access_token"}})

    def _create(self) -> None:
        wanted = json.loads(self.sent)
        name = f"{wanted.get('organization') or 'someone'}/{wanted['name']}"
        there = name in self.state.repositories
        if not there:
            private = wanted.get("private") or wanted.get("visibility") == "private"
            self.state.repositories[name] = Repository(bool(private))
            self.state.repositories[name].commit({})
        self._json({"url": f"{self.state.url}/datasets/{name}", "name": name}, 409 if there else 200)

    def _preupload(self) -> None:
        files = [
            {
                "path": one["path"],
                "uploadMode": "regular" if one["path"].endswith(".md") else "lfs",
                "shouldIgnore": False,
            }
            for one in json.loads(self.sent)["files"]
        ]
        self._json({"files": files})

    def _batch(self) -> None:
        objects = []
        for one in json.loads(self.sent)["objects"]:
            action = {"upload": {"href": f"{self.state.url}/upload/{one['oid']}"}}
            objects.append({**one, **({} if one["oid"] in self.state.large else {"actions": action})})
        self._json({"transfer": "basic", "objects": objects})

    def _upload(self) -> None:
        assert hashlib.sha256(self.sent).hexdigest() == self.named["oid"]
        self.state.large[self.named["oid"]] = self.sent
        self._send(b"")

    def _commit(self) -> None:
        repository = self.state.repositories[self.named["repo"]]
        files = dict(repository.files)
        for line in map(json.loads, self.sent.splitlines()):
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.state.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        commit = repository.commit(files)
        url = f"{self.state.url}/datasets/{self.named['repo']}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def _info(self) -> None:
        name = self.named["repo"]
        repository, files = self.state.repositories[name], self._files() or {}
        siblings = [{"rfilename": path} for path in files]
        commit = repository.at(self.named["revision"] or "main")
        shown = {"id": name, "_id": "1", "sha": commit, "private": repository.private, "siblings": siblings}
        self._json({**shown, "tags": [], "downloads": 0, "likes": 0, "disabled": False, "gated": False})

    def _tree(self) -> None:
        files = self._files() or {}
        folder = self.named["folder"]
        recursive = parse_qs(urlsplit(self.path).query).get("recursive", [""])[0].lower() in {"1", "true"}
        entries: dict[str, Any] = {}
        for name, content in files.items():
            inner = name.removeprefix(f"{folder}/") if folder else name
            if folder and inner == name:
                continue
            if "/" in inner:
                path = f"{folder}/{inner.split('/')[0]}".lstrip("/")
                entries.setdefault(path, _folder(path))
            if recursive or "/" not in inner:
                entries[name] = _entry(name, content)
        if entries or not folder:
            self._json(list(entries.values()))
        else:
            self._missing("EntryNotFound")

    def _paths_info(self) -> None:
        files = self._files() or {}
        asked = json.loads(self.sent)["paths"] if self.sent.startswith(b"{") else parse_qs(self.sent.decode())["paths"]
        found = [_entry(path, files[path]) for path in asked if path in files]
        found += [_folder(path) for path in asked if any(name.startswith(f"{path}/") for name in files)]
        self._json(found)

    def _resolve(self) -> None:
        files = self._files() or {}
        content = files.get(self.named["path"])
        if content is None:
            self._missing("EntryNotFound")
            return
        commit = self.state.repositories[self.named["repo"]].at(self.named["revision"])
        headers = {"X_Repo_Commit": commit or "", "ETag": f'"{_oid(content)}"', "Accept_Ranges": "bytes"}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, stop = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
            span = f"bytes {start}-{stop - 1}/{len(content)}"
            self._send(content[start:stop], 206, Content_Range=span, **headers)
        else:
            self._send(content, **headers)

    def _valid_card(self) -> None:
        self._json({"errors": [], "warnings": []})


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}


def _folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "size": 0, "oid": _oid(path.encode())}


_REPO = r"(?P<repo>[^/]+/[^/]+)"
_ROUTES = (
    ("GET", "/api/whoami-v2", _Handler._who),
    ("POST", "/api/repos/create", _Handler._create),
    ("POST", "/api/validate-yaml", _Handler._valid_card),
    ("POST", rf"/api/datasets/{_REPO}/preupload/(?P<revision>[^/]+)", _Handler._preupload),
    ("POST", rf"/datasets/{_REPO}\.git/info/lfs/objects/batch", _Handler._batch),
    ("PUT", r"/upload/(?P<oid>.+)", _Handler._upload),
    ("POST", rf"/api/datasets/{_REPO}/commit/(?P<revision>[^/]+)", _Handler._commit),
    ("GET", rf"/api/datasets/{_REPO}(/revision/(?P<revision>[^/]+))?", _Handler._info),
    ("GET", rf"/api/datasets/{_REPO}/tree/(?P<revision>[^/]+)(/(?P<folder>.+))?", _Handler._tree),
    ("POST", rf"/api/datasets/{_REPO}/paths-info/(?P<revision>[^/]+)", _Handler._paths_info),
    ("GET", rf"/datasets/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler._resolve),
)
