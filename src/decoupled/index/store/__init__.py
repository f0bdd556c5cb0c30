"""Where records live: `base` is the protocol, `table` the embedded store, `memory` one for tests."""
