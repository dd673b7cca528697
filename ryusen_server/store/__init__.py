"""Where committed state lives: adapters of `ryusen_server.ports.store`.

`sqlite` is the one that servers run on; `memory` is a few dictionaries for tests and simulations. Neither knows a rule of execution: they
keep rows, commit units in order and answer reads.
"""
