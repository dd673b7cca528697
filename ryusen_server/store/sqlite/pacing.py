"""When to checkpoint: an estimate of how many pages the write-ahead log holds, corrected by what each checkpoint reports.

The log file's size does not tell, since SQLite overwrites it from the start without cutting it.
"""

from __future__ import annotations

from typing import Final

_PAGE_BYTES: Final = 4096
_RETRY_FACTOR: Final = 2


class CheckpointPacer:
    """Counts rows since the last checkpoint; knows from it how many pages a row took."""

    def __init__(self, pages: int) -> None:
        self._limit = float(pages)
        self._threshold = self._limit
        self._pages_a_row = 2.0
        self._rows = 0
        self._bytes = 0
        self._log_pages = 0

    def wrote(self, rows: int, size_bytes: int) -> None:
        """A commit of so many rows with so many bytes of content."""
        self._rows += rows
        self._bytes += size_bytes

    def pending(self) -> bool:
        """Whether anything was written since the last checkpoint."""
        return self._rows > 0

    def due(self) -> bool:
        """Whether the log holds as many pages as it should."""
        return self._estimate() >= self._threshold

    def checkpointed(self, log_pages: int) -> None:
        """The log held so many pages: those since the last checkpoint, and older ones if readers kept it from starting over."""
        fresh = log_pages - self._log_pages if log_pages >= self._log_pages else log_pages
        if self._rows:
            content = self._bytes / _PAGE_BYTES
            measured = max(0.05, (fresh - content) / self._rows)
            self._pages_a_row = (self._pages_a_row + measured) / 2
        self._log_pages = log_pages
        self._rows = self._bytes = 0
        self._threshold = self._limit

    def postponed(self) -> None:
        """The checkpoint failed: not with every commit again, but when the log has grown a good deal more."""
        self._threshold = max(self._threshold, self._estimate()) * _RETRY_FACTOR

    def _estimate(self) -> float:
        return self._rows * self._pages_a_row + self._bytes / _PAGE_BYTES
