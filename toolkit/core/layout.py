"""The model as one flat vector: its pieces, and the ways of cutting it into spans.

Strategies speak of spans ``(start, stop)`` of that vector and never of tensors. Everything that travels or is
owned is a span: equal shards, single tensors, buckets in reverse layer order, the blocks of a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from toolkit.core.errors import Refused
from toolkit.core.messages import Span
from toolkit.core.records import Record


class Piece(Record):
    """One tensor of the model: `size` values, part of the named `block`.

    A piece of block ``""`` stands for a model of which only the size is known; it may be cut anywhere. Pieces that are
    not `trainable` are model state (batch-norm statistics): they travel uncompressed and no optimizer touches them.
    """

    name: str
    size: int
    block: str = "model"
    trainable: bool = True


class Layout(Record):
    """The pieces of the model vector in order; each value takes `itemsize` bytes on the wire."""

    pieces: tuple[Piece, ...]
    itemsize: int = 4

    @property
    def size(self) -> int:
        """Number of values."""
        return sum(piece.size for piece in self.pieces)

    @property
    def whole(self) -> Span:
        """The span of everything."""
        return (0, self.size)

    def spans(self) -> Iterator[tuple[Piece, Span]]:
        """Each piece with its span."""
        start = 0
        for piece in self.pieces:
            yield piece, (start, start + piece.size)
            start += piece.size

    def shards(self, count: int) -> tuple[Span, ...]:
        """`count` spans whose sizes differ by at most one value, so that bytes are balanced."""
        if 0 < self.size < count:
            raise Refused(
                f"{count} shards were asked for a model of {self.size} values. A shard holds at least one value. "
                f"Use at most {self.size} shards."
            )
        return cuts(self.whole, count)

    def tensors(self) -> tuple[Span, ...]:
        """One span per tensor."""
        return tuple(span for _, span in self.spans() if span[0] < span[1])

    def buckets(self, nbytes: float) -> tuple[Span, ...]:
        """Spans of at least `nbytes` bytes (but the last), in reverse layer order, as gradients become known."""
        buckets: list[Span] = []
        stop = edge = self.size
        for _, (start, _) in reversed(list(self.spans())):
            edge = start
            if (stop - start) * self.itemsize >= nbytes:
                buckets.append((start, stop))
                stop = start
        return (*buckets, (edge, stop)) if edge < stop else tuple(buckets)

    def blocks(self) -> dict[str, Span]:
        """The span of each named block; the pieces of a block lie together."""
        blocks: dict[str, Span] = {}
        for piece, (start, stop) in self.spans():
            blocks[piece.block] = (blocks.get(piece.block, (start, stop))[0], stop)
        return blocks

    def stages(self, count: int) -> tuple[Span, ...]:
        """`count` consecutive spans of whole blocks, as equal in size as the blocks allow."""
        blocks = self.blocks()
        if set(blocks) <= {""}:
            return cuts(self.whole, count)
        if len(blocks) < count:
            raise Refused(
                f"{count} stages were asked for a model of {len(blocks)} block(s) ({', '.join(blocks)}). "
                f"A stage holds at least one block. "
                f"Use at most {len(blocks)} stages, or name more blocks in the problem."
            )
        edges, spans = [0], list(blocks.values())
        for k in range(1, count):
            possible = range(edges[-1] + 1, len(spans) - (count - k) + 1)  # a block for each stage to come
            edges.append(min(possible, key=lambda i: abs(spans[i][0] - self.size * k / count)))
        return tuple((spans[a][0], spans[b - 1][1]) for a, b in zip(edges, [*edges[1:], len(spans)], strict=True))

    def state(self, span: Span) -> int:
        """How many values of `span` are model state."""
        if all(piece.trainable for piece in self.pieces):
            return 0
        return sum(
            max(0, min(stop, span[1]) - max(start, span[0]))
            for piece, (start, stop) in self.spans()
            if not piece.trainable
        )


def cuts(span: Span, count: int) -> tuple[Span, ...]:
    """`count` consecutive spans that cover `span`; sizes differ by at most one."""
    start, size = span[0], span[1] - span[0]
    edges = [start + size * k // count for k in range(count + 1)]
    return tuple(pairwise(edges))


def overlap(a: Span, b: Span) -> Span | None:
    """The common part of two spans, or None."""
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None
