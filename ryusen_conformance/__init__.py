"""Conformance: the fixtures, and the peers that hold any implementation to them.

A fake server drives an SDK's worker over WebSocket or its handler over HTTP; a fake worker drives a server. The expectations are the
documents of `fixtures/`, which this package carries; nothing here is about one language or one SDK but `registry`, which is the Python
worker that the Python SDK is tested with. Peers know the protocol and nothing of server or SDK.
"""
