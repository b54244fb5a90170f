"""What the exchange of rows with experts on other ranks adds to a step: for scripts/step_budget.py. Imported only."""
from step_collectives import FAKE

DISPATCH = "exposed dispatch"


def rows_sent(record):
    """Bytes that this rank sends to its expert parallel group by that line of the trace, or None."""
    found = FAKE.match(record.range) if record.operator == "range" else None
    return int(found[2]) if found and found[1] == "transfers" and found[3] == "ep" else None


def is_exchange(record):
    """Also of what a dry run does in place of one."""
    found = FAKE.match(record.range)
    return bool(found) and found[1] == "transfers" and found[3] == "ep"


def seconds_of_dispatch(sent, cluster, card):
    """Each rank sends equally much to every other one, to those of its node over the links, at the same time to all others over its own
    adapter. Nothing hides it: rows are sent when the shared experts are queued before them, and the host and the experts wait for them."""
    ranks, on_node = cluster.members("ep")
    if ranks == 1:
        return 0.0
    within = sent * (on_node - 1) / (ranks - 1) / card.link
    between = sent * (ranks - on_node) / (ranks - 1) / (card.network_share * cluster.network * 1e9 / 8)
    return max(within, between)


def expert_tensor_degree(sizes, shards, tensor):
    """Ranks that divide an expert, of the sizes that a dry run names: shards x tensor are also efsdp x ep x etp."""
    experts = sizes.get("ep", 1)
    return shards * tensor // (experts * sizes.get("efsdp", 1)) if experts > 1 else 1
