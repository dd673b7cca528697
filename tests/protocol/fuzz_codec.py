"""Damaged documents against every decoder of the protocol: `python -m tests.protocol.fuzz_codec --count 1000000`.

Starts from the fixtures. An input is damaged as text (bytes flipped, cut, repeated, spliced) or as a document (members dropped,
renamed, added, swapped for others or nested deep). A decoder may give a document or refuse it in its own way; anything else is a
crash, and more than 100 ms is too slow. Some inputs are changed in a way whose answer is known: unknown members change nothing, and
an unknown variant is refused by its name. Ends with code 1 at the first surprise, telling the seed and the input.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ryusen_protocol import codec, operator, strict_json, values

FIXTURES = Path(__file__).parents[2] / "fixtures"
SLOW_S = 0.1
SIZE_MOST = 4_096
VARIANT_TAGS = ("type", "kind", "mode", "reason")

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    2**53,
    2**64,
    -(2**63),
    10**30,
    1.5,
    1e308,
    "",
    "x",
    "\x00",
    "😀",
    "0",
    "-0",
    "01",
    "9" * 400,
    "QQ==",
    "Q Q=",
    [],
    {},
    [[]],
    {"type": "null"},
    {"type": "i64", "value": "1"},
    {"type": "u64", "value": "1"},
]
PIECES = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\xed\xa0\x80",
    b"\x00",
    b"-0",
    b"1e999",
    b"NaN",
]
PIECES += [b"[" * 300, b'{"a":' * 300, b"9" * 500, b'"type":"null",', b'"value":', b"\xf0\x9f\x98\x80", b" ", b"\n", b"0.", b"e", b"null"]


class Reader(NamedTuple):
    """One way in. `refusals` are the exceptions that say no; `is_tagged`: its variants are refused by `UnknownVariant`."""

    name: str
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    is_tagged: bool = False


class Seed(NamedTuple):
    reader: str
    data: bytes


def _operator(data: bytes) -> object:
    return operator.parse(data, path_attempt_id="at_1")


READERS = {
    reader.name: reader
    for reader in (
        Reader("value", values.canonicalize, (values.InvalidValue,)),
        Reader("worker", codec.decode_worker_frame, (codec.MalformedDocument,), is_tagged=True),
        Reader("server", codec.decode_server_frame, (codec.MalformedDocument,), is_tagged=True),
        Reader("outcome", codec.decode_outcome, (codec.MalformedDocument,), is_tagged=True),
        Reader("invocation", codec.decode_invocation, (codec.MalformedDocument,), is_tagged=True),
        Reader("operator", _operator, ()),
        Reader("json", lambda data: strict_json.loads(data, bytes_max=1 << 20), (strict_json.JsonRefused,)),
    )
}
_AREAS = {"values": "value", "outcomes": "outcome", "invocations": "invocation", "operator_commands": "operator"}


def seeds() -> list[Seed]:
    """Every fixture that is a document, with who reads it."""
    found: list[Seed] = []
    for path in sorted(FIXTURES.glob("*/*.json")):
        for case in json.loads(path.read_text("utf-8")).values():
            reader = case.get("from") or _AREAS.get(path.parent.name)
            if reader in READERS and ("document" in case or "text" in case):
                data = json.dumps(case["document"]).encode() if "document" in case else case["text"].encode()
                if len(data) <= SIZE_MOST:
                    found.append(Seed(reader, data))
    return found


# Damage.


def damaged(chance: random.Random, pool: list[Seed]) -> Seed:
    seed = chance.choice(pool)
    reader = seed.reader if chance.random() < 0.8 else chance.choice(list(READERS))
    data = seed.data
    if chance.random() < 0.5:
        document = _parsed(data)
        if isinstance(document, dict | list):
            with contextlib.suppress(RecursionError):  # too deep to be copied here once more; the text so far will do
                for _ in range(chance.randint(1, 3)):
                    _change_document(chance, document)
                    data = _dumped(document)
    else:
        for _ in range(chance.randint(1, 4)):
            data = _change_text(chance, data, pool)
    return Seed(reader, data)


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _dumped(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _change_text(chance: random.Random, data: bytes, pool: list[Seed]) -> bytes:
    at = chance.randrange(len(data) + 1)
    to = min(len(data), at + chance.randint(1, 12))
    match chance.randrange(6):
        case 0:
            return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[to:]
        case 2:
            return data[:at] + chance.choice(PIECES) + data[at:]
        case 3:
            return data[:to] + data[at:]
        case 4:
            return data[:at]
        case _:
            other = chance.choice(pool).data
            return data[:at] + other[chance.randrange(len(other) + 1) :]


def _change_document(chance: random.Random, document: Any) -> None:
    node = chance.choice(_containers(document))
    if isinstance(node, list):
        _change_list(chance, node)
        return
    name = chance.choice(list(node)) if node else "type"
    match chance.randrange(5):
        case 0:
            node.pop(name, None)
        case 1:
            node[name] = copy.deepcopy(chance.choice(ODD))
        case 2:
            node[chance.choice(["x", "type", "value", "kind", "mode", "attempt"])] = node.get(name)
        case 3:
            node[name] = _deep(node.get(name), chance.choice([1, 5, 70, 300]))
        case _:
            node[name] = copy.deepcopy(chance.choice(_containers(document)))


def _change_list(chance: random.Random, node: list[Any]) -> None:
    if node and chance.random() < 0.5:
        node[chance.randrange(len(node))] = copy.deepcopy(chance.choice(ODD))
    else:
        node.extend(copy.deepcopy(node[:8]) or [copy.deepcopy(chance.choice(ODD))])


def _deep(node: Any, levels: int) -> Any:
    for level in range(levels):
        node = [node] if level % 2 else {"type": "array", "value": node}
    return node


def _containers(document: Any) -> list[Any]:
    found: list[Any] = []
    waiting = [document]
    while waiting and len(found) < 200:
        node = waiting.pop()
        if isinstance(node, dict | list):
            found.append(node)
            waiting.extend(node.values() if isinstance(node, dict) else node)
    return found


# Changes whose answer is known.


def grown(chance: random.Random, document: Any) -> Any:
    """The document with unknown members in its envelope and in the objects that belong to the protocol, wherever they are."""
    told = copy.deepcopy(document)
    for node in (told, *(told.get(name) for name in ("scope", "run", "input", "target", "history", "contract", "outcome", "sdk"))):
        if isinstance(node, dict) and chance.random() < 0.7:
            node["x_" + str(chance.randrange(10))] = copy.deepcopy(chance.choice(ODD))
    return told


def renamed(chance: random.Random, document: Any) -> tuple[Any, str] | None:
    """The document with one required variant given a name of the future, and that name."""
    told = copy.deepcopy(document)
    tagged = [
        (node, tag)
        for node in (told, *(told.get(name) for name in ("input", "target", "history", "outcome")), _declaration(told))
        if isinstance(node, dict)
        for tag in VARIANT_TAGS
        if isinstance(node.get(tag), str) and not (node.get("type") == "definition_blocked" and tag == "reason")
    ]
    if not tagged:
        return None
    node, tag = chance.choice(tagged)
    name = "future_" + str(chance.randrange(1000))
    node[tag] = name
    return told, name


def _declaration(document: Any) -> Any:
    outcome = document.get("outcome")
    return outcome.get("declaration") if isinstance(outcome, dict) else None


class Surprise(AssertionError):
    """What no decoder may do."""


def campaign(count: int, seed: int) -> tuple[Counter[str], float]:
    """How often each decoder took and refused its input, and the seconds of the slowest. Raises `Surprise`."""
    chance = random.Random(seed)
    pool = seeds()
    accepted = [one for one in pool if READERS[one.reader].is_tagged and _outcome(READERS[one.reader], one.data)[0] == "took"]
    told: Counter[str] = Counter()
    slowest = 0.0
    for index in range(count):
        if index % 10 == 0:
            told[_check_known(chance, chance.choice(accepted))] += 1
            continue
        one = damaged(chance, pool)
        verdict, seconds = _outcome(READERS[one.reader], one.data)
        slowest = max(slowest, seconds)
        told[f"{one.reader} {verdict}"] += 1
        if seconds > SLOW_S:
            raise Surprise(f"{one.reader} took {seconds:.3f} s for input {index} of seed {seed}: {one.data!r}")
    return told, slowest


def _outcome(reader: Reader, data: bytes) -> tuple[str, float]:
    began = time.thread_time()  # what this thread computed, whatever else the machine does
    try:
        answer = reader.read(data)
    except reader.refusals as refused:
        if not str(refused).strip():
            raise Surprise(f"{reader.name} refuses without a reason: {data!r}") from refused
        return "refused", time.thread_time() - began
    except Exception as crash:
        raise Surprise(f"{reader.name} raises {type(crash).__name__}: {crash} for {data!r}") from crash
    return ("refused" if isinstance(answer, operator.RefusalEnvelope) else "took"), time.thread_time() - began


def _check_known(chance: random.Random, one: Seed) -> str:
    reader = READERS[one.reader]
    document = json.loads(one.data)
    if chance.random() < 0.5:
        if reader.read(_dumped(grown(chance, document))) != reader.read(one.data):
            raise Surprise(f"{one.reader}: unknown members changed {one.data!r}")
        return "unknown members ignored"
    changed = renamed(chance, document)
    if changed is None:
        return "no variant"
    told, name = changed
    try:
        reader.read(_dumped(told))
    except codec.UnknownVariant as refused:
        if refused.variant == name:
            return "unknown variant named"
        raise Surprise(f"{one.reader}: {name} refused as {refused.variant}: {_dumped(told)!r}") from refused
    except codec.MalformedDocument as refused:
        raise Surprise(f"{one.reader}: {name} is not told as unknown but as {refused}: {_dumped(told)!r}") from refused
    raise Surprise(f"{one.reader}: the unknown variant {name} was taken: {_dumped(told)!r}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        told, slowest = campaign(options.count, options.seed)
    except Surprise as surprise:
        print(surprise, file=sys.stderr)
        raise SystemExit(1) from surprise
    for what, times in sorted(told.items()):
        print(f"{times:>10,}  {what}")
    print(f"{options.count:>10,}  inputs, no crash; the slowest took {slowest * 1000:.1f} ms")


if __name__ == "__main__":
    main()
