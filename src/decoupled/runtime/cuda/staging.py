"""What a batch brings to the device, in memory that the device reads by itself where it is `pinned`.

Shapes: P pairs, G queries, Q rows of each, W width of the states.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoupled.model.states import Encoded, States
from decoupled.runtime.cuda.batch import Chunk, Room


def staged(array: npt.NDArray[np.generic], *, pinned: bool) -> Tensor:
    """The array as a tensor, in pinned memory where a GPU will copy it."""
    tensor = torch.from_numpy(array)
    if not pinned:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


def packed(
    chunk: Chunk,
    room: Room,
    ids: npt.NDArray[np.integer],
    width: int,
    *,
    pinned: bool,
    sent: bool = False,
) -> Tensor:
    """The numbers of a chunk's pairs and `width` tokens, for one copy to the device."""
    # Five numbers describe each pair (`Chunk.write`); one transfer is faster than two small ones.
    size = 5 * room.pairs
    both = torch.empty(size + width, dtype=torch.int64, pin_memory=pinned)
    flat = both.numpy()
    chunk.write(flat[:size].reshape(5, -1), room, sent=sent)
    flat[size : size + len(ids)] = ids
    flat[size + len(ids) :] = 0
    return both


def unpacked(flat: Tensor, room: Room) -> tuple[Tensor, Tensor]:
    """The numbers of the pairs `[5,P]` and the token ids that `packed` put together."""
    return flat[: 5 * room.pairs].view(5, -1), flat[5 * room.pairs :]


def staged_bytes(passages: States | Encoded, chunk: Chunk, rows: int, *, pinned: bool) -> Tensor:
    """The bytes of a chunk's passages, `[rows, bytes]`; rows after the last passage are undefined."""
    first = int(passages.starts[chunk.first])
    values = np.ascontiguousarray(passages.values[first : first + chunk.tokens])
    values = values.view(np.uint8)
    whole = torch.empty(rows, values.shape[1], dtype=torch.uint8, pin_memory=pinned)
    whole[: chunk.tokens] = torch.from_numpy(values)
    return whole


def padded(query: States, chunk: Chunk, room: Room) -> npt.NDArray[np.float32]:
    """`[G,Q,W]`: the queries of a chunk, padded with zeros."""
    asking = query if len(query) == len(chunk.queries) else query.select(chunk.queries)
    query_GQW = np.zeros((room.queries, room.query, query.values.shape[1]), np.float32)
    query_GQW[: len(asking)], _ = asking.pad(room.query)
    return query_GQW
