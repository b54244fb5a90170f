// The parameters of a job in Hugging Face's safetensors: which tensors they are, and what has to be done with
// them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/parameter.h"
#include "checkpoint/export_safetensors.h"
#include "checkpoint/loader.h"
#include "models/args/model_args.h"
#include "models/transformer.h"
#include "trainer/hugging_face/names.h"

namespace hyperion::checkpointing {

// The model's parameters and its experts' biases: what checkpoints have of a model.
std::vector<ParameterPtr> saved_parameters(const models::Transformer& model);

// Where the model's parameters are in Hugging Face's safetensors: names, the order of rotary rows, and
// records of what is stored in another form (experts that are tensors of their own, transposed stacks, fp8
// with block scales). `names`: Hugging Face's name -> key in the checkpoint. Tensors that no parameter
// corresponds to keep their name, so that they are reported as unexpected, but for those that a file may hold
// beyond its model (left_out); lm_head.weight of a tied model is its table's second name, output.weight. (Two
// models may have the same shapes: see require_same_model.) Throws IncompatibleCheckpoint where some matrices
// of a stack are missing or differ from the others.
checkpoint::StoredNames hugging_face_names(const models::ModelArgs& args,
                                           const std::map<std::string, std::string>& names,
                                           const checkpoint::OpenCheckpoint& checkpoint);

// One line about what is left out of the weights in `folder`.
void log_left_out(const checkpoint::StoredNames& names, const std::filesystem::path& folder);

// Whether any of them is fp8 with block scales.
bool has_block_scales(const checkpoint::StoredNames& names);

// From a row of our parameter to the row of Hugging Face's tensor; empty: as here.
checkpoint::RowMap hugging_face_rows(const hugging_face::HfTensor& tensor);

// The other way: what a tensor of the state becomes in Hugging Face's files, of type `dtype` where the model
// has no type of its own for it.
std::vector<checkpoint::ExportedTensor> hugging_face_tensors(const models::ModelArgs& args,
                                                             const checkpoint::TensorState& tensor,
                                                             checkpoint::Dtype dtype);

}  // namespace hyperion::checkpointing
