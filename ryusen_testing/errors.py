"""What a harness tells a test that cannot go on. All derive from `AssertionError`: a test that does not expect one fails with its words."""

from __future__ import annotations


class HarnessError(AssertionError):
    """Something the test asked for cannot be."""


class NoTrigger(HarnessError):
    """An event was sent that no function is triggered by, or by more than one where one was expected."""


class RunIsStuck(HarnessError):
    """A run was to end and waits for something that time alone does not bring."""


class StillRunning(HarnessError):
    """User code did not come to an end within the harness's patience, in real seconds."""


class BodyDiffers(HarnessError):
    """A body that was replayed over the same history went another way."""


class Refused(HarnessError):
    """The server refused a command. `code` is its stable name."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
