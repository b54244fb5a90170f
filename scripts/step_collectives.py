"""What the collectives of a step send, over which links, and for how long: for scripts/step_budget.py. Imported only."""
import dataclasses
import re

# What the fake backend's stand-ins are called (parallel/comm/communicator.cpp).
FAKE = re.compile(r"fake (\w+) (\d+) bytes sent in (\w+)/\d+ of (\d+) ranks")
OF_SHARDS = r"^(all-gather|reduce-scatter|FSDP::|gradient norm|metrics|data)"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Where the ranks of a job are. Those of a tensor parallel group lie side by side, then those that shard a copy of the weights, then
    the replicas, then the stages of a pipeline. Those that share or shard experts are the same ranks in another order: first those that divide one
    expert, then those that have others, then those that shard them. Each GPU of a node has links of its own to the others and to the network."""

    world: int = 1
    tensor: int = 1
    replicas: int = 1
    node: int = 8  # GPUs
    network: float = 400  # Gb/s of a GPU, each way
    pipeline: int = 1
    experts: int = 1  # ranks that divide the experts of a layer
    expert_tensor: int = 1  # ranks that divide each of them, side by side
    context: int = 1  # ranks that share a sequence, which shard the weights too

    def members(self, group):
        """(ranks of the group, those of them that share a node)."""
        of_stage = self.world // self.pipeline
        shards = max(1, of_stage // (self.tensor * self.replicas))
        experts, apart = self.experts * self.expert_tensor, self.expert_tensor
        in_node = min(self.experts, max(1, self.node // apart))
        ranks, stride = {"ep": (self.experts, apart), "ep_nodes": (self.experts // in_node, apart * in_node), "ep_in_node": (in_node, apart), "efsdp": (max(1, shards * self.tensor // experts), experts), "tp": (self.tensor, 1),
                         "cp": (self.context, self.tensor), "fsdp": (shards, self.tensor), "dp_replicate": (self.replicas, self.tensor * shards),
                         "pp": (self.pipeline, of_stage), "pp_down": (self.pipeline, of_stage), "tied": (2, of_stage),
                         "world": (self.world, 1)}[group]
        return ranks, min(ranks, max(1, self.node // stride))

    def bytes_per_second(self, group, card):
        """Of one rank, in rings as NCCL makes them: a ring passes through all members on a node before it leaves the node, so that
        what a rank sends leaves the node once, over the adapters of all its members there together. The slower part counts."""
        ranks, on_node = self.members(group)
        adapters = 1 if group == "ep" else on_node  # each rank sends to all others, in no ring
        between = adapters * card.network_share * self.network * 1e9 / 8
        return card.link if ranks == on_node else between if adapters == 1 else min(card.link, between)

    def hop_bytes_per_second(self, group, card):
        """From each rank of the group to the next one, which for some of them is on another node unless all share one."""
        ranks, on_node = self.members(group)
        return card.link if ranks == on_node else card.network_share * self.network * 1e9 / 8

    def text_of(self, group, cards):
        """`cards`: (the slowest, the fastest)."""
        ranks, on_node = self.members(group)
        nodes = -(-ranks // on_node)
        slow, fast = (self.bytes_per_second(group, card) / 1e9 for card in cards)
        return f"{group} {ranks} ranks on {nodes} node{'s' * (nodes > 1)} at {slow:,.0f} to {fast:,.0f} GB/s" if ranks > 1 else ""


def exchange_seconds(sent, group, cluster, card):
    """Each rank of the group sends equally much to every other one, to those of its node over the links, at the same time to all others over
    its own adapter."""
    ranks, on_node = cluster.members(group)
    if ranks == 1:
        return 0.0
    within = sent * (on_node - 1) / (ranks - 1) / card.link
    between = sent * (ranks - on_node) / (ranks - 1) / (card.network_share * cluster.network * 1e9 / 8)
    return max(within, between)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of one rank."""

    group: str
    sent: float  # bytes of this rank
    overlaps: bool  # with what the GPU computes


def is_transfer(record):
    """Between two stages of a pipeline, which the schedule's simulation prices."""
    found = FAKE.match(record.range)
    return bool(found) and found[1] == "transfers" and found[3] in ("pp", "pp_down")


def group_sizes(step):
    """{group: ranks} of the groups that a dry run names."""
    return {found[3]: int(found[4]) for record in step if (found := FAKE.match(record.range))}


def collective_of(record, cluster):
    """The collective that a line of the trace stands for, or None. Products wait for what a tensor parallel group exchanges, unless it
    travels in pieces."""
    if found := FAKE.match(record.range):
        return Collective(found[3], int(found[2]), found[3] != "tp" or found[1] == "transfers") if record.operator == "range" else None
    if not re.match(r"nccl|c10d::", record.operator):
        return None
    reduces_all = re.search(r"all.?reduce", record.operator)
    if reduces_all and cluster.replicas > 1 and re.match(r"all-reduce|FSDP::", record.range):
        group = "dp_replicate"
    else:
        group = "fsdp" if cluster.tensor == 1 or re.search(OF_SHARDS, record.range) else "tp"
    ranks = cluster.members(group)[0]
    share, whole = (ranks - 1) / ranks, max(record.read, record.written)
    if reduces_all:
        sent = 2 * share * whole
    elif re.match(r"c10d::.*(allgather|reduce_scatter)", record.operator):  # reads what goes in and what comes out
        sent = share * record.read * ranks / (ranks + 1)
    else:
        sent = share * whole
    return Collective(group, sent, group != "tp")


def seconds_of(collectives, computing, card, cluster):
    """What they add to a step that computes for `computing` seconds; collectives: Counter of Collective. Of the units' gathers and
    reductions the first and the last of the widest unit overlap nothing. What overlaps takes multiprocessors from what it overlaps, and
    what lasts longer than the step computes is waited for."""
    overlapping = waited_for = of_units = longest = 0.0
    for collective, times in collectives.items():
        seconds = collective.sent / cluster.bytes_per_second(collective.group, card)
        if not collective.overlaps:
            waited_for += times * seconds
            continue
        overlapping += times * seconds
        if collective.group != "tp":
            of_units += times * seconds
            longest = max(longest, seconds)
    exposed = min(of_units, 2 * longest)
    hidden = overlapping - exposed
    return waited_for + exposed + max(card.link_share * hidden, hidden - computing - waited_for)
