#include "trainer/checkpointing/hugging_face_weights.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "trainer/checkpointing/stored_weights.h"

namespace hyperion::checkpointing {
namespace {

using checkpoint::Chunk;
using checkpoint::Dims;
using checkpoint::ForeignForm;
using checkpoint::TensorRecord;
using hugging_face::HfTensor;

constexpr int64_t kScaleBlock = 128;  // rows and columns that have one scale in DeepSeek-V3's files
constexpr int64_t kFloat4Block = 32;  // numbers that have one scale in MXFP4

// Returns the name under which the files have a tensor: its own, or that of its codes in MXFP4.
std::string name_in_files(const HfTensor& tensor, const std::map<std::string, std::string>& names) {
  const std::string codes = tensor.name + std::string(hugging_face::kFloat4Suffix);
  return tensor.part.transposes() && !names.contains(tensor.name) && names.contains(codes) ? codes
                                                                                           : tensor.name;
}

// Makes the records of one parameter.
class RecordMaker {
 public:
  RecordMaker(const checkpoint::OpenCheckpoint& checkpoint, const std::map<std::string, std::string>& names,
              const Parameter& parameter)
      : checkpoint_(checkpoint), names_(names), parameter_(parameter) {}

  // Null if the tensor is stored as the index says.
  std::shared_ptr<const TensorRecord> make(const std::vector<HfTensor>& tensors) const {
    const HfTensor& first = tensors.front();
    if (first.part.matrix >= 0) return stack(tensors);
    if (name_in_files(first, names_) != first.name) return in_float4(first);
    if (first.part.transposes()) return transposed(first);
    return with_scales(first.name);
  }

 private:
  const TensorRecord& record(const std::string& name) const {
    return checkpoint_.index.tensors.at(names_.at(name));
  }

  // Returns the record of the tensor with its scales; null if it has none.
  std::shared_ptr<const TensorRecord> with_scales(const std::string& name) const {
    const auto scales = names_.find(name + std::string(hugging_face::kScaleSuffix));
    if (scales == names_.end()) return nullptr;
    const TensorRecord &stored = record(name), &of_blocks = record(scales->first);
    Dims blocks = stored.shape;
    for (int64_t& extent : blocks) extent = (extent + kScaleBlock - 1) / kScaleBlock;
    if (stored.dtype != checkpoint::Dtype::kFloat8E4M3FN || stored.shape.size() != 2 ||
        of_blocks.dtype != checkpoint::Dtype::kFloat32 || of_blocks.shape != blocks ||
        stored.chunks.size() != 1 || of_blocks.chunks.size() != 1)
      refuse(
          fmt::format("{} is {} and its scales are {}, expected a float8_e4m3fn matrix with a float32 scale "
                      "for each {} rows and columns",
                      name, describe_tensor(stored.dtype, stored.shape),
                      describe_tensor(of_blocks.dtype, of_blocks.shape), kScaleBlock));
    TensorRecord made{checkpoint::Dtype::kFloat32, stored.shape, stored.chunks};
    made.chunks.front().form = std::make_shared<const ForeignForm>(
        ForeignForm{.strides = {}, .scales = of_blocks.chunks.front().where, .block = kScaleBlock});
    return std::make_shared<const TensorRecord>(std::move(made));
  }

  std::shared_ptr<const TensorRecord> stack(const std::vector<HfTensor>& tensors) const {
    TensorRecord made;
    for (const HfTensor& tensor : tensors) {
      const std::shared_ptr<const TensorRecord> scaled = with_scales(tensor.name);
      const TensorRecord& matrix = scaled ? *scaled : record(tensor.name);
      if (tensor.part.matrix == 0) {
        made.dtype = matrix.dtype;
        made.shape = matrix.shape;
      }
      if (matrix.shape != made.shape || matrix.dtype != made.dtype)
        refuse(fmt::format("{} is {}, but {} is {}", tensor.name, describe_tensor(matrix.dtype, matrix.shape),
                           tensors.front().name, describe_tensor(made.dtype, made.shape)));
      for (Chunk chunk : matrix.chunks) {
        chunk.offset.insert(chunk.offset.begin(), tensor.part.matrix);
        chunk.shape.insert(chunk.shape.begin(), 1);
        made.chunks.push_back(std::move(chunk));
      }
    }
    made.shape.insert(made.shape.begin(), static_cast<int64_t>(tensors.size()));
    return std::make_shared<const TensorRecord>(std::move(made));
  }

