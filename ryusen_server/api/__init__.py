"""The HTTP API: who may ask, what was asked, and the documents that answer.

`gate` judges every request before anything else looks at it; `app` alone touches Sanic. Each resource module lists its routes and answers
them with documents of `ryusen_protocol.api`, from committed state for what is durable and from the engine for what is present.
"""
