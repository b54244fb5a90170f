// Estimates whether the tokenizer threads can feed the GPUs. The threads of each node read the whole stream,
// the documents of all ranks (data/loader.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Returns the first document of each of the first training text files; none if all files are token shards.
std::vector<std::string> sample_of_text(const config::JobConfig& config);

// Measures the tokens per second of one thread on `documents`, for a tenth of a second after one warm-up
// pass.
double tokenizer_rate(const data::Tokenizer& tokenizer, const std::vector<std::string>& documents);

// Returns a warning if the GPUs need more tokens than the tokenizer threads can be expected to deliver.
// `ranks` ranks read different data, each for GPUs that together train on `gpu_rate` tokens per second;
// `threads` threads tokenise together at `thread_rate` tokens per second each. Pure.
std::optional<std::string> text_rate_advice(double thread_rate, double gpu_rate, int64_t ranks,
                                            int64_t threads);

}  // namespace hyperion::trainer
