"""Makes the light records of the change stream from the records of a transaction. Pure, and as quick as one decoding: payloads are skipped.

A record keeps the members that `ChangeRecord` has; what is nested where a reader wants it flat is lifted: a declaration's step and kind, a
parent's run, an attempt's worker. A kind from a newer server than this module knows keeps what it has under the same names.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ryusen_protocol.changes import Change, ChangeRecord
from ryusen_protocol.ids import InstanceId, RunId, StepId


class _Declaration(msgspec.Struct):
    kind: str
    step_id: StepId


class _Worker(msgspec.Struct):
    instance_id: InstanceId


class _Parent(msgspec.Struct):
    run_id: RunId


class _Stored(ChangeRecord, frozen=True, kw_only=True, omit_defaults=True):
    declaration: _Declaration | None = None
    worker: _Worker | None = None
    parent: _Parent | None = None


class _Kind(msgspec.Struct):
    kind: str


_decode: Final = msgspec.json.Decoder(list[_Stored]).decode
_decode_kinds: Final = msgspec.json.Decoder(list[_Kind]).decode
_encode: Final = msgspec.json.Encoder().encode


def encode_change(position: int, at_ms: int, run_id: RunId | None, records: bytes) -> bytes:
    """The JSON of one `Change`. `run_id` is the run that the transaction belongs to, if it is a run's."""
    return _encode(Change(position=position, at_ms=at_ms, records=light_records(run_id, records)))


def light_records(run_id: RunId | None, records: bytes) -> list[ChangeRecord]:
    """The records without payloads, each with the run they belong to."""
    try:
        stored = _decode(records)
    except msgspec.ValidationError:  # a member of ours under another type: the kind alone still says that something happened
        return [ChangeRecord(kind=one.kind, run_id=run_id) for one in _decode_kinds(records)]
    return [_light(run_id, record) for record in stored]


def _light(run_id: RunId | None, record: _Stored) -> ChangeRecord:
    values = {name: getattr(record, name) for name in ChangeRecord.__struct_fields__}
    if run_id is not None:
        values["run_id"] = run_id
    if record.declaration is not None:
        values["step_id"] = record.declaration.step_id
        values["step_kind"] = record.declaration.kind
    if record.worker is not None:
        values["instance_id"] = record.worker.instance_id
    if record.parent is not None:
        values["parent_run_id"] = record.parent.run_id
    return ChangeRecord(**values)
