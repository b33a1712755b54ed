"""Serve the built console: one page for all its paths, and hashed assets that browsers may cache forever.

The wheel's build hook, or `BUILD_COMMAND`, builds `console/` into `static/`. The page contains no data, so it needs no
login; its data comes from the API, which checks roles.
"""

from __future__ import annotations

import gzip
import mimetypes
from functools import lru_cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from watchkeeper.net import compression
from watchkeeper.web.endpoint import Endpoint

STATIC = Path(__file__).parent / "static"
BUILD_COMMAND = "npm --prefix console ci && npm --prefix console run build"
NOT_BUILT = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Watchkeeper</title>
<h1>The console is not built</h1>
<p>The hub and its API work. Only the console is missing in this source tree. Build it with</p>
<pre>{BUILD_COMMAND.replace("&", "&amp;")}</pre>
<p>and reload this page. An installed wheel contains the console.</p></html>
"""
# Vite writes a hash of the content into each file name, so the content of a name never changes.
IMMUTABLE = "public, max-age=31536000, immutable"
# All paths serve one page, whose code selects the view: `PAGES` in console/src/main.tsx.
CONSOLE_PATHS = (
    *("/", "/gpu/{uuid}", "/node/{name}", "/incidents", "/incidents/{id}", "/fabric", "/jobs", "/jobs/{id:path}"),
    *("/explore", "/cost", "/slo", "/drills", "/drills/{id}", "/learn", "/journal"),
)


async def serve_page(_: Request) -> Response:
    return console_page(200)


def console_page(status: int) -> Response:
    page = STATIC / "index.html"
    if not page.is_file():
        return HTMLResponse(NOT_BUILT, status_code=503)
    return HTMLResponse(page.read_bytes(), status_code=status, headers={"Cache-Control": "no-cache"})


def is_missing_page(request: Request) -> bool:
    """Whether a browser requested a page that does not exist: it gets the console instead of JSON."""
    is_page = not request.url.path.startswith(("/api/", "/assets/"))
    return is_page and request.method == "GET" and "text/html" in request.headers.get("accept", "")


async def serve_asset(request: Request) -> Response:
    """Serve a built file; the name must be a file directly in the assets folder."""
    folder = (STATIC / "assets").resolve()
    name = request.path_params["name"]
    # For a name with a zero byte, or a very long one, the file system raises an error.
    path = folder / (name if name.isprintable() and len(name) < 256 else "")
    if path.resolve().parent != folder or not path.is_file():
        raise HTTPException(404, "this version of the console has no such file. Reload the page")
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    headers = {"Cache-Control": IMMUTABLE, "Vary": "Accept-Encoding"}
    if not compression.accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(path.read_bytes(), media_type=kind, headers=headers)
    return Response(compressed_file(path), media_type=kind, headers=headers | {"Content-Encoding": "gzip"})


@lru_cache(maxsize=64)
def compressed_file(path: Path) -> bytes:
    """The gzipped content of a file; cached, because the content of a name never changes."""
    return gzip.compress(path.read_bytes())


def endpoints() -> list[Endpoint]:
    pages = [
        Endpoint(path, serve_page, "A page of the console", role=None, media_type="text/html") for path in CONSOLE_PATHS
    ]
    summary = "A script, style or image of the console"
    return [*pages, Endpoint("/assets/{name}", serve_asset, summary, role=None, media_type="application/octet-stream")]
