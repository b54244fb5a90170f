// Generates text: greedily, or by sampling from the model's distribution.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "app/inference/engine.h"
#include "app/inference/sampling_options.h"
#include "data/tokenizer/tokenizer.h"

namespace hyperion::inference {

// Draws the n-th new token from logits (fp32, [vocab] in host memory). The result depends on the arguments
// alone, so a seed reproduces the text. Of equal logits the smaller id comes first. Throws Error(kNonFinite)
// if no logit is finite.
int64_t sample(std::span<const float> logits, const SamplingOptions& options, int64_t n);

// Continues `prompt`, which must not be empty, until one of the tokens `eos`, max_tokens or the model's last
// position. Returns the new tokens without EOS. Each token recomputes the prefix (no key-value cache): this
// is simple and equals the training computation, but its cost grows with the square of the length. `each` is
// called with every new token.
std::vector<int64_t> generate(const InferenceEngine& engine, std::span<const int64_t> prompt,
                              std::span<const int64_t> eos, const SamplingOptions& options,
                              const std::function<void(int64_t)>& each = {});

// Continues the text `prompt` and prints tokens as they are generated; the tokenizer's EOS ends it too.
// Throws Error(kUsage) for an empty prompt if the tokenizer has no BOS, and for a prompt that is too long for
// the model.
void print_generated(const InferenceEngine& engine, const data::Tokenizer& tokenizer,
                     std::vector<int64_t> eos, const std::string& prompt, const SamplingOptions& options);

}  // namespace hyperion::inference
