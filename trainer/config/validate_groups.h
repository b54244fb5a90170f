// The checks of [[optimizer.groups]].
#pragma once

#include <optional>

#include "models/args/model_args.h"
#include "trainer/config/load.h"

namespace hyperion::config {

// Adds problems of the list of groups: values that fp32 cannot hold, names that are equal or none, and, if
// the model is known, patterns that match none of its parameters.
void check_groups(const ResolvedConfig& resolved, const std::optional<models::ModelArgs>& model,
                  Problems& problems);

}  // namespace hyperion::config
