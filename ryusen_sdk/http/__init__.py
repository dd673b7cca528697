"""HTTP mode: a server sends invocations to a handler that the user's own web server hosts.

`exchange` is the handler's half of an exchange without I/O, `handler` runs what comes in with the host every transport shares, `asgi` and
`wsgi` are the two ways to be hosted. Which functions run, and what they answer, is the same as for a connected worker.
"""
