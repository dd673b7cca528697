"""The commands around the suites: what they print, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ryusen_cli.main import main
from ryusen_conformance import fixtures
from ryusen_conformance.registry import app
from tests.http.hosting import wsgi_server


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["conformance", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_case_is_told_on_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with wsgi_server(app.wsgi()) as url:
        code, out, _ = told(capsys, "http", url)
    lines = out.splitlines()
    assert code == 0
    assert "pass  executions first-step-declared" in lines
    assert lines[-1] == f"{len(lines) - 1} passed, 0 failed"


def test_a_case_that_fails_says_what_and_why_and_ends_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    functions: dict[str, Any] = app.registry._functions
    monkeypatch.setitem(functions, "two-steps", functions["kept"])
    with wsgi_server(app.wsgi()) as url:
        code, out, _ = told(capsys, "http", url)
        json_code, document, _ = told(capsys, "http", url, "--json")
    assert code == json_code == 1
    assert "FAIL  executions first-step-declared: discovery ends at the first step without an outcome" in out
    assert '/declaration/name is "value", not "first"' in out
    results = json.loads(document)
    failed = [result for result in results["results"] if not result["passed"]]
    assert results["failed"] == len(failed) > 5
    assert {"suite", "case", "exercises", "passed", "why"} == failed[0].keys()


@pytest.mark.req("CNF-08")
def test_a_runner_written_from_the_readme_alone_passes() -> None:
    """And one that is told of a function that does something else does not."""
    runner = Path(__file__).with_name("readme_runner.py")

    def run(url: str) -> str:
        command = [sys.executable, "-I", str(runner), str(fixtures.folder()), url]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()[-1]

    with wsgi_server(app.wsgi()) as url:
        assert run(url) == f"{len(fixtures.cases('executions'))} passed, 0 failed"
    functions: dict[str, Any] = app.registry._functions
    kept = functions["two-steps"]
    functions["two-steps"] = functions["kept"]
    try:
        with wsgi_server(app.wsgi()) as url:
            assert not run(url).endswith(" 0 failed")
    finally:
        functions["two-steps"] = kept


def test_nothing_to_try_is_unreachable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments in (
        ("http", "http://127.0.0.1:1/"),
        ("server", "http://127.0.0.1:1"),
        ("worker", "--patience", "500ms", "--", sys.executable, "-c", "print('hello')"),
    ):
        code, out, err = told(capsys, *arguments)
        assert (code, out) == (3, "")
        assert err.startswith("error: no ")


def test_what_makes_no_sense_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = told(capsys, "worker")
    assert code == 2
    assert "ryusen conformance worker -- ryusen worker ryusen_conformance.registry" in err
    assert told(capsys, "http", "http://127.0.0.1:1/", "--patience", "soon")[0] == 2
