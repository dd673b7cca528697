"""How workers are reached. Each transport has a half without I/O that knows the protocol and a half that only moves bytes."""
