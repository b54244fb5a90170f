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

// TextRate compares the tokens per second that a node needs with those that it can tokenise.
struct TextRate {
  double thread_rate = 0;  // tokens per second of one tokenizer thread
  double gpu_rate = 0;     // tokens per second of the GPUs that train on the data of one rank
  int64_t ranks = 1;       // that read different data
  int64_t threads = 1;     // that tokenise together

  double available() const { return thread_rate * static_cast<double>(threads); }
  double needed() const { return gpu_rate * static_cast<double>(ranks); }
  // Returns whether the threads suffice, with a margin: they also read and cut batches.
  bool suffices() const;
  // A sentence with both rates, and what to do if they do not suffice.
  std::string describe() const;
};

}  // namespace hyperion::trainer
