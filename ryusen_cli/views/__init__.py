"""Text for people, built from API documents. Pure: documents in, lines out; no terminal, no clock, no socket."""
