"""How many bytes travel: the same formulas whether something is sent or only simulated."""

from __future__ import annotations

from toolkit.core.layout import Layout, cuts
from toolkit.core.messages import Send, Span
from toolkit.rewrites.codecs import Codec


def span_nbytes(layout: Layout, span: Span, codec: str | None = None) -> int:
    """Bytes of an encoded span: the code of its learned values and its model state as it is."""
    size = span[1] - span[0]
    if codec is None:
        return size * layout.itemsize
    state = layout.state(span)
    return Codec.of(codec).nbytes(size - state, layout.itemsize) + state * layout.itemsize


def send_nbytes(layout: Layout, send: Send) -> int:
    """Bytes of a message; activations, whose shape only the model knows, count as none."""
    if send.item in ("activations", "cotangents"):
        return 0
    return span_nbytes(layout, send.part, send.codec)


def payload_sizes(layout: Layout, span: Span, codec: str | None) -> tuple[tuple[int, int], ...]:
    """(values, bytes per value) of each flat array that stands for a span in a sum."""
    size = span[1] - span[0]
    if codec is None:
        return ((size, layout.itemsize),)
    state = layout.state(span)
    unit = 2 if Codec.of(codec).name == "fp16" else layout.itemsize
    code = (Codec.of(codec).nbytes(size - state, layout.itemsize) // unit, unit)
    return (code, (state, layout.itemsize)) if state else (code,)


def chunk_nbytes(layout: Layout, span: Span, codec: str | None, chunks: int, start: int, stop: int) -> int:
    """Bytes of the chunks ``[start, stop)`` of a span that is reduced in `chunks` pieces."""
    total = 0
    for values, unit in payload_sizes(layout, span, codec):
        edges = cuts((0, values), chunks)
        total += (edges[stop - 1][1] - edges[start][0]) * unit
    return total
