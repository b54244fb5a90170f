"""What a step launches, moves, multiplies and sends, by the trace of a simulated GPU (docs/simulated_gpu.md). Imported only.

Families are those of trainer/plan/step_work.h. An operator's family follows from its name, its tensors and the range it ran in.
"""
import collections
import dataclasses
import pathlib
import re

# What the fake backend's stand-ins are called (parallel/comm/communicator.cpp).
FAKE = re.compile(r"fake (\w+) (\d+) bytes sent in (\w+)/\d+ of (\d+) ranks")
# Autograd runs a backward on a thread of its own, which no range is open on.
OF_A_BLOCK = re.compile(r"^((forward|backward|input gradient|weight gradients|recompute) layers\..*)?$")

# The first line that fits decides: family, expression found in the operator's name, in the range it ran in, and how wide its largest tensor is
# (Widths) or its dtype. What no line fits is "other".
FAMILIES = (
    ("optimizer", r"", r"^(optimizer|Optimizer\.step|gradient norm|gradient clipping)", ""),
    ("gather, pack, reduce", r"chunk_cat|all_gather_copy_in|split_with_sizes_copy|foreach_copy", "", ""),
    ("gather, pack, reduce", r"", r"gather|reduce|all-reduce", ""),
    ("FP8 casts", r"linalg_vector_norm", "", "bf16"),
    ("optimizer", r"_fused_adam|_foreach_(norm|mul_|lerp|addc|sqrt|div)|linalg_vector_norm|aten::clamp$", "", ""),
    ("loss", r"softmax|nll_loss|cross_entropy", "", ""),
    ("loss", r"", r"^forward and backward", ""),
    ("loss", r"", "", "vocabulary"),
    ("SwiGLU", r"gated_activation|silu", "", ""),
    ("norms", r"rms_norm|layer_norm|rsqrt|aten::(pow|mean)", "", ""),
    ("RoPE", r"rope|rotary|complex|latent_heads", "", ""),
    ("attention", r"hyperion::merge_parts_", "", ""),
    ("casts and copies", r"hyperion::(pack|add|unpack)_keys_", "", ""),
    ("FP8 casts", r"float8|fp8|amax|cast_transpose|_scaled_mm_|triton_.*_abs_.*max", "", ""),
    ("embedding", r"aten::(add_|copy_)$", "", "table"),
    ("casts and copies", r"aten::(add_?|cat|copy_|fill_)$", "", "head"),
    ("casts and copies", r"aten::(add_|copy_)$", "", "model rows in fp32"),  # sums of chunks of tensor parallel products
    ("casts and copies", r"aten::copy_$", "", "hidden"),
    ("RoPE", r"", "", "head"),
    ("SwiGLU", r"", "", "hidden"),
    ("embedding", r"embedding|index_select", "", ""),
    ("embedding", r"masked_fill", "embeddings", ""),
    ("norms", r"aten::(mul|sum|div|sub|neg)", "", "model"),
    ("norms", r"aten::(add|copy)", "", "model in fp32"),
    ("residual adds", r"aten::add|foreach_add|triton_poi_.*add", "", "model"),
    ("casts and copies", r"aten::(copy_|cat|_to_copy|clone)", "", ""),
    ("fills", r"aten::(zero_|fill_|_foreach_zero_)|memset", "", ""),
)
PRODUCTS, HEAD_PRODUCTS, GROUPED, ROUTING, OTHER = "products", "products of the head", "products of experts", "routing and order", "other"
OF_BLOCKS = {PRODUCTS, GROUPED, ROUTING, "attention", "norms", "RoPE", "SwiGLU", "residual adds", "casts and copies", "FP8 casts"}

# Of a block with experts: what decides where rows go, and what brings them there and back.
OF_ROUTING = (r"hyperion::(route|routing|order_rows|gather_rows|sum_rows|products_of_rows|weight_rows|pack_row_sums|sum_packed_rows)|index_|sort|topk|scatter|"
              r"gather|cumsum|arange|repeat_interleave|bincount|histc|aten::(softmax|_softmax|sigmoid)|aten::where")


@dataclasses.dataclass(frozen=True)
class Record:
    """One launch, operator or range of the trace."""

    operator: str
    kernels: int = 0
    copies: int = 0
    read: int = 0
    written: int = 0
    flops: int = 0
    of: str = ""
    range: str = ""

    @property
    def dtype(self):
        return re.match(r"\w*", self.of)[0]

    @property
    def sizes(self):
        return [int(size) for size in re.findall(r"\d+", self.of[len(self.dtype):])]

    @property
    def launches(self):
        """A simulated GPU asks cuDNN for no plan: its attention is one kernel forward and three backward."""
        if is_attention(self) and not self.kernels:
            return 3 if "backward" in self.operator else 1
        return self.kernels + self.copies


def read_trace(path):
    """The records of each step of the trace, which ends with an optimizer's. The first step is not like the others."""
    steps, records, outside, updating = [], [], [], False
    for line in pathlib.Path(path).read_text(errors="replace").splitlines():
        kind, *fields = line.split("\t")
        if kind == "kernel":
            outside.append(fields[0] if fields else "?")
        elif kind in ("range", "cost"):
            values = dict(field.split("=", 1) for field in fields[1:])
            record = Record(fields[0], **{key: int(values.get(key, 0)) for key in ("kernels", "copies", "read", "written", "flops")},
                            of=values.get("of", ""), range=values.get("in", "")) if kind == "cost" else Record("range", range=fields[0])
            now = updating if FAKE.match(record.range) else bool(re.match(r"optimizer|Optimizer\.step", record.range))
            if updating and not now:
                steps.append(records)
                records = []
            updating = now
            # Kernels before the operator's own were launched by no operator.
            own = len(outside) - (0 if record.operator.startswith("nccl") else record.kernels)
            records += [Record("kernel " + name, kernels=1) for name in outside[:max(0, own)]]
            outside = [] if kind == "cost" else outside[max(0, own):]
            records.append(record)
    return steps + [records] if updating else steps


