"""Output: foreign text stays harmless, tables stay whole, JSON stays JSON."""

from __future__ import annotations

import io
import json
import os
import pty

import pytest

from ryusen_cli.exits import CliError, Exit
from ryusen_cli.output import Output, Painted, json_text


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colours_only_where_a_terminal_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    screen, pipe = Screen(), io.StringIO()
    Output(stdout=screen, stderr=pipe).line(Painted("good", "good"))
    Output(stdout=pipe, stderr=pipe).line(Painted("good", "good"))
    assert screen.getvalue() == "\x1b[32mgood\x1b[0m\n"
    assert pipe.getvalue() == "good\n"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
        plain = Screen()
        Output(stdout=plain, stderr=pipe).line(Painted("good", "good"))
        assert plain.getvalue() == "good\n"
        monkeypatch.delenv(name)


@pytest.mark.parametrize("text", ["[/", "[/b]", "[TODO] x", "[@click=app.quit]x[/]"])
def test_markup_is_shown_as_it_was_written(text: str) -> None:
    out = io.StringIO()
    Output(stdout=out, stderr=out).line(text)
    Output(stdout=out, stderr=out).table(("A", "B"), [[text, "x"]])
    Output(stdout=out, stderr=out).error(CliError(text, exit_code=Exit.ERROR))
    assert out.getvalue().count(text) == 3


def test_no_control_character_reaches_a_terminal() -> None:
    out = io.StringIO()
    output = Output(stdout=out, stderr=out)
    hostile = "a\x1b[2Jb\x9b\u202ec\rd"
    output.line(hostile)
    output.table(("A",), [[hostile]])
    output.warn(hostile)
    output.error(CliError(hostile))
    assert not {"\x1b", "\x9b", "\u202e", "\r"} & set(out.getvalue())


def test_a_piped_table_is_never_cut() -> None:
    out = io.StringIO()
    Output(stdout=out, stderr=out).table(("ID", "TEXT"), [["x" * 300, "y" * 500], ["界", "z"]])
    head, first, second = out.getvalue().splitlines()
    assert first == "x" * 300 + "  " + "y" * 500
    assert head == "ID" + " " * 300 + "TEXT"
    assert second == "界" + " " * 300 + "z"


def test_json_keeps_its_meaning_and_its_digits() -> None:
    text = b'{"a":"\xc2\x9b\xe2\x80\xae\xc3\xbc","n":1.0,"big":123456789012345678901234567890}'
    shown = json_text(text, indent=-1)
    assert json.loads(shown) == json.loads(text)
    assert not {"\x9b", "\u202e"} & set(shown)
    assert "ü" in shown
    assert "1.0" in shown


def test_an_error_as_a_document_carries_code_exit_code_and_hint() -> None:
    out, err = io.StringIO(), io.StringIO()
    Output(json=True, stdout=out, stderr=err).error(CliError("gone", exit_code=Exit.NOT_FOUND, hint="look"))
    assert json.loads(out.getvalue()) == {
        "type": "urn:ryusen:cli:not_found",
        "title": "There is no such thing",
        "detail": "gone",
        "code": "not_found",
        "exit_code": 4,
        "hint": "look",
    }
    assert err.getvalue() == ""


def test_a_terminal_that_is_gone_is_a_reader_that_is_gone() -> None:
    ours, child = pty.openpty()
    with os.fdopen(child, "w") as stream:
        os.close(ours)
        with pytest.raises(BrokenPipeError):
            Output(stdout=stream, stderr=stream).note("said to nobody")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, child)  # closing the stream writes what is left
        os.close(nowhere)
