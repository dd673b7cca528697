"""The one place that touches the file watcher: changed sources below some folders, bursts of saves taken together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ryusen_cli.dev.sources import is_source

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Sequence

STEP_MS: Final = 10
"""A burst has ended when nothing changed for so long."""
DEBOUNCE_MS: Final = 400
"""A burst that does not end is taken as it is after so long."""
_LOOK_MS: Final = 300
"""How often the watch looks up to see whether it should end."""
_QUIET_LOOKS: Final = 8


async def changes(folders: Sequence[Path], stop: asyncio.Event) -> AsyncIterator[set[Path]]:
    """Sets of changed sources, until `stop`. Folders are watched, not files: an atomic save replaces the file.

    An empty set asks the caller to look by itself: once the watch surely stands, for what was saved before, and every now and then,
    for what no event was sent for (a file saved in a folder a moment old, a file system that sends none).
    """
    from watchfiles import Change, awatch  # pyright: ignore[reportUnknownVariableType] - names an event of a library that is not here

    def counts(_change: Change, path: str) -> bool:
        return any(is_source(Path(path), folder) for folder in folders)

    quiet = 0
    async for changed in awatch(
        *folders,
        watch_filter=counts,
        step=STEP_MS,
        debounce=DEBOUNCE_MS,
        stop_event=stop,
        rust_timeout=_LOOK_MS,
        yield_on_timeout=True,
    ):
        if changed or quiet % _QUIET_LOOKS == 0:
            yield {Path(path) for _, path in changed}
        quiet = 1 if changed else quiet + 1
