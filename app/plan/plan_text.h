// Prints plans as a table, as JSON, and one plan in full.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "app/plan/mesh_search.h"

namespace hyperion::app {

inline constexpr double kGib = 1 << 30;

// The facts of the job that all plans share.
struct PlanFacts {
  std::string model;  // "llama3 8B, 8,030,261,248 parameters"
  double flops_per_token = 0;
  double state_bytes = 0;  // of a checkpoint with optimizer state
  double tokens = 0;       // of the job; 0: not given
};

std::string plan_table(const SearchResult& result, const PlanFacts& facts, const Hardware& hardware,
                       const SearchOptions& options);
// Explains the plan with this index: where memory and time go, what would make it faster, and what is
// uncertain.
std::string explain_plan(const SearchResult& result, size_t index, const PlanFacts& facts,
                         const Hardware& hardware, const models::ModelArgs& model,
                         const config::ResolvedConfig& resolved);
std::string plans_json(const SearchResult& result, const PlanFacts& facts, const Hardware& hardware);

// A part of a step's time that people look for.
struct TimePart {
  const char* name;   // as a column of the table
  const char* title;  // in full
  std::vector<trainer::Family> families;
  double seconds_of(const trainer::StepTime& time) const;
};
const std::vector<TimePart>& time_parts();
// A part of the fullest rank's memory.
struct PeakPart {
  const char *key, *name;  // in JSON, and in texts
  double bytes;
};
std::array<PeakPart, 6> memory_parts(const trainer::PeakMemory& memory);
// Returns "none, async TP, ring, 1F1B": what is searched besides the mesh.
std::string settings_text(const MeshPlan& plan);
std::string three_digits(double value);

// Returns "on H100 SXM, 700 W: 52.3 GiB reserved; 9,500 to 11,700 tokens/s per GPU, MFU 62 %" for a
// configuration whose mesh fits.
std::string describe_prediction(const config::JobConfig& config, const models::ModelArgs& model,
                                const Hardware& hardware);

// Returns a card of scripts/cards.json by its name, or of a file: FILE.json if it has one card, or
// FILE.json:NAME. Throws Error(kUsage).
trainer::CardRange known_card(const std::string& named);

// Returns the interval of checkpoints by Young and Daly for a job of so many GPUs, in seconds, and the time
// between failures that it assumes.
struct SaveInterval {
  double seconds = 0, between_failures = 0, save_seconds = 0;
};
SaveInterval save_interval(double state_bytes, int64_t gpus, int gpus_per_node);

}  // namespace hyperion::app
