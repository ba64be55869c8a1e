"""Decoders of compressed Zarr and HDF5 chunks, which take no more memory than a chunk has bytes.

A few kilobytes can decompress to gigabytes: a chunk that states, or has, another size is refused.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.matrices.transfer import aligned_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    #: Takes the bytes of a stored chunk and memory for the decoded ones, which it may use; returns
    #: the decoded bytes, as many as the memory has.
    Decode = Callable[[Bytes, Bytes], Any]

#: Where a chunk that Blosc compressed says how many bytes it has decoded, and as it is stored.
_BLOSC_SIZES: Final = (slice(4, 8), slice(12, 16))
#: Bytes of a zlib stream that are decoded at once, and decoded bytes at most.
_PIECE_BYTES: Final = 1 << 18
#: First bytes of a frame of Zstandard.
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
#: Bytes of the name of a dictionary in the header of a frame, by the last bits of its descriptor.
_ZSTD_NAME_BYTES: Final = (0, 1, 2, 4)


def decoder(codec: Any) -> Decode | None:
    """Return the decoder for a codec of numcodecs that turns bytes into bytes; None for others."""
    decode = _DECODERS.get(getattr(codec, "codec_id", ""))
    return None if decode is None else partial(decode, codec)


def gzip_decoder(shuffled: int) -> Decode:
    """Return the decoder of HDF5's gzip, and of its shuffle of elements of so many bytes before; 0
    without.
    """
    return partial(_shuffled, shuffled) if shuffled else partial(_zlib, None)


def _shuffled(size: int, content: Bytes, memory: Bytes) -> Bytes:
    """Decode bytes that HDF5 has grouped by their place in an element."""
    planes = _zlib(None, content, aligned_bytes(memory.nbytes))
    np.copyto(memory.reshape(-1, size), planes.reshape(size, -1).T)
    return memory


def _blosc(codec: Any, content: Bytes, memory: Bytes) -> Any:
    # numcodecs would read past the end of a truncated chunk, and would not tell that a chunk filled
    # only the first part of the memory.
    size, stored = (int.from_bytes(content[at], "little") for at in _BLOSC_SIZES)
    if stored != len(content):
        raise ValueError(f"it has {len(content)} bytes, and {stored} by its Blosc header")
    if size != memory.nbytes:
        raise _other_size(size, memory)
    return codec.decode(content, memory)


def _lz4(codec: Any, content: Bytes, memory: Bytes) -> Any:
    size = int.from_bytes(content[:4], "little")
    if size != memory.nbytes:
        raise _other_size(size, memory)
    return codec.decode(content, memory)


def _zstd(codec: Any, content: Bytes, memory: Bytes) -> Any:
    # numcodecs refuses frames that need more than the memory, but takes those that need less.
    size = _zstd_size(content)
    if size > memory.nbytes or (size < memory.nbytes and _fits(codec, content, memory[:-1])):
        raise _other_size(size, memory)
    return codec.decode(content, memory)


def _zstd_size(content: Bytes) -> int:
    """Return the bytes that the first frame has decoded by its header; 0 where it does not say."""
    header = bytes(content[:18])
    if len(header) < 5 or not header.startswith(_ZSTD_MAGIC):
        return 0
    descriptor = header[4]
    single, width = descriptor >> 5 & 1, descriptor >> 6
    start = 6 - single + _ZSTD_NAME_BYTES[descriptor & 3]
    end = start + (1 << width if width or single else 0)
    return int.from_bytes(header[start:end], "little") + (256 if width == 1 else 0)


def _fits(codec: Any, content: Bytes, memory: Bytes) -> bool:
    """Return whether all frames of a chunk fit in the memory."""
    with suppress(ValueError, RuntimeError):
        codec.decode(content, memory)
        return True
    return False


def _zlib(_: Any, content: Bytes, memory: Bytes) -> Bytes:
    # By pieces: of a whole chunk Python would hold the decoded bytes twice.
    stream, decoded = zlib.decompressobj(), 0
    for start in range(0, len(content), _PIECE_BYTES):
        rest: Any = content[start : start + _PIECE_BYTES].data
        while not stream.eof:
            part = stream.decompress(rest, _PIECE_BYTES)
            if len(part) > memory.nbytes - decoded:
                raise _other_size(f"more than {memory.nbytes}", memory)
            memory[decoded : decoded + len(part)] = np.frombuffer(part, np.uint8)
            decoded, rest = decoded + len(part), stream.unconsumed_tail
            if not rest and len(part) < _PIECE_BYTES:
                break
    if not stream.eof:
        raise ValueError("it is truncated")
    if decoded < memory.nbytes:
        raise _other_size(decoded, memory)
    return memory


def _bz2(_: Any, content: Bytes, memory: Bytes) -> bytes:
    with bz2.BZ2File(io.BytesIO(content.data)) as stream:
        return _of_size(stream.read(memory.nbytes + 1), memory)


def _gzip(_: Any, content: Bytes, memory: Bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(content.data)) as stream:
        return _of_size(stream.read(memory.nbytes + 1), memory)


def _lzma(codec: Any, content: Bytes, memory: Bytes) -> bytes:
    with lzma.LZMAFile(
        io.BytesIO(content.data), format=codec.format, filters=codec.filters
    ) as stream:
        return _of_size(stream.read(memory.nbytes + 1), memory)


def _of_size(decoded: bytes, memory: Bytes) -> bytes:
    if len(decoded) > memory.nbytes:
        raise _other_size(f"more than {memory.nbytes}", memory)
    if len(decoded) < memory.nbytes:
        raise _other_size(len(decoded), memory)
    return decoded


def _other_size(size: int | str, memory: Bytes) -> ValueError:
    return ValueError(
        f"it decompresses to {size} bytes, and a chunk of this array has {memory.nbytes}: restore "
        "it, or store the array again"
    )


#: By the names of codecs, which both formats of Zarr share.
_DECODERS: Final[dict[str, Callable[[Any, Bytes, Bytes], Any]]] = {
    "blosc": _blosc,
    "bz2": _bz2,
    "gzip": _gzip,
    "lz4": _lz4,
    "lzma": _lzma,
    "zlib": _zlib,
    "zstd": _zstd,
}
