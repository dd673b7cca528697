"""The one structured error record of the wire (`protocol` 2) and its reserved categories.

`details` maps names to portable values, kept as their exact wire text. `stack` is diagnostic only: nothing decides on it.
"""

from __future__ import annotations

from typing import Final

import msgspec

SDK_TIMEOUT: Final = "sdk.timeout"
SDK_ATTEMPT_TIMEOUT: Final = "sdk.attempt_timeout"
SDK_INVALID_RESULT: Final = "sdk.invalid_result"
SDK_CHILD_FAILED: Final = "sdk.child_failed"
SDK_CHILD_CANCELLED: Final = "sdk.child_cancelled"
RESERVED_PREFIX: Final = "sdk."


class ErrorRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename=None):
    """A failure as every language tells it.

    `category` is stable text to branch on, `message` is for people, `retryable` alone steers retries.
    """

    category: str
    message: str
    retryable: bool
    details: dict[str, msgspec.Raw] | None = None
    cause: ErrorRecord | None = None
    stack: str | None = None
