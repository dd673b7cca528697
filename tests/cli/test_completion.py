"""Completion as a shell does it: bash runs the script; zsh reads the same one, and fish one of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.told import ryusen


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of `words`."""
    line = " ".join(f"'{word}'" for word in ("ryusen", *words))
    program = f'source "{script}"; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _ryusen; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_offers_commands_then_their_words_then_their_flags(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_bytes(ryusen("completion", "bash").stdout)
    assert {"dev", "doctor", "runs", "unknown"} <= set(completed(script, ""))
    assert completed(script, "do") == ["doctor"]
    assert completed(script, "runs", "re") == ["rediscover"]
    assert completed(script, "unknown", "resolve", "at_1", "--re") == ["--result", "--retry", "--retryable"]
    assert completed(script, "send", "order/placed", "--wa") == ["--wait"]
    assert completed(script, "runs", "show", "") == []


def test_zsh_and_fish_have_theirs_and_other_shells_are_refused() -> None:
    zsh = ryusen("completion", "zsh").stdout.decode()
    assert "bashcompinit" in zsh
    fish = ryusen("completion", "fish").stdout.decode()
    assert "complete -c ryusen -f -n '__fish_use_subcommand' -a '" in fish
    assert "complete -c ryusen -n '__fish_seen_subcommand_from runs; and __fish_seen_subcommand_from show' -l json" in fish
    assert json.loads(ryusen("completion", "fish", "--json").stdout) == {"shell": "fish", "script": fish}
    refused = ryusen("completion", "powershell")
    assert refused.returncode == 2
    assert b"bash|zsh|fish" in refused.stderr
