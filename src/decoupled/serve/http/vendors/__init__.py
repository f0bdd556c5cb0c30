"""Vendors whose clients this server answers: a file each, with their requests, replies and errors.

A vendor's module has `routes(service)`, which adapts to `rerank`, and `error(problem)`: the status and JSON
that its clients expect. `app.VENDORS` lists the modules. Jina's route is Cohere's v1.
"""
