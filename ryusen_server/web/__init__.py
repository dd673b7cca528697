"""The pages for people: files that a browser runs, and the headers that keep them harmless.

Owns what the browser is given. Refuses to know runs, events and workers: the pages ask the HTTP API like every other reader.
"""
