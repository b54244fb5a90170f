#include "trainer/config/features.h"

#include <algorithm>

namespace hyperion::config {
namespace {

using Config = const JobConfig&;

bool has_converter(Config config, Converter converter) {
  const auto& names = config.model.converters;
  return std::find(names.begin(), names.end(), converter) != names.end();
}

// v0.2.2's flavours of qwen3.
bool has_experts(const std::string& flavor) {
  return flavor == "debugmodel_moe" || flavor == "30B-A3B" || flavor == "235B-A22B";
}

}  // namespace

#define FEATURE(name, key, condition, on, refusal) \
  const Feature name = {key, condition, [](Config c) { return on; }, refusal};
#include "trainer/config/features.def"

const std::vector<const Feature*>& features() {
  static const std::vector<const Feature*> all = {
#define FEATURE(name, ...) &name,
#include "trainer/config/features.def"
  };
  return all;
}

}  // namespace hyperion::config
