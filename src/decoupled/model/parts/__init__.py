"""The parts of an encoder as frozen data: what each is made of and what it costs."""