  std::shared_ptr<const TensorRecord> transposed(const HfTensor& tensor) const {
    const TensorRecord& stored = record(tensor.name);
    const Dims& shape = parameter_.shape;
    const Dims expected = stored_shape(tensor.part, shape);
    if (stored.shape != expected || stored.chunks.size() != 1)
      refuse(fmt::format("{} is {} in {} pieces, expected [{}] in one", tensor.name,
                         describe_tensor(stored.dtype, stored.shape), stored.chunks.size(),
                         fmt::join(expected, ", ")));
    const int64_t width = tensor.part.width;
    Chunk chunk = stored.chunks.front();
    chunk.shape = shape;
    chunk.form = std::make_shared<const ForeignForm>(
        ForeignForm{.strides = {expected[1] * width, 1, width}, .first = tensor.part.first, .scales = {}});
    return std::make_shared<const TensorRecord>(TensorRecord{stored.dtype, shape, {std::move(chunk)}});
  }

  // The stack as its MXFP4 codes and their scales, which are not transposed.
  std::shared_ptr<const TensorRecord> in_float4(const HfTensor& tensor) const {
    const std::string scales = tensor.name + std::string(hugging_face::kFloat4ScaleSuffix);
    if (!names_.contains(scales)) refuse(fmt::format("{} is missing, its scales", scales));
    const TensorRecord &codes = record(name_in_files(tensor, names_)), &of_blocks = record(scales);
    Dims blocks = parameter_.shape;
    blocks.back() /= kFloat4Block;
    Dims bytes = blocks;
    bytes.push_back(kFloat4Block / 2);
    const auto is = [](const TensorRecord& found, const Dims& shape) {
      return found.dtype == checkpoint::Dtype::kUInt8 && found.shape == shape && found.chunks.size() == 1;
    };
    if (parameter_.shape.back() % kFloat4Block != 0 || !is(codes, bytes) || !is(of_blocks, blocks))
      refuse(fmt::format(
          "{}{} is {} and its scales are {}, expected two MXFP4 numbers a byte, uint8 [{}], with a "
          "scale for each {} of a row, uint8 [{}]",
          tensor.name, hugging_face::kFloat4Suffix, describe_tensor(codes.dtype, codes.shape),
          describe_tensor(of_blocks.dtype, of_blocks.shape), fmt::join(bytes, ", "), kFloat4Block,
          fmt::join(blocks, ", ")));
    Chunk chunk = codes.chunks.front();
    chunk.offset = Dims(parameter_.shape.size());
    chunk.shape = parameter_.shape;
    chunk.form = std::make_shared<const ForeignForm>(ForeignForm{.strides = {},
                                                                 .scales = of_blocks.chunks.front().where,
                                                                 .block = kFloat4Block,
                                                                 .encoding = ForeignForm::Encoding::kFloat4});
    return std::make_shared<const TensorRecord>(
        TensorRecord{checkpoint::Dtype::kFloat32, parameter_.shape, {std::move(chunk)}});
  }

  [[noreturn]] void refuse(const std::string& text) const {
    throw_incompatible("{}: {} cannot be read: {}", checkpoint_.folder.string(), parameter_.fqn, text);
  }

