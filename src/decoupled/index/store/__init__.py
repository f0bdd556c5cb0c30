"""Where records live: `base` is the protocol, `lance` the embedded store, `memory` holds a few."""

import os

# Before Lance is imported: its warnings of empty partitions are 300 lines for each write.
os.environ.setdefault("LANCE_LOG", "error")
