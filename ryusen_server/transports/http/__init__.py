"""The HTTP transport: one POST an invocation, to an endpoint that somebody has configured.

`exchange` is what leaves and what counts as an answer, without a socket; `invoker` moves the bytes and knows how far they have come.
"""
