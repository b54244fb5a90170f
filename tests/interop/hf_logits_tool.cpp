// Our model on Hugging Face checkpoints, for hugging_face_peer.py. Weights and architecture come from a
// folder; token ids (i64) come in on stdin, the fp32 logits of each position go out on stdout, all
// little-endian, for one command after the other.
//   hf_logits_tool COMMAND [then COMMAND]...
//   logits FOLDER
//   losses FOLDER                    instead of logits: the mean cross-entropy of each next token, the loss
//   of
//                                    the balance of block 0's router, and the gradient of its gate
//   attention WINDOW                 instead of logits output and gradients of one attention with sinks
//   export FOLDER OUT DTYPE [SEED]   also writes the model to OUT/step-1; with a seed its weights are drawn
//                                    and FOLDER need only hold config.json
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/collective.h"
#include "base/error.h"
#include "checkpoint/export_safetensors.h"
#include "models/init.h"
#include "models/layers/ops.h"
#include "models/transformer.h"
#include "trainer/checkpointing/hugging_face_weights.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/checkpointing/stored_weights.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/names.h"

using namespace hyperion;
namespace fs = std::filesystem;

namespace {

using checkpoint::Dtype;

at::Tensor room_for(const Parameter& parameter) {
  return at::empty(parameter.shape, at::kFloat);
}

void read_weights(const models::Transformer& model, const fs::path& folder) {
  const checkpointing::StoredWeights weights(folder, model.args(), /*ema=*/false);
  for (const ParameterPtr& parameter : checkpointing::saved_parameters(model)) {
    if (!parameter->weight.defined()) parameter->weight = room_for(*parameter);
    weights.load(*parameter, parameter->weight);
  }
}

// Norm weights and biases of experts that Hugging Face has are drawn too, so that each one counts.
void draw_weights(const models::Transformer& model, uint64_t seed, Dtype rounded_to) {
  for (const ParameterPtr& parameter : checkpointing::saved_parameters(model)) {
    if (hugging_face::hf_tensors(model.args(), parameter->fqn).empty()) continue;
    Parameter drawn = *parameter;
    drawn.init = Init::normal(0.3);
    parameter->weight = room_for(*parameter);
    models::initialize(drawn, seed, whole_box(drawn.shape), parameter->weight);
    if (!hugging_face::hf_keeps_float32(parameter->fqn))
      parameter->weight = parameter->weight.to(checkpointing::scalar_type(rounded_to)).to(at::kFloat);
  }
}

void write_weights(const models::Transformer& model, const fs::path& out, Dtype dtype) {
  std::vector<checkpoint::TensorState> states;
  for (const ParameterPtr& parameter : checkpointing::saved_parameters(model)) {
    checkpoint::TensorState& state = states.emplace_back();
    state.key = parameter->fqn;
    state.shape = parameter->shape;
    state.data = parameter->weight.data_ptr();
  }
  std::vector<checkpoint::ExportedTensor> tensors;
  for (const checkpoint::TensorState& state : states)
    for (checkpoint::ExportedTensor& tensor : checkpointing::hugging_face_tensors(model.args(), state, dtype))
      tensors.push_back(std::move(tensor));
  const std::string config =
      hugging_face::hf_config(model.args(), {.dtype = std::string(checkpoint::torch_name(dtype))});
  SoloCoordinator alone;
  checkpoint::MemoryMover mover;
  checkpoint::export_safetensors(1, "export", tensors, {{"config.json", config}}, {},
                                 checkpoint::CheckpointFolder(out), alone, mover);
}

std::vector<int64_t> read_ids() {
  std::vector<int64_t> ids;
  for (int64_t id = 0; std::fread(&id, sizeof id, 1, stdin) == 1;) ids.push_back(id);
  return ids;
}

void print_logits(const models::Transformer& model, const std::vector<int64_t>& ids) {
  at::NoGradGuard no_grad;
  const at::Tensor tokens = at::tensor(ids, at::kLong).unsqueeze(0);
  const models::SequenceContext context = model.context(tokens.size(1), at::kCPU);
  at::Tensor x = model.embedding().forward(tokens);
  for (const models::TransformerBlock& block : model.blocks()) x = block.forward(x, context);
  const at::Tensor logits = model.head().logits(x).contiguous();
  std::fwrite(logits.const_data_ptr(), 1, logits.nbytes(), stdout);
}

// One training step's forward and backward.
void print_losses(const models::Transformer& model, const std::vector<int64_t>& ids) {
  const auto count = static_cast<int64_t>(ids.size());
  const at::Tensor tokens = at::tensor(ids, at::kLong).unsqueeze(0), labels = tokens.roll(-1, 1);
  labels.select(1, -1).fill_(-100);
  for (const ParameterPtr& parameter : model.parameters()) parameter->weight.requires_grad_();
  const models::ExpertBalancePtr balance = model.balances().at(0);
  balance->losses->start_step(count, 1);
  models::LayerMetrics metrics;
  const models::SequenceContext context = model.context(count, at::kCPU);
  at::Tensor x = model.embedding().forward(tokens);
  for (const models::TransformerBlock& block : model.blocks())
    x = block.forward(x, context, {.metrics = &metrics, .counts_tokens = true});
  const at::Tensor scale = at::full({}, 1.0 / static_cast<double>(count - 1), at::kFloat);
  const auto [loss, grad, z_loss] = model.head().loss_and_grad(x.detach(), labels, scale);
  torch::autograd::backward({x}, {grad});
  std::vector<at::Tensor> numbers = {loss * scale,
                                     metrics.by_tag.at("loss_metrics/global_aux_loss").values.at(0)};
  for (const ParameterPtr& parameter : model.parameters())
    if (parameter->fqn == "layers.0.moe.router.gate.weight") numbers.push_back(parameter->weight.grad());
  for (const at::Tensor& number : numbers) {
    const at::Tensor held = number.to(at::kFloat).contiguous();
    std::fwrite(held.const_data_ptr(), 1, held.nbytes(), stdout);
  }
}

// q, k, v, the sinks and the gradient that comes in are waves of the frequencies that the Python side has
// too.
void print_attention(int64_t window) {
  const auto wave = [](std::vector<int64_t> shape, double frequency) {
    const at::Tensor t = at::empty(shape, at::kDouble);
    for (int64_t i = 0; i < t.numel(); ++i)
      t.mutable_data_ptr<double>()[i] = 2 * std::sin(frequency * static_cast<double>(i + 1));
    return t.to(at::kFloat);
  };
  std::vector<at::Tensor> leaves = {wave({2, 8, 37, 16}, 0.7), wave({2, 2, 37, 16}, 1.1),
                                    wave({2, 2, 37, 16}, 1.7), wave({8}, 2.3)};
  for (at::Tensor& leaf : leaves) leaf.requires_grad_();
  hyperion::kernels::AttentionMask mask;
  mask.window = window;
  const at::Tensor output = models::ops::attention(leaves[0], leaves[1], leaves[2], mask, nullptr, leaves[3]);
  torch::autograd::backward({output}, {wave({2, 8, 37, 16}, 0.3)});
  std::vector<at::Tensor> results = {output.detach()};
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad());
  for (const at::Tensor& result : results) {
    const at::Tensor numbers = result.contiguous();
    std::fwrite(numbers.const_data_ptr(), 1, numbers.nbytes(), stdout);
  }
}

