"""The parts of an encoder as frozen data, a file per kind: what each is made of and what it costs."""
