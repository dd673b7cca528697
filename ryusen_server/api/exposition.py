"""The Prometheus text format. Pure: families of samples in, text out. Knows no metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
Kind = Literal["counter", "gauge", "histogram", "summary"]

_NONE: Final[Labels] = {}


class Sample(msgspec.Struct, frozen=True):
    """One line. `suffix` is what the line's name has behind the family's."""

    value: float
    labels: Labels = _NONE
    suffix: str = ""


class Family(msgspec.Struct, frozen=True):
    """One metric with all of its samples."""

    name: str
    kind: Kind
    says: str
    samples: Iterable[Sample]


def single(name: str, kind: Kind, says: str, value: float) -> Family:
    """A metric without labels."""
    return Family(name, kind, says, [Sample(value)])


def by_label(name: str, kind: Kind, says: str, label: str, values: Mapping[str, float]) -> Family:
    """A metric with one label."""
    return Family(name, kind, says, [Sample(value, {label: key}) for key, value in sorted(values.items())])


def histogram(name: str, says: str, bounds: Iterable[float], counts: Iterable[int], total: float) -> Family:
    """A histogram from counts that are not added up, with one more than there are bounds."""
    samples: list[Sample] = []
    below = 0
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        below += count
        samples.append(Sample(below, {"le": _number(bound)}, "_bucket"))
    return Family(name, "histogram", says, [*samples, Sample(total, suffix="_sum"), Sample(below, suffix="_count")])


def exposition(families: Iterable[Family]) -> bytes:
    """The text."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escape(family.says)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"{family.name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}" for sample in family.samples]
    return ("\n".join(lines) + "\n").encode()


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value, quoted=True)}"' for name, value in labels.items()) + "}"


def _escape(text: str, *, quoted: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quoted else escaped


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)
