"""The `ryusen` command: what a person or a script types, and what it says back.

Owns arguments, settings, output and exit codes, and the supervision of local processes. Knows nothing of how runs are decided or
stored: it talks to a server over the HTTP API, and starts server and worker through their public doors.
"""
