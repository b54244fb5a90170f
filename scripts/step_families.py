"""Which family an operator of a step belongs to, by its name, its tensors and the range it ran in: for scripts/step_budget.py. Imported only."""
import dataclasses
import re

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
    ("RoPE", r"", "", "head"),
    ("SwiGLU", r"", "", "hidden"),
    ("embedding", r"embedding|index_select", "", ""),
    ("norms", r"aten::(mul|sum|div|sub|neg)", "", "model"),
    ("norms", r"aten::(add|copy)", "", "model in fp32"),
    ("residual adds", r"aten::add|foreach_add|triton_poi_.*add", "", "model"),
    ("casts and copies", r"aten::(copy_|cat|_to_copy|clone)", "", ""),
    ("fills", r"aten::(zero_|fill_|_foreach_zero_)|memset", "", ""),
)
PRODUCTS, HEAD_PRODUCTS, GROUPED, ROUTING, OTHER = "products", "products of the head", "products of experts", "routing and order", "other"
OF_BLOCKS = {PRODUCTS, GROUPED, ROUTING, "attention", "norms", "RoPE", "SwiGLU", "residual adds", "casts and copies", "FP8 casts"}
ELEMENTWISE = OF_BLOCKS - {PRODUCTS, GROUPED, "attention"}

# Of a block with experts: what decides where rows go, and what brings them there and back.
OF_ROUTING = r"hyperion::(route|routing|order_rows|gather_rows|sum_rows|products_of_rows|weight_rows|pack_row_sums|sum_packed_rows)|index_|sort|topk|scatter|gather|cumsum|arange|repeat_interleave|bincount|histc|aten::(softmax|_softmax|sigmoid)|aten::where"


@dataclasses.dataclass(frozen=True)
class Record:
    """One launch or operator of the trace."""

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
        self.vocabulary = set(sorted(last(r"softmax|nll_loss|cross_entropy"))[-1:])
        self.hidden = set(sorted(last(r"silu|gated_activation"))[0 if self.experts else -1:])  # experts have a width of their own
        self.model = last(r"index_select|embedding_dense_backward", inside=not self.experts)
        self.head = {part for record in step if is_attention(record) for part in (record.sizes[-1], record.sizes[-1] // 2)}

    def of(self, record):
        sizes = record.sizes
        if not sizes or " " in record.of:
            return ""
        if sizes[-1] in self.vocabulary:
            return "vocabulary"
        if len(sizes) > 3 and record.dtype == "fp32":  # parts of heads of latent attention
            return "head"
        if len(sizes) > 2 and (sizes[-1] in self.head or sizes[-1] <= 2 and sizes[-2] in self.head):
            return "head"
        if sizes[-1] in self.hidden:
            return "hidden"
        if sizes[-1] in self.model or len(sizes) > 1 and sizes[-1] == 1:
            return "model in fp32" if record.dtype == "fp32" else "model"
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
    width = widths.of(record)
    for family, operator, where, wide in FAMILIES:
        if re.search(operator, record.operator) and re.search(where, record.range) and (
                not wide or width.startswith(wide) or record.dtype == wide):
            return family
    return OTHER
