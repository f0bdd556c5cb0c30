"""Where records live: `base` is the protocol, `lance` the embedded store, `memory` one for tests."""
