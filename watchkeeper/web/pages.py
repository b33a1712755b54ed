"""The built console: hashed assets that may be cached for ever, and one page for all its paths.

`console/` is built into `static/` by the wheel's build hook, or by hand. The page holds no readings, so
it is open to everyone; what it shows comes through the guarded API.
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
<h1>The console has not been built</h1>
<p>The hub runs and its API answers; only its pages are missing in this source tree. Build them once with</p>
<pre>{BUILD_COMMAND.replace("&", "&amp;")}</pre>
<p>and load this page again. An installed wheel contains them.</p></html>
"""
# Vite writes a hash of the content into each name, so a name never changes its content.
IMMUTABLE = "public, max-age=31536000, immutable"
# Every address of the console is one page, whose code finds the view: `PAGES` in console/src/main.tsx.
CONSOLE_PATHS = (
    *("/", "/gpu/{uuid}", "/node/{name}", "/incidents", "/incidents/{id}", "/fabric", "/jobs", "/jobs/{id:path}"),
    *("/explore", "/cost", "/slo", "/drills", "/drills/{id}", "/journal"),
)


async def serve_page(_: Request) -> Response:
    return console_page(200)


def console_page(status: int) -> Response:
    page = STATIC / "index.html"
    if not page.is_file():
        return HTMLResponse(NOT_BUILT, status_code=503)
    return HTMLResponse(page.read_bytes(), status_code=status, headers={"Cache-Control": "no-cache"})


def is_missing_page(request: Request) -> bool:
    """Whether a person has typed an address that does not exist: the console says so better than JSON does."""
    is_page = not request.url.path.startswith(("/api/", "/assets/"))
    return is_page and request.method == "GET" and "text/html" in request.headers.get("accept", "")


async def serve_asset(request: Request) -> Response:
    """One built file; the name may not leave its folder."""
    folder = (STATIC / "assets").resolve()
    name = request.path_params["name"]
    # A name with a zero byte, or longer than any file's, is an error of the file system, not an answer of it.
    path = folder / (name if name.isprintable() and len(name) < 256 else "")
    if path.resolve().parent != folder or not path.is_file():
        raise HTTPException(404, "there is no such file in this version of the console. Load the page again")
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    headers = {"Cache-Control": IMMUTABLE, "Vary": "Accept-Encoding"}
    if not compression.accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(path.read_bytes(), media_type=kind, headers=headers)
    return Response(compressed_file(path), media_type=kind, headers=headers | {"Content-Encoding": "gzip"})


@lru_cache(maxsize=64)
def compressed_file(path: Path) -> bytes:
    """A file's content for the wire; remembered, because the name changes with the content."""
    return gzip.compress(path.read_bytes())


def endpoints() -> list[Endpoint]:
    pages = [
        Endpoint(("GET",), path, None, serve_page, summary="A page of the console", media_type="text/html")
        for path in CONSOLE_PATHS
    ]
    summary = "A file of the console"
    return [
        *pages,
        Endpoint(("GET",), "/assets/{name}", None, serve_asset, summary=summary, media_type="application/octet-stream"),
    ]
