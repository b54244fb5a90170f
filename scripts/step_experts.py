"""What the exchange of rows with experts on other ranks adds to a step: for scripts/step_budget.py. Imported only."""
from step_collectives import FAKE, exchange_seconds

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
    """As if nothing hid it: what the shared experts hide, which run while rows travel, is not taken off."""
    return exchange_seconds(sent, "ep", cluster, card)


def expert_tensor_degree(sizes, shards, tensor):
    """Ranks that divide an expert, of the sizes that a dry run names: shards x tensor are also efsdp x ep x etp."""
    experts = sizes.get("ep", 1)
    return shards * tensor // (experts * sizes.get("efsdp", 1)) if experts > 1 else 1