// False where the command is none.
bool run(const std::vector<std::string>& words, const std::vector<int64_t>& ids) {
  if (words.size() == 2 && words[0] == "attention") {
    print_attention(std::stoll(words[1]));
    return true;
  }
  const bool exporting = words.size() >= 4 && words[0] == "export";
  const bool losses = words.size() == 2 && words[0] == "losses";
  if (!exporting && !losses && (words.size() != 2 || words[0] != "logits")) return false;
  const fs::path folder = words[1];
  const models::Transformer model(hugging_face::read_hf_config(folder / "config.json"));
  const Dtype dtype = exporting ? choice_of<Dtype>(words[3]).value() : Dtype::kFloat32;
  if (words.size() > 4)
    draw_weights(model, std::stoull(words[4]), dtype);
  else
    read_weights(model, folder);
  if (exporting) write_weights(model, words[2], dtype);
  losses ? print_losses(model, ids) : print_logits(model, ids);
  return true;
}

int run_all(const std::vector<std::string>& words) {
  const std::vector<int64_t> ids = read_ids();
  for (auto begin = words.begin();;) {
    const auto end = std::find(begin, words.end(), "then");
    if (!run({begin, end}, ids)) {
      std::fprintf(stderr,
                   "usage: hf_logits_tool logits FOLDER | losses FOLDER | attention WINDOW | export FOLDER "
                   "OUT DTYPE [SEED] "
                   "[then ...]\n");
      return 2;
    }
    if (end == words.end()) return std::fflush(stdout) == 0 ? 0 : 74;
    begin = end + 1;
  }
}

}  // namespace

int main(int argc, char** argv) try { return run_all({argv + 1, argv + argc}); } catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
