"""The SDK's own bounded pool of threads for sync functions and callbacks.

Its threads are daemons: a callback that never returns cannot keep a process from ending. Knows nothing of runs or loops.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ThreadPool:
    """At most `size` threads, started as work needs them. Work must not raise."""

    def __init__(self, size: int, name: str = "ryusen-sync") -> None:
        self._size = size
        self._name = name
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], None]) -> None:
        """Runs it on a free thread, or on the next one that becomes free. From any thread."""
        self._work.put(work)
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if self._started >= self._size:
                return
            self._started += 1
            number = self._started
        threading.Thread(target=self._serve, name=f"{self._name}-{number}", daemon=True).start()

    def close(self) -> None:
        """Lets idle threads end; a busy one ends after its work."""
        for _ in range(self._started):
            self._work.put(None)

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            work()
            del work  # or the last result would live until the next one
            self._idle.release()
