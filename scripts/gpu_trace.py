#!/usr/bin/env python3
"""Reduces a trace of [profiling] to a table: the GPU's time by kind of kernel, how busy it was, the largest gaps.

usage: gpu_trace.py rank0_trace.json
"""
import collections
import json
import re
import signal
import sys

KINDS = (  # the first expression that is found in a kernel's name decides
    ("collectives", r"nccl"),
    ("attention", r"(?i)flash|fmha|sdpa|attention|cudnn_generated|merge_rows"),
    ("matrix products", r"(?i)gemm|nvjet|cutlass|xmma|cublas"),
    ("FP8 casts", r"float8|fp8|e4m3|e5m2"),
    ("packing", r"chunk_cat|key_chunks"),
    ("optimizer and norms of many tensors", r"multi_tensor_apply"),
    ("copies", r"(?i)memcpy|direct_copy|copy_kernel|CatArray"),
    ("fills", r"(?i)memset|FillFunctor"),
    ("softmax and cross-entropy", r"(?i)softmax|nll_loss|cross_entropy_row|vocab_(statistics|gradient)_row"),
    ("fused norms, RoPE and gated activations", r"(?i)layer_norm|rms_norm|GammaBeta|sum_weight_gradient|rope_token|gated_activation"),
    ("reductions", r"(?i)reduce_kernel"),
    ("element by element", r"(?i)elementwise"),
)
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
GAPS = 10
BLOCK, COLLECTIVE = r"(forward|backward|recompute) layers\.\d+$", r"fake |all-gather |reduce-scatter |all-reduce "  # ranges (docs/metrics.md)


def kind_of(name):
    return next((kind for kind, expression in KINDS if re.search(expression, name)), "other")


def copies_in_blocks(events, steps):
    """Copies that a block's range launched, without those of collectives in it: {kernel: count per step}."""
    def spans(expression):
        return [(float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in events
                if event.get("cat") == "user_annotation" and re.match(expression, event["name"])]

    blocks, collectives = spans(BLOCK), spans(COLLECTIVE)
    launched = {event["args"]["correlation"]: float(event["ts"]) for event in events
                if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})}
    found = collections.Counter()
    for event in events:
        at = launched.get(event.get("args", {}).get("correlation"))
        if event.get("cat") in ON_GPU and at is not None and kind_of(event["name"]) == "copies":
            if any(begin <= at <= end for begin, end in blocks) and not any(begin <= at <= end for begin, end in collectives):
                found[event["name"]] += 1 / steps
    return dict(found)


def exposed(work):
    """Microseconds in which kernels of NCCL run and nothing else does, of events in the order of their beginnings."""
    def merged(events):
        spans = []
        for event in events:
            begin, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
            if spans and begin <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], end)
            else:
                spans.append([begin, end])
        return spans

    def length(spans):
        return sum(end - begin for begin, end in spans)

    return length(merged(work)) - length(merged([event for event in work if kind_of(event["name"]) != "collectives"]))


def reduce(trace):
    """{steps, launches_per_step, busy, ms_per_step, kinds: {kind: {ms_per_step, launches_per_step}}, exposed_ms_per_step (of collectives that
    overlap nothing), copies_in_blocks: {kernel: copies per step}, gaps: [{ms, after, before}]} of a Chrome trace. `busy`: the share of the
    time between the first kernel and the last in which any ran. Times are of one step."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    steps = max(1, len({event["name"] for event in events if event["name"].startswith("ProfilerStep#")}))
    work = sorted((event for event in events if event.get("cat") in ON_GPU), key=lambda event: event["ts"])
    kinds = collections.defaultdict(lambda: {"ms_per_step": 0.0, "launches_per_step": 0.0})
    gaps, busy, end, last = [], 0.0, None, ""
    for event in work:
        begin, until = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        kind = kinds[kind_of(event["name"])]
        kind["ms_per_step"] += float(event["dur"]) / 1e3 / steps
        kind["launches_per_step"] += 1 / steps
        if end is not None and begin > end:
            gaps.append({"ms": (begin - end) / 1e3, "after": last, "before": event["name"]})
        busy += max(0.0, until - max(begin, begin if end is None else end))
        if end is None or until > end:
            end, last = until, event["name"]
    span = end - float(work[0]["ts"]) if work else 0.0
    return {
        "steps": steps,
        "launches_per_step": len(work) / steps,
        "busy": busy / span if span else 0.0,
        "ms_per_step": span / 1e3 / steps,
        "kinds": dict(sorted(kinds.items(), key=lambda entry: -entry[1]["ms_per_step"])),
        "exposed_ms_per_step": exposed(work) / 1e3 / steps,
        "copies_in_blocks": copies_in_blocks(events, steps),
        "gaps": sorted(gaps, key=lambda gap: -gap["ms"])[:GAPS],
    }


def table(reduced):
    lines = [f"{reduced['steps']} steps of {reduced['ms_per_step']:.2f} ms, {reduced['launches_per_step']:,.0f} launches each, "
             f"GPU busy {100 * reduced['busy']:.1f} %", "", "| kind | ms per step | launches per step |", "|---|---:|---:|"]
    lines += [f"| {kind} | {row['ms_per_step']:.3f} | {row['launches_per_step']:,.0f} |" for kind, row in reduced["kinds"].items()]
    lines += ["", f"collectives that overlap nothing: {reduced['exposed_ms_per_step']:.3f} ms per step"]
    lines += ["", f"copies inside blocks per step: {reduced['copies_in_blocks'] or 'none'}"]
    lines += ["", "| gap, ms | after | before |", "|---:|---|---|"]
    lines += [f"| {gap['ms']:.3f} | {gap['after'][:60]} | {gap['before'][:60]} |" for gap in reduced["gaps"]]
    return "\n".join(lines)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__.strip()))
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        print(table(reduce(json.load(file))))
