"""The connected transport: workers dial in over a WebSocket, one JSON document a text frame.

`session` is the protocol without a socket, `liveness` its deadlines without a clock; `connection` moves bytes between them, a socket and
the engine, `gateway` keeps the connections of one server, and `upgrade` is where they come out of the HTTP server.
"""
