"""What the exchange of rows with experts on other ranks adds to a step: for scripts/step_budget.py. Imported only."""
from step_collectives import FAKE, exchange_seconds

DISPATCH = "exposed dispatch"
GROUPS = ("ep", "ep_nodes", "ep_in_node")  # the last two if tokens travel once per node


def rows_sent(record):
    """(group, bytes) that this rank sends to other experts' ranks by that line of the trace, or None."""
    found = FAKE.match(record.range) if record.operator == "range" else None
    return (found[3], int(found[2])) if found and found[1] == "transfers" and found[3] in GROUPS else None


def is_exchange(record):
    """Also of what a dry run does in place of one."""
    found = FAKE.match(record.range)
    return bool(found) and found[1] == "transfers" and found[3] in GROUPS


def seconds_of_dispatch(sent, cluster, card):
    """`sent`: {group: bytes}. As if nothing hid it: what the shared experts hide, which run while rows travel, is not taken off. A dry run deals
    tokens out in turn, so a token's experts are neighbours and on fewer nodes than those that a router chooses."""
    return sum(exchange_seconds(of_group, group, cluster, card) for group, of_group in sent.items())


def ranks_of_experts(sizes):
    """Ranks that divide the experts of a layer, of the sizes that a dry run names."""
    return sizes.get("ep") or sizes.get("ep_nodes", 1) * sizes.get("ep_in_node", 1)


def expert_tensor_degree(sizes, shards, tensor):
    """Ranks that divide an expert, of the sizes that a dry run names: shards x tensor are also efsdp x ep x etp."""
    experts = ranks_of_experts(sizes)
    return shards * tensor // (experts * sizes.get("efsdp", 1)) if experts > 1 else 1
