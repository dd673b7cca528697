"""Counts the requests a server answers, by route. Labels are bounded: routes are templates, and what is no route is one of them all."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

NO_ROUTE: Final = "none"


class Requests:
    """Loop thread only."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        """By method, route and status."""
        self.seconds: dict[str, float] = {}
        """Time between a request's arrival and its answer, added up by route. Streams and long polls take as long as they are asked to."""
        self.open: Counter[str] = Counter()
        """By route."""

    def began(self, route: str) -> float:
        """A request is being answered; the moment, for `ended`."""
        self.open[route] += 1
        return time.perf_counter()

    def ended(self, route: str, moment: float) -> None:
        """It is not any more."""
        self.open[route] -= 1
        self.seconds[route] = self.seconds.get(route, 0.0) + time.perf_counter() - moment

    def answer(self, method: str, route: str, status: int) -> None:
        """An answer goes out. A method that no route takes is not told apart from others."""
        self.answered[method if method in _METHODS else "other", route, status] += 1


_METHODS: Final = frozenset(("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"))
