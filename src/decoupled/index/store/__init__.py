"""Where records live: `base` is the protocol, `lance` the embedded store, `memory` one for tests."""

import os

# Before it is imported: it warns of every empty part of a vector index, 300 lines a write to a large index.
os.environ.setdefault("LANCE_LOG", "error")
