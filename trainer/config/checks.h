// The base class of the checks in validate.cpp and validate_experts.cpp.
#pragma once

#include <string>

#include "trainer/config/validate.h"

namespace hyperion::config {

// Checks of one configuration add problems, each under the key to change.
class ChecksOfConfig {
 public:
  ChecksOfConfig(const ResolvedConfig& resolved, const RunContext& run, Problems& problems)
      : resolved_(resolved), config_(resolved.config), run_(run), problems_(problems) {}

 protected:
  void refuse(const std::string& key, const std::string& text) { problems_.add(resolved_, key, text); }
  void refuse_if(bool broken, const std::string& key, const std::string& text) {
    if (broken) refuse(key, text);
  }

  const ResolvedConfig& resolved_;
  const JobConfig& config_;
  const RunContext& run_;
  Problems& problems_;
};

}  // namespace hyperion::config