def steady_step(path):
    """Counter of the records of the trace's last step."""
    steps = read_trace(path)
    if len(steps) < 2:
        raise ValueError(f"{path} has {len(steps)} whole steps, and the second is the first that is like the others: train for 3 steps or more")
    return collections.Counter(steps[-1])


def is_attention(record):
    """Also of a kernel that Triton made the name tells what it does before or after attention."""
    return "attention" in record.operator and not record.operator.startswith("triton") and len(record.sizes) > 2


class Widths:
    """The sizes of the model that a step tells: what a tensor's last dimension means."""

    def __init__(self, step):
        def last(expression, inside=True):
            return {record.sizes[-1] for record in step if re.search(expression, record.operator) and record.sizes
                    and (inside or not OF_A_BLOCK.search(record.range))}

        # Of rows for experts, by libtorch's grouped product or by what orders them.
        self.experts = any(re.search("_grouped_mm|index_copy|order_rows", record.operator) and OF_A_BLOCK.search(record.range) for record in step)
        self.vocabulary = set(sorted(last(r"softmax|nll_loss|cross_entropy|hyperion::vocab_"))[-1:])
        self.hidden = set(sorted(last(r"silu|gated_activation"))[0 if self.experts else -1:])  # experts have a width of their own
        self.model = last(r"index_select|embedding_dense_backward", inside=not self.experts) | last("add_rms_norm")
        self.table = {record.sizes[0] - more for record in step for more in (0, 1) if re.search("embedding_dense_backward", record.operator)}
        self.head = {part for record in step if is_attention(record) for part in (record.sizes[-1], record.sizes[-1] // 2)}

    def of(self, record):
        sizes = record.sizes
        if not sizes or " " in record.of:
            return ""
        if sizes[-1] in self.vocabulary:
            return "vocabulary"
        if len(sizes) == 2 and sizes[0] in self.table and record.dtype == "fp32":
            return "table"
        if len(sizes) > 3 and record.dtype == "fp32":  # parts of heads of latent attention
            return "head"
        if len(sizes) > 2 and (sizes[-1] in self.head or sizes[-1] <= 2 and sizes[-2] in self.head):
            return "head"
        if sizes[-1] in self.hidden:
            return "hidden"
        if sizes[-1] in self.model or len(sizes) > 1 and sizes[-1] == 1:
            return "model" if record.dtype != "fp32" else "model in fp32" if len(sizes) > 2 else "model rows in fp32"
        return ""


def is_routing(record, widths):
    """Choices, counts and order are integers; scores, terms and sums of a token's rows and the gradient of its weights are in fp32."""
    if not widths.experts or not OF_A_BLOCK.search(record.range) or re.search("embedding|aten::(zero_|fill_|_foreach_zero)", record.operator):
        return False
    return bool(re.search(OF_ROUTING, record.operator)) or record.dtype in ("Long", "Int", "Bool") or (
        record.operator == "aten::sum" or record.dtype == "fp32" and len(record.sizes) in (2, 3))


def family_of(record, widths):
    if is_attention(record):
        return "attention"
    if record.flops and "_grouped_mm" in record.operator:
        return GROUPED
    if record.flops:
        return HEAD_PRODUCTS if widths.vocabulary & set(record.sizes) else PRODUCTS
    if is_routing(record, widths):
        return ROUTING
    if record.operator == "aten::add_" and len(record.sizes) == 3 and widths.hidden & set(record.sizes[1:]) and widths.model & set(record.sizes[1:]):
        return "gather, pack, reduce"  # sums of a stack's gradients over slices of tokens
    width = widths.of(record)
    for family, operator, where, wide in FAMILIES:
        if re.search(operator, record.operator) and re.search(where, record.range) and (
                not wide or width.startswith(wide) or record.dtype == wide):
            return family
    return OTHER


@dataclasses.dataclass
class Work:
    launches: float = 0
    bytes: float = 0
    flops: float = 0


def kernels_of(step):
    """(family, record, times) of a step's operators, without what a dry run does in place of collectives."""
    widths = Widths(step)
    return [(family_of(record, widths), record, times) for record, times in step.items()
            if record.operator != "range" and not FAKE.match(record.range) and not re.match(r"nccl|c10d::", record.operator)]


def work_of(step):
    """{family: Work} of a step."""
    found = collections.defaultdict(Work)
    for family, record, times in kernels_of(step):
        found[family].launches += times * record.launches
        found[family].bytes += times * (record.read + record.written)
        found[family].flops += times * record.flops
    return dict(found)


def sent_by(step):
    """{group: bytes} that the rank sends in a step."""
    found = collections.Counter()
    for record, times in step.items():
        if record.operator == "range" and (fake := FAKE.match(record.range)):
            found[fake[3]] += times * int(fake[2])
    return found


def environment(build, trace, world, rank=0):
    """For a dry run of one rank on simulated GPUs that compute nothing."""
    return {"HYPERION_DEVICE": "cuda", "LD_PRELOAD": str(build / "libsimulated_gpu.so"), "NGPU": str(world), "RANK": str(rank), "WORLD_SIZE": "",
            "HYPERION_SIMULATED_GPUS": "8", "HYPERION_SIMULATED_COMPUTE": "off", "HYPERION_SIMULATED_TRACE": str(trace)}
