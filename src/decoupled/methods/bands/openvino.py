"""The token table as nodes: the sum over its bands."""

from decoupled.methods.bands.part import Banded
from decoupled.runtime.openvino.table.base import bands_of, token_rows

token_rows.register(Banded)(bands_of)
