#!/usr/bin/env python3
"""Judges trainer/metrics from outside: TensorBoard's own reader for event files, Python's json for metrics.jsonl and
Python's format strings (those of torchtitan v0.2.2) for step lines.  Usage: tensorboard_peer.py WRITE_EVENTS_TOOL
"""
import glob
import json
import math
import struct
import subprocess
import sys
import tempfile

SKIPPED = 77
TRAINING_TAGS = {
    "loss_metrics/global_avg_loss", "loss_metrics/global_max_loss", "grad_norm", "throughput(tps)", "tflops", "mfu(%)",
    "time_metrics/end_to_end(s)", "time_metrics/data_loading(s)", "time_metrics/data_loading(%)",
    "memory/max_active(GiB)", "memory/max_active(%)", "memory/max_reserved(GiB)", "memory/max_reserved(%)",
    "memory/num_alloc_retries", "memory/num_ooms", "n_tokens_seen", "lr",
}
VALIDATION_TAGS = {"validation_metrics/" + name for name in (
    "loss", "throughput(tps)", "memory/max_active(GiB)", "memory/max_active(%)", "memory/max_reserved(GiB)",
    "memory/max_reserved(%)")}
OUR_TAGS = {"mfu_causal(%)", "time_metrics/eta(s)"}
STEPS = [1] + list(range(10, 501, 10))


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def loss_at(step):
    return math.nan if step == 500 else 8.0 / step


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def check_events(folder, event_accumulator):
    accumulator = event_accumulator.EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    scalars = set(tags["scalars"])
    assert scalars == TRAINING_TAGS | VALIDATION_TAGS | OUR_TAGS, scalars ^ (TRAINING_TAGS | VALIDATION_TAGS | OUR_TAGS)
    losses = accumulator.Scalars("loss_metrics/global_avg_loss")
    assert [event.step for event in losses] == STEPS
    assert all(same(event.value, float32(loss_at(event.step))) for event in losses)
    assert all(event.wall_time > 1.7e9 for event in losses)
    validation = accumulator.Scalars("validation_metrics/loss")
    assert [(e.step, e.value) for e in validation] == [(s, float32(9.0 / s)) for s in range(100, 501, 100)]
    (config,) = accumulator.Tensors("config/text_summary")
    text = config.tensor_proto.string_val[0].decode()
    assert text == "```toml\n[training]\nsteps = 500  # \u00e9\n\n```", text
    metadata = accumulator.SummaryMetadata("config/text_summary")
    assert metadata.plugin_data.plugin_name == "text"
    return len(scalars)


def check_jsonl(path):
    with open(path) as lines:
        rows = [json.loads(line) for line in lines]
    training = [row for row in rows if "lr" in row]
    assert [row["step"] for row in training] == STEPS
    for row in training:
        assert set(row) == TRAINING_TAGS | OUR_TAGS | {"step", "time", "run_id"}
        assert same(float(row["loss_metrics/global_avg_loss"]), loss_at(row["step"]))  # full double precision
        assert row["grad_norm"] == 1.0 / 3
        assert row["n_tokens_seen"] == 64 * row["step"]
    return len(rows)


def check_step_lines(output):
    count = 0
    for line in output.splitlines():
        numbers, ours, our_validation = line.split("|")
        first, *rest = numbers.split()
        step, (loss, norm, gib, percent, tps, tflops, mfu, lr, seconds, data) = int(first), map(float.fromhex, rest)
        step_line = (f"step: {step:2}  loss: {loss:8.5f}  grad_norm: {norm:7.4f}  memory: {gib:5.2f}GiB({percent:.2f}%)  "
                     f"tps: {round(tps):,}  tflops: {tflops:,.2f}  mfu: {mfu:.2f}%")
        assert ours.startswith(step_line + "  steps: "), f"\n{ours}\n{step_line}"
        own = f"  steps: 2000  lr: {lr:.2e}  step_time: {seconds:.3f}s  data_loading: {data:.1f}%  eta: 1:01:01"
        assert ours == step_line + own, f"\n{ours}\n{own}"
        validation = (f"validate step: {step:2}  loss: {loss:7.4f}  memory: {gib:5.2f}GiB({percent:.2f}%)  "
                      f"tps: {round(tps):,}")
        assert our_validation == validation, f"\n{our_validation}\n{validation}"
        count += 1
    assert count == 2000, count
    return count


def main():
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        print("skipped: this Python has no tensorboard (scripts/setup.sh --interop installs it)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        output = subprocess.run([sys.argv[1], folder], check=True, capture_output=True, text=True).stdout
        (event_folder,) = glob.glob(folder + "/tb/*")
        tags = check_events(event_folder, event_accumulator)
        rows = check_jsonl(folder + "/metrics.jsonl")
    lines = check_step_lines(output)
    print(f"ok: {tags} scalar tags and a text read by TensorBoard, {rows} JSON lines, {lines} step lines equal Python's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
