"""Every file the server gives to browsers, by the path it is asked for at.

One document serves every page, since what a page shows is decided in the browser from its address. Nothing is built, and nothing comes from
elsewhere: the policy lets a page run, draw and ask only what this server gives, and turn no text into markup.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Final

import msgspec

from ryusen_server.web.wording import words_module

PAGES: Final = ("/", "/runs/{id}", "/unknown", "/events", "/events/{id}", "/functions", "/workers", "/server")
ASSETS: Final = "/assets/"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_DOCUMENT: Final = "index.html"
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "content-security-policy": POLICY,
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "x-frame-options": "DENY",
    }
)


class WebFile(msgspec.Struct, frozen=True):
    """One file as it is sent, with the headers it needs beside those of every answer."""

    body: bytes
    content_type: str
    headers: Mapping[str, str] = _HEADERS


@functools.cache
def site() -> Mapping[str, WebFile]:
    """Every path, segments in braces, and its file. Read from the package once."""
    found: dict[str, WebFile] = {}
    for entry in resources.files("ryusen_server.web").joinpath("static").iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            found[ASSETS + entry.name] = WebFile(entry.read_bytes(), kind)
    document = found.pop(ASSETS + _DOCUMENT)
    found[f"{ASSETS}words.js"] = WebFile(words_module(), _TYPES["js"])
    return MappingProxyType({**dict.fromkeys(PAGES, document), **found})
