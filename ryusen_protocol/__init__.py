"""The contract between servers, workers and readers of Ryusen.

Owns the words on the wire: portable values, error records, invocations, outcomes, session frames, manifests, the shapes of the
HTTP API and the limits. Knows neither sockets nor clocks nor a database: every module here is a pure function of its arguments.
"""

PROTOCOL_VERSION = 1
"""The major version every document and frame names."""

VALUE_CODEC_VERSION = 1
"""The version of the tagged value encoding of `ryusen_protocol.values`."""
