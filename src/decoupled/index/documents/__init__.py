"""Readers of passages: streaming, in bounded memory.

Names are loaded on their first use: the processes that read documents need none of the tokenizer.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
