// Whether the threads that tokenise text can feed the GPUs: those of a node read the whole stream, the
// documents of all ranks (data/loader.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// The first document of each of the first files with training text; none where all are token shards.
std::vector<std::string> sample_of_text(const config::JobConfig& config);

// Tokens per second of one thread, measured on `documents` for a tenth of a second after one pass over them.
double tokenizer_rate(const data::Tokenizer& tokenizer, const std::vector<std::string>& documents);

// The sentence of a warning where `ranks` that read different data, each for GPUs that train on `gpu_rate`
// tokens per second together, need more than can be expected of `threads` that tokenise together,
// `thread_rate` tokens per second each. Pure.
std::optional<std::string> text_rate_advice(double thread_rate, double gpu_rate, int64_t ranks,
                                            int64_t threads);

}  // namespace hyperion::trainer
