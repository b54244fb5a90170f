// Enumerates the meshes that a job can have on a number of GPUs, with the settings that memory and speed
// depend on, and orders them by predicted speed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/plan/mesh_plan.h"

namespace hyperion::app {

struct SearchOptions {
  int64_t global_batch = 0;  // sequences of a step; 0 with `configured`: as many as the configuration has
  bool configured = false;   // takes the configuration as it is
  bool keep_mesh = false;    // keeps the configured degrees, and searches the other settings alone
  size_t results = 10;
};

struct SearchResult {
  std::vector<MeshPlan> plans;         // the best of each mesh, the fastest first
  size_t tried = 0, fitting = 0;       // configurations that can run, and of these, those that fit
  std::optional<MeshPlan> smallest{};  // the one that needs the least memory, if none fits
};

// `model` is the configured model. Settings that are not searched (FP8, lengths, optimizer) are those of
// `resolved`. `progress` is called with the number of configurations done and the number of all.
SearchResult search_meshes(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                           const Hardware& hardware, const SearchOptions& options,
                           const std::function<void(size_t done, size_t all)>& progress);

// Returns whether config::check_config() accepts the configuration on these GPUs; `resolved` says where the
// values that it shares with it come from.
bool can_run(const config::JobConfig& config, const config::ResolvedConfig& resolved,
             const models::ModelArgs& model, const Hardware& hardware);

// Returns the bytes of a GPU's memory that a job may use: what the driver, libraries and NCCL take is left
// out.
double usable_memory(const trainer::CardRange& card);

// Returns "TP 8 x PP 2 x FSDP 16 x HSDP 2": the degrees above 1.
std::string describe_mesh(const MeshPlan& plan);

}  // namespace hyperion::app
