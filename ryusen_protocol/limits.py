"""Every bound of the protocol, in one place. Advertised to workers at registration and by `GET /v1/server`."""

from typing import Annotated

import msgspec

KIB = 1024
MIB = 1024 * 1024

VALUE_BYTES_MAX = 2 * MIB
"""Canonical size of one portable value."""
NESTING_MAX = 64
"""Levels of arrays and objects inside one value, and of any JSON document the API takes."""
PAYLOAD_BYTES_MAX = 1 * MIB
"""Raw bytes of an event payload or a run's input."""
REPLAY_BUDGET_BYTES_MAX = 8 * MIB
"""What one run may remember: the canonical outcomes of all its steps together."""
REPLAY_RESERVE_BYTES = 4 * KIB
"""Kept of the replay budget so that a failure can always be recorded."""
REQUEST_BYTES_MAX = 16 * MIB
"""One HTTP request body or one session frame."""
ERROR_MESSAGE_BYTES_MAX = 8 * KIB
ERROR_DETAILS_BYTES_MAX = 64 * KIB
ERROR_CAUSE_DEPTH_MAX = 8
ERROR_BYTES_MAX = 128 * KIB
ID_BYTES_MAX = 256
"""Any identifier: 1 to 256 bytes of UTF-8."""
OPERATOR_COMMAND_BYTES_MAX = 9 * MIB // 4
"""The body of an operator command, in any spelling."""
OPERATOR_RECORD_BYTES_MAX = VALUE_BYTES_MAX + KIB
"""The durable record of an operator command: its canonical envelope. Room for the largest value beside ids of usual length."""
METADATA_PAIRS_MAX = 64
METADATA_BYTES_MAX = 1 * KIB
"""Each key and each value of event metadata."""
LOG_BYTES_MAX = 64 * KIB
"""Captured lines of one attempt."""
DURATION_MS_MAX = 2**64 - 1
MANIFEST_TIMEOUT_MS_MAX = 2**53 - 1
"""JCS writes numbers as doubles, so a manifest's `timeout_ms` stays exact below this."""
ATTEMPTS_MAX = 2**31 - 1
MULTIPLIER_MAX = 1_000_000
"""What a retry policy may ask for."""
CHILD_DEPTH_MAX = 32
"""How many runs may stand above a run that another one invoked."""
LONG_POLL_MS_MAX = 60_000

Int53 = Annotated[int, msgspec.Meta(ge=-(2**53) + 1, le=2**53 - 1)]
"""An integer on the wire: exact in every language, and in a column of the database. A plain `int` would take any width."""


class Limits(msgspec.Struct, frozen=True):
    """The bounds as a document: bytes unless the name says otherwise."""

    value_bytes: int = VALUE_BYTES_MAX
    nesting: int = NESTING_MAX
    payload_bytes: int = PAYLOAD_BYTES_MAX
    replay_budget_bytes: int = REPLAY_BUDGET_BYTES_MAX
    request_bytes: int = REQUEST_BYTES_MAX
    error_message_bytes: int = ERROR_MESSAGE_BYTES_MAX
    error_details_bytes: int = ERROR_DETAILS_BYTES_MAX
    error_cause_depth: int = ERROR_CAUSE_DEPTH_MAX
    error_bytes: int = ERROR_BYTES_MAX
    id_bytes: int = ID_BYTES_MAX
    operator_command_bytes: int = OPERATOR_COMMAND_BYTES_MAX
    metadata_pairs: int = METADATA_PAIRS_MAX
    metadata_bytes: int = METADATA_BYTES_MAX
    log_bytes: int = LOG_BYTES_MAX
