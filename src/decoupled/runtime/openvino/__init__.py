"""The OpenVINO runtime: graphs built straight from a spec and its weights, without torch.

Shape suffixes: B batch, T tokens, R rows that are computed, D width, H heads, K head width, Q query tokens,
P passage tokens, C width of the codes, I inputs and O outputs of a linear layer, N heads times rows.
"""

import sys

# Importing openvino reports to its makers over the network. It goes on quietly when the package that does
# so is absent, and nothing of ours may call out unasked.
_hidden = sys.modules.get("openvino_telemetry")
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
try:
    import openvino as openvino
finally:
    if _hidden is None:
        del sys.modules["openvino_telemetry"]
    else:
        sys.modules["openvino_telemetry"] = _hidden
