"""The watch: atomic saves, what was saved before it stood, and what is no source."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ryusen_cli.dev.watch import changes


async def test_what_was_saved_before_the_watch_stands_is_looked_for_and_later_saves_are_told(tmp_path: Path) -> None:
    source = tmp_path / "shop.py"
    source.write_text("x = 1\n")
    stop = asyncio.Event()
    seen = changes([tmp_path], stop)
    async with asyncio.timeout(20):
        await anext(seen)  # the watch stands now
        for text in ("x = 2\n", "x = 3\n"):
            new = tmp_path / ".shop.py.new"
            new.write_text(text)
            new.replace(source)
            assert source in await anext(seen)
        for name in ("notes.txt", ".hidden.py", "__pycache__/shop.py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("no source")
        # Whether an event comes for a file in a folder this young is a race; being asked to look is not.
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "other.py").write_text("x = 1\n")
        assert await anext(seen) <= {tmp_path / "deep" / "other.py"}
        stop.set()
        assert set().union(*[one async for one in seen]) <= {tmp_path / "deep" / "other.py"}