  const checkpoint::OpenCheckpoint& checkpoint_;
  const std::map<std::string, std::string>& names_;
  const Parameter& parameter_;
};

}  // namespace

std::vector<ParameterPtr> saved_parameters(const models::Transformer& model) {
  std::vector<ParameterPtr> parameters = model.parameters();
  for (const models::ExpertBalancePtr& balance : model.balances()) parameters.push_back(balance->bias);
  return parameters;
}

checkpoint::StoredNames hugging_face_names(const models::ModelArgs& args,
                                           const std::map<std::string, std::string>& names,
                                           const checkpoint::OpenCheckpoint& checkpoint) {
  checkpoint::StoredNames stored;
  std::map<std::string, std::string> left = names;
  for (const ParameterPtr& parameter : saved_parameters(models::Transformer(args))) {
    const std::vector<HfTensor> tensors = hugging_face::hf_tensors(args, parameter->fqn);
    if (tensors.empty()) {
      stored.keys.emplace(parameter->fqn, "");
      stored.records.emplace(parameter->fqn, std::make_shared<const TensorRecord>(TensorRecord{
                                                 checkpoint::Dtype::kFloat32, parameter->shape, {}}));
      continue;
    }
    const std::string first = name_in_files(tensors.front(), names);
    if (first != tensors.front().name)
      left.erase(tensors.front().name + std::string(hugging_face::kFloat4ScaleSuffix));
    std::vector<std::string> missing;
    for (const HfTensor& tensor : tensors) {
      const std::string name = name_in_files(tensor, names);
      if (!names.contains(name)) missing.push_back(name);
      left.erase(name);
      if (!tensor.part.transposes()) left.erase(tensor.name + std::string(hugging_face::kScaleSuffix));
    }
    if (missing.size() == tensors.size()) continue;  // missing, as the loader says
    if (!missing.empty())
      throw_incompatible("{}: {} is incomplete, {} of its {} matrices are missing: {}",
                         checkpoint.folder.string(), parameter->fqn, missing.size(), tensors.size(),
                         fmt::join(missing, ", "));
    stored.keys.emplace(parameter->fqn, names.at(first));
    if (auto made = RecordMaker(checkpoint, names, *parameter).make(tensors))
      stored.records.emplace(parameter->fqn, std::move(made));
  }
  for (const auto& [name, key] : left) {
    if (args.tied && name == "lm_head.weight")
      stored.keys.emplace("output.weight", key);
    else if (hugging_face::hf_may_ignore(args, name))
      stored.left_out.push_back(name);
    else
      stored.keys.emplace(name, key);
  }
  stored.row_map = [args](const std::string& fqn) {
    const std::vector<HfTensor> tensors = hugging_face::hf_tensors(args, fqn);
    return tensors.empty() ? checkpoint::RowMap() : hugging_face_rows(tensors.front());
  };
  return stored;
}

void log_left_out(const checkpoint::StoredNames& names, const std::filesystem::path& folder) {
  const std::vector<std::string>& left_out = names.left_out;
  if (left_out.empty()) return;
  log_info("{}: {} {} no place in the model and {} left out: {}{}", folder.string(),
           counted(left_out.size(), "tensor"), left_out.size() == 1 ? "has" : "have",
           left_out.size() == 1 ? "is" : "are", printable(left_out.front()),
           left_out.size() == 1 ? "" : fmt::format(" to {}", printable(left_out.back())));
}

bool has_block_scales(const checkpoint::StoredNames& names) {
  return std::ranges::any_of(names.records, [](const auto& made) {
    const std::vector<Chunk>& chunks = made.second->chunks;
    return !chunks.empty() && chunks.front().form && !chunks.front().form->scales.file.empty();
  });
}

checkpoint::RowMap hugging_face_rows(const HfTensor& tensor) {
  if (tensor.head_dim == 0) return {};
  return [tensor](int64_t row) { return hugging_face::hf_row(tensor, row); };
}

std::vector<checkpoint::ExportedTensor> hugging_face_tensors(const models::ModelArgs& args,
                                                             const checkpoint::TensorState& tensor,
                                                             checkpoint::Dtype dtype) {
  std::vector<checkpoint::ExportedTensor> exported;
  for (const HfTensor& stored : hugging_face::hf_tensors(args, tensor.key))
    exported.push_back(
        {.tensor = &tensor,
         .name = stored.name,
         .dtype = hugging_face::hf_keeps_float32(tensor.key) ? checkpoint::Dtype::kFloat32 : dtype,
         .row_map = hugging_face_rows(stored),
         .part = stored.part});
  return exported;
}

}  // namespace hyperion::checkpointing
