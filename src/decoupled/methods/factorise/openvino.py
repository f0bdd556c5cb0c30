"""The token table as nodes: the sum over its bands."""

from decoupled.methods.factorise.part import Factorised
from decoupled.runtime.openvino.table.base import bands_of, token_rows

token_rows.register(Factorised)(bands_of)
