#include "models/description.h"

#include <filesystem>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.h"
#include "base/hash.h"
#include "models/flavors/registry.h"
#include "models/transformer.h"

namespace hyperion::models {
namespace {

std::string text_of(const Parameter& parameter) {
  return fmt::format("{} {} {} {:.17g} {:.17g} {:.17g} {}\n", parameter.fqn, parameter.shape,
                     static_cast<int>(parameter.init.kind), parameter.init.std, parameter.init.low,
                     parameter.init.high, parameter.split.value_or(-1));
}

// A flavour as one line: the number of its parameters and a digest of their names, shapes, initial
// distributions and splits in the order in which they are gathered; then its counts.
std::string digest_of(const ModelArgs& args) {
  const std::vector<ParameterPtr> parameters = Transformer(args).parameters();
  std::string text;
  for (const ParameterPtr& parameter : parameters) text += text_of(*parameter);
  const ParameterCounts counts = count_parameters(args);
  return fmt::format("{} {:016x} {} {} {}", parameters.size(), hash_text(text, 0), counts.total,
                     counts.active, counts.embedding);
}

}  // namespace

TEST_CASE("every flavour has the recorded parameters in the recorded order") {
  const std::filesystem::path file =
      std::filesystem::path(HYPERION_SOURCE_DIR) / "tests/goldens/parameters_of_flavors.txt";
  std::string seen;
  for (const std::string& name : model_names())
    for (const std::string& flavor : model_flavors(name))
      if (flavor != kFlavorFromHf)
        seen += fmt::format("{} {} {}\n", name, flavor, digest_of(model_args(name, flavor)));
  CHECK(seen == read_file(file));
}

}  // namespace hyperion::models
