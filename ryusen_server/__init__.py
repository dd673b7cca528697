"""The Ryusen server: one process, one SQLite file.

Layers, from the top: `bootstrap` wires, `api` answers HTTP, `transports` speak to workers, `engine` moves runs, `store` remembers,
`ports` are the interfaces between them, `core` decides. Each may import only what stands below it.
"""
