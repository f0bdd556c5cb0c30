"""The HTTP server: `create_app(engine)` makes an ASGI application, `decoupled serve` runs it.

Own routes, with the JSON of the command line:

POST   /v1/search          {"query", "k", "first_stage", "candidates", "read", "where", "blend", "raw",
                           "joint"}
POST   /v1/ask             {"question", "k", "first_stage", "candidates", "read", "where", "threshold",
                           "hops", "ids", "texts", "joint"}
PUT    /v1/passages        {"passages": [{"id", "text", "title", "meta"}]}; an id that is not given is made
                           from title and text
GET, DELETE /v1/passages/{id}
PUT    /v1/documents/NAME  a document as it is; the ending of its name says how it is read
GET    /v1/source/{id}     the file of a passage
GET    /v1/info, /health, /ready, /metrics, /docs, / (the page)

`"joint": true` also runs the query through the same weights unsplit, which read the same candidates; the
answer gains `"joint": {"hits" or "answers", "timing", "trained_split"}`. It is for comparing, and as slow as
a cross-encoder; where `trained_split` is true the weights were trained split, and only the time compares.

An error of an own route is `{"error": "what to do about it", "error_type": "…", "request_id": "…"}`.
Reranking routes speak their vendors' shapes, each in a file of `vendors`.

A request passes `app`, `middleware` with `limits`, its route (`native`, or a vendor's and `rerank`),
`service` and `batching` on its way to the engine.
"""
