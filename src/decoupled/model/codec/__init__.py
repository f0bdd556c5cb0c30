"""States ↔ bytes: what a passage takes on disk, and how close to its states it comes back.

    int8                     width + 2 bytes a token
    int8:64                  a scale for every 64 values: for keys and values, which differ by head
    project:96+int8          98 bytes a token at any width; the projection is learned or PCA
    project:192+int4         the same bytes

On states of layer 3 of a 6-layer encoder of width 384, PCA with `project:96+int8` lost 26 % of the
variance in 98 bytes a token, `project:192+int4` 10 %; a projection learned with the model loses what
the model needs least.

`int4` alone takes the coordinates as they are. After a projection they are rotated, at no cost;
`project:W+int4` with W the width of the states is int4 with that rotation and nothing lost to it.
"""

from decoupled.model.codec.base import Affine, CodeLayout
from decoupled.model.codec.codec import (
    Codec,
    Stage,
    build_codec,
    bytes_per_token,
    canonical,
    fit_codec,
    needs_fit,
    parse_codec,
)
from decoupled.model.codec.project import Projection

__all__ = [
    "Affine",
    "CodeLayout",
    "Codec",
    "Projection",
    "Stage",
    "build_codec",
    "bytes_per_token",
    "canonical",
    "fit_codec",
    "needs_fit",
    "parse_codec",
]
