"""What the ranks that share a sequence exchange for attention, and what of it nothing hides: for scripts/step_budget.py. Imported only.

Three forms, distinguished by what a dry run names: keys and values gathered (models/parts/attention/gathered_attention.h), passed round (models/parts/attention/ring_attention.h), or
all heads of a part of the sequence exchanged for a part of the heads of the complete one, which the program does not have.
"""
import collections
import dataclasses
import re

from step_collectives import FAKE, exchange_seconds
from step_families import Record, is_attention

CONTEXT = "exposed sequence exchange"
GATHERED, RING, HEADS = "all_gather", "transfers", "all_to_all"


def is_of_context(record):
    """Also of what a dry run does in place of an exchange."""
    found = FAKE.match(record.range)
    return bool(found) and found[3] == "cp"


def of_direction(records, backward):
    """{FLOPs: times} of the calls of attention's kernels."""
    calls = collections.Counter()
    for record, times in records.items():
        if is_attention(record) and ("backward" in record.operator) == backward:
            calls[record.flops] += times
    return calls


@dataclasses.dataclass(frozen=True)
class SequenceExchange:
    """Of one block and microbatch. `sent`: bytes of one operation of this rank, of keys and values and of their gradients; with heads of all
    operations together."""

    form: str
    ranks: int
    runs: float  # blocks x microbatches of a step
    parts: int  # of a rank, which travel one after the other where they are gathered
    sent: tuple

    @property
    def bytes(self):
        """That a rank sends in a block and microbatch."""
        if self.form == HEADS:
            return self.sent[0]
        return (self.parts if self.form == GATHERED else self.ranks - 1) * (2 * self.sent[0] + self.sent[1])

    def seconds(self, forward, backward, cluster, card):
        """(seconds that a step waits, seconds under attention), where a rank's attention takes `forward` and `backward` seconds in each block, by
        the parts of its queries in the order of the sequence; in a ring by as many equal steps as there are ranks."""
        if self.form == HEADS:
            return self.runs * exchange_seconds(self.sent[0], "cp", cluster, card), 0.0
        rate = cluster.bytes_per_second("cp", card) if self.form == GATHERED else cluster.hop_bytes_per_second("cp", card)
        keys, gradients = (sent / rate for sent in self.sent)
        if self.form == GATHERED:
            # The second parts of keys travel under the attention of the first part's queries, which waits for the first parts alone, and in
            # backward, which begins with the second part and so with all keys, their gradients do.
            later = self.parts - 1
            waits = keys + later * max(0.0, keys - forward[0]) + self.parts * keys + later * max(0.0, gradients - backward[0]) + gradients
            all_of_them = self.parts * (2 * keys + gradients)
        else:
            # Each hop under the step before; in backward the gradients one step behind the keys, and the last hop of theirs under nothing.
            hops = self.ranks - 1
            forward, backward = (sum(times) / self.ranks for times in (forward, backward))
            waits = hops * max(0.0, keys - forward) + max(0.0, keys - backward) + (hops - 1) * max(0.0, keys + gradients - backward) + gradients
            all_of_them = hops * (2 * keys + gradients)
        return self.runs * waits, self.runs * (all_of_them - waits)


def sequence_exchange(records):
    """The SequenceExchange of a step's records, or None."""
    sizes, ranks, form = collections.Counter(), 1, None
    for record, times in records.items():
        if record.operator == "range" and is_of_context(record):
            kind, sent, _, ranks = FAKE.match(record.range).groups()
            sizes[kind, int(sent)] += times
            form = next((one for one in (GATHERED, RING, HEADS) if kind == one), form)
    if not form:
        return None
    ranks = int(ranks)
    sizes = {(kind, size): times for (kind, size), times in sizes.items() if kind in (form, "reduce_scatter")}
    sent = sorted(size for _, size in sizes)
    if form == GATHERED:
        parts = len(of_direction(records, backward=True))
        if parts > 2:
            raise SystemExit(f"step_budget: attention of a context parallel rank has calls of {parts} sizes where its part of a sequence has at most two "
                             "ranges: run the job without training.document_mask")
        runs = sum(times for (kind, _), times in sizes.items() if kind == "reduce_scatter") / parts
        sent = [next(size for (kind, size) in sizes if kind == one) for one in (GATHERED, "reduce_scatter")]
    else:
        parts = 1
        runs = sum(sizes.values()) / (3 * (ranks - 1) if form == RING else 1)
    return SequenceExchange(form, ranks, runs, parts, (sent[0], sent[-1]))


def with_heads_exchanged(records, ranks, runs_again):
    """The records of a step of a job whose `ranks` ranks exchange heads, made of those of a job without context parallelism whose sequences have as
    many tokens as a rank's part: attention is of all tokens and of one in `ranks` heads. `runs_again`: full recomputation, which keeps
    attention's results but exchanges queries, keys and values once more."""
    made, blocks = collections.Counter(), 0.0
    sizes = None
    for record, times in records.items():
        if is_attention(record):
            if record.range.startswith("recompute"):
                continue
            backward = "backward" in record.operator
            blocks += times * backward
            sizes = sizes or record.sizes
            name = re.sub("flash|efficient", "cudnn", record.operator)
            record = dataclasses.replace(record, operator=name, kernels=0, flops=record.flops * ranks)
        made[record] += times
    batch, heads, tokens, head_dim = sizes
    keys = kv_heads(records, batch * tokens, heads, head_dim)
    if keys % ranks:
        raise SystemExit(f"step_budget: {ranks} ranks cannot exchange {keys} heads of keys and values; context parallel degrees that can: "
                         f"{', '.join(str(degree) for degree in range(1, keys + 1) if keys % degree == 0)}")
    element = 2
    of = batch * tokens * head_dim * element
    # Queries, keys and values there and the result back; the same of their gradients.
    passes = 2 * (2 * heads + 2 * keys) + runs_again * (heads + 2 * keys)
    made[Record("range", range=f"fake {HEADS} {passes * of * (ranks - 1) // ranks} bytes sent in cp/0 of {ranks} ranks")] += blocks
    # Each is copied into the order of the ranks before, and out of it after.
    made[Record("aten::copy_", kernels=4 * 2 + 2 * runs_again, read=2 * passes * of, written=2 * passes * of,
                of=f"bf16[{batch},{heads},{tokens},{head_dim}]", range="forward layers.0")] += blocks
    return made


def kv_heads(records, tokens, heads, head_dim):
    """By the width of the product that makes queries, keys and values."""
    for record in records:
        if record.flops and not is_attention(record) and record.range.startswith("forward layers") and len(record.sizes) == 3:
            width = record.sizes[2] // head_dim
            if record.sizes[0] == tokens and heads < width <= 3 * heads and (width - heads) % 2 == 0 and record.sizes[2] % head_dim == 0:
                return (width - heads) // 2
    raise SystemExit("step_budget: no product of the trace makes queries, keys and values together")
