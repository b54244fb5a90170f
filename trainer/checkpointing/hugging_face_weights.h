// Maps the parameters of a job to tensors of Hugging Face's safetensors and back.
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

// Returns the model's parameters and its experts' biases, all of which checkpoints store.
std::vector<ParameterPtr> saved_parameters(const models::Transformer& model);

// Finds the model's parameters in Hugging Face's safetensors: their names, the order of rotary rows, and
// their stored form (one tensor per expert, transposed stacks, fp8 with block scales). `names` maps Hugging
// Face's name to the key in the checkpoint. Tensors without a parameter keep their name, so that they are
// reported as unexpected, unless a file may hold them in addition to its model (left_out). lm_head.weight of
// a tied model becomes output.weight, the table's second name. Equal shapes do not prove an equal model: see
// require_same_model(). Throws IncompatibleCheckpoint if matrices of a stack are missing or differ in form.
checkpoint::StoredNames hugging_face_names(const models::ModelArgs& args,
                                           const std::map<std::string, std::string>& names,
                                           const checkpoint::OpenCheckpoint& checkpoint);

// Logs one line about the tensors of `folder` that are left out.
void log_left_out(const checkpoint::StoredNames& names, const std::filesystem::path& folder);

// Returns whether any tensor is fp8 with block scales.
bool has_block_scales(const checkpoint::StoredNames& names);

// Maps a row of our parameter to the row of Hugging Face's tensor. An empty map means equal order.
checkpoint::RowMap hugging_face_rows(const hugging_face::HfTensor& tensor);

// Returns the tensors that export a state tensor to Hugging Face's files. Their type is `dtype` unless the
// model prescribes one.
std::vector<checkpoint::ExportedTensor> hugging_face_tensors(const models::ModelArgs& args,
                                                             const checkpoint::TensorState& tensor,
                                                             checkpoint::Dtype dtype);

}  // namespace hyperion::checkpointing
