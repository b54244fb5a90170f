// When YaRN (arXiv 2309.00071) rescales the rotary frequencies of a model with rope_yarn: with rope_scaling
// always, as transformers does, else where it is trained with more than rope_original_length tokens, as in
// v0.2.2.
#pragma once

#include <cstdint>

#include "models/args/model_args.h"

namespace hyperion::models {

constexpr bool scales_by_yarn(const ModelArgs& args, int64_t trained_seq_len) {
  return args.rope_yarn && (args.rope_scaling || trained_seq_len > args.rope_original_length);
}

// Decides by the length in training whether the model scales by YaRN, so that sequences of other lengths get
// the same frequencies.
inline ModelArgs with_yarn_decided(ModelArgs args, int64_t trained_seq_len) {
  if (args.rope_yarn) args.rope_yarn = args.rope_scaling = scales_by_yarn(args, trained_seq_len);
  return args;
}

}  // namespace hyperion::models
