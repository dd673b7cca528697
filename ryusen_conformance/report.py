"""What came of each case, and of all of them. Prints nothing."""

from __future__ import annotations

from typing import NamedTuple


class Result(NamedTuple):
    """One case held to its expectation. `why` is `None` when it passed."""

    suite: str
    case: str
    exercises: str
    why: str | None

    @property
    def passed(self) -> bool:
        return self.why is None

    def document(self) -> dict[str, object]:
        """For programs."""
        return {"suite": self.suite, "case": self.case, "exercises": self.exercises, "passed": self.passed, "why": self.why}


class Impossible(Exception):
    """The cases cannot be run at all: nothing answers, or what answers is no subject. The message says what to do."""
