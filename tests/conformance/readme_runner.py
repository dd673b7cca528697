"""A runner written from `fixtures/README.md` alone, with nothing of this project: `python readme_runner.py FIXTURES URL`.

Shows that the page is enough. Prints each execution that fails, then how many passed and failed.
"""

from __future__ import annotations

import base64
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

NULLISH = {"attempt_timeout_ms": None, "compensation": None, "metadata": {}, "has_compensation": False, "details": None, "cause": None}
SOURCE = ("location", "first", "duplicate", "stack")


def post(url, document):
    body = json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.loads(response.read())


def call_log(url, run_id, suffix):
    payload = base64.b64encode(json.dumps({"run_id": run_id}).encode()).decode()
    answer = post(
        url,
        {
            "protocol_version": 1,
            "type": "invocation",
            "request_id": "rq_log_" + suffix,
            "scope": {"workspace": "default", "application": "conformance"},
            "run": {"run_id": "rn_log_" + suffix, "function": "call-log", "created_at_ms": 0, "deadline_at_ms": None, "failure": None},
            "input": {
                "kind": "event",
                "event_id": "ev",
                "name": "any",
                "payload": {"type": "bytes", "value": payload},
                "metadata": {},
                "received_at_ms": 0,
            },
            "history": {"mode": "full", "digest": "sha256:" + "0" * 64, "steps": []},
            "target": {"mode": "discovery", "pass": 1},
        },
    )
    return [item["value"] for item in answer["outcome"]["result"]["value"]]


def plain(node, run_id):
    if isinstance(node, dict):
        kept = {name: plain(item, run_id) for name, item in node.items() if name not in SOURCE}
        return {name: item for name, item in kept.items() if not (item is None or (name in NULLISH and item == NULLISH[name]))}
    if isinstance(node, list):
        return [plain(item, run_id) for item in node]
    return run_id if node == "$run_id" else node


def without(node, pointers):
    node = json.loads(json.dumps(node))
    for pointer in pointers:
        inner = node
        *path, last = pointer.split("/")[1:]
        for step in path:
            inner = inner[step]
        if not inner.pop(last, None):
            return None
    return node


def passes(url, case, suffix):
    asked = case["invocation"]
    asked["request_id"] += "_" + suffix
    asked["run"]["run_id"] += "_" + suffix
    run_id = asked["run"]["run_id"]
    answer = post(url, asked)
    if (answer["request_id"], answer["run_id"]) != (asked["request_id"], run_id):
        return False
    pointers = case.get("open", [])
    told = without(plain(answer["outcome"], run_id), pointers)
    allowed = [without(plain(one, run_id), pointers) for one in case.get("any_of") or [case["outcome"]]]
    return told in allowed and call_log(url, run_id, asked["request_id"]) == case["calls"]


def main(folder, url):
    index = json.loads((Path(folder) / "index.json").read_text("utf-8"))
    files = {}
    passed = failed = 0
    for entry in index["cases"]:
        if entry["area"] == "executions":
            cases = files.setdefault(entry["file"], json.loads((Path(folder) / entry["file"]).read_text("utf-8")))
            try:
                is_right = passes(url, cases[entry["name"]], "readme")
            except (urllib.error.URLError, KeyError, ValueError) as error:
                print(entry["name"], repr(error))
                is_right = False
            passed, failed = passed + is_right, failed + (not is_right)
            if not is_right:
                print("FAIL", entry["name"], entry["exercises"])
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
