// Our model on Hugging Face checkpoints, for hugging_face_peer.py. Weights and architecture come from a
// folder; token ids (i64) come in on stdin, the fp32 logits of each position go out on stdout, all
// little-endian.
//   hf_logits_tool logits FOLDER
//   hf_logits_tool export FOLDER OUT DTYPE MAX_FILE_BYTES [SEED]   also writes the model to OUT; with a seed
//   its
//                                        weights are drawn and FOLDER need only hold config.json
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/format/safetensors/safetensors.h"
#include "checkpoint/format/safetensors/safetensors_writer.h"
#include "models/init.h"
#include "models/transformer.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/names.h"

using namespace hyperion;
namespace fs = std::filesystem;

namespace {

using checkpoint::Dtype;

at::ScalarType scalar_type(Dtype dtype) {
  if (dtype == Dtype::kFloat32) return at::kFloat;
  if (dtype == Dtype::kBFloat16) return at::kBFloat16;
  if (dtype == Dtype::kFloat16) return at::kHalf;
  throw_data("dtype {} is not read by this tool", checkpoint::torch_name(dtype));
}

// Copies rows between our order and Hugging Face's.
at::Tensor reorder(const at::Tensor& from, const hugging_face::HfTensor& tensor, bool to_hf) {
  const at::Tensor rows = at::empty({from.size(0)}, at::kLong);  // of `from`, for each row of the result
  for (int64_t row = 0; row < from.size(0); ++row)
    rows.data_ptr<int64_t>()[row] =
        to_hf ? hugging_face::our_row(tensor, row) : hugging_face::hf_row(tensor, row);
  return from.index_select(0, rows);
}

void read_weights(const models::Transformer& model, const fs::path& folder) {
  const checkpoint::CheckpointIndex index = checkpoint::read_safetensors(folder);
  for (const ParameterPtr& parameter : model.parameters()) {
    const hugging_face::HfTensor tensor = hugging_face::hf_tensor(model.args(), parameter->fqn);
    const auto found = index.tensors.find(tensor.name);
    if (found == index.tensors.end() || found->second.shape != parameter->shape)
      throw_data("{}: {} is missing or of another shape", folder.string(), tensor.name);
    const checkpoint::Span where = found->second.chunks.at(0).where;
    std::string bytes(where.length, '\0');
    std::ifstream file(folder / where.file, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(where.offset))
        .read(bytes.data(), static_cast<std::streamsize>(where.length));
    const at::Tensor stored = at::from_blob(bytes.data(), parameter->shape, scalar_type(found->second.dtype));
    parameter->weight = reorder(stored.to(at::kFloat, false, true), tensor, false);
  }
  for (const auto& [name, record] : index.tensors)
    if (!hugging_face::parameter_of_hf(model.args(), name) &&
        !hugging_face::hf_may_ignore(model.args(), name))
      throw_data("{}: holds {}, which the model has not", folder.string(), name);
}

// Norm weights are drawn too, so that each one counts.
void draw_weights(const models::Transformer& model, uint64_t seed, Dtype rounded_to) {
  for (const ParameterPtr& parameter : model.parameters()) {
    Parameter drawn = *parameter;
    drawn.init = Init::normal(0.3);
    parameter->weight = at::empty(parameter->shape, at::kFloat);
    models::initialize(drawn, seed, whole_box(drawn.shape), parameter->weight);
    parameter->weight = parameter->weight.to(scalar_type(rounded_to)).to(at::kFloat);
  }
}

void write_weights(const models::Transformer& model, const fs::path& out, Dtype dtype,
                   uint64_t max_file_bytes) {
  std::vector<checkpoint::NamedTensor> tensors;
  for (const ParameterPtr& parameter : model.parameters())
    tensors.push_back({hugging_face::hf_tensor(model.args(), parameter->fqn).name, dtype, parameter->shape});
  const checkpoint::SafetensorsPlan plan = checkpoint::plan_safetensors(tensors, max_file_bytes);
  fs::create_directories(out);
  checkpoint::create_safetensors(out, plan);
  checkpoint::SafetensorsWriter writer(out, plan);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Parameter& parameter = *model.parameters()[i];
    const at::Tensor stored =
        reorder(parameter.weight, hugging_face::hf_tensor(model.args(), parameter.fqn), true)
            .to(scalar_type(dtype))
            .contiguous();
    writer.write(i, 0, {static_cast<const std::byte*>(stored.const_data_ptr()), stored.nbytes()});
  }
  write_file_atomic(
      out / "config.json",
      hugging_face::hf_config(model.args(), {.dtype = std::string(checkpoint::torch_name(dtype))}));
}

void print_logits(const models::Transformer& model) {
  at::NoGradGuard no_grad;
  std::vector<int64_t> ids;
  for (int64_t id = 0; std::fread(&id, sizeof id, 1, stdin) == 1;) ids.push_back(id);
  const at::Tensor tokens = at::tensor(ids, at::kLong).unsqueeze(0);
  const models::SequenceContext context = model.context(tokens.size(1), at::kCPU);
  at::Tensor x = model.embedding().forward(tokens);
  for (const models::TransformerBlock& block : model.blocks()) x = block.forward(x, context);
  const at::Tensor logits = model.head().logits(x).contiguous();
  std::fwrite(logits.const_data_ptr(), 1, logits.nbytes(), stdout);
}

int run(const std::vector<std::string>& words) {
  const bool exporting = words.size() >= 6 && words[1] == "export";
  if (!exporting && (words.size() != 3 || words[1] != "logits")) {
    std::fprintf(stderr,
                 "usage: hf_logits_tool logits FOLDER | export FOLDER OUT DTYPE MAX_FILE_BYTES [SEED]\n");
    return 2;
  }
  const fs::path folder = words[2];
  const models::Transformer model(hugging_face::read_hf_config(folder / "config.json"));
  const Dtype dtype = exporting ? choice_of<Dtype>(words[4]).value() : Dtype::kFloat32;
  if (words.size() > 6)
    draw_weights(model, std::stoull(words[6]), dtype);
  else
    read_weights(model, folder);
  if (exporting) write_weights(model, words[3], dtype, std::stoull(words[5]));
  print_logits(model);
  return std::fflush(stdout) == 0 ? 0 : 74;
}

}  // namespace

int main(int argc, char** argv) try { return run({argv, argv + argc}); } catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
