"""The decisions of the engine, as pure functions of (state, command, now, entropy).

Owns every rule of execution, compensation, routing and worker choice. Knows no I/O, clock, randomness, thread or log: what varies
arrives as an argument, what must happen leaves as a value.
"""
