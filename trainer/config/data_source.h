// One table of [[training.sources]] or [[validation.sources]].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hyperion::config {

struct DataSource {
#define SOURCE_KEY(type, key, value, ...) type key = value;
#define TRAINING_SOURCE_KEY(type, key, value, ...) type key = value;
#include "trainer/config/sources.def"
  bool operator==(const DataSource&) const = default;
};
using DataSources = std::vector<DataSource>;

// Calls f(key, member) for each key of a table.
template <typename F>
void for_each_key(const DataSource& source, F&& f) {
#define SOURCE_KEY(type, key, ...) f(#key, source.key);
#define TRAINING_SOURCE_KEY(type, key, ...) f(#key, source.key);
#include "trainer/config/sources.def"
}

// Returns `name`, or the last part of the path that has no wildcard, without the endings of data files; "" if
// there is none. Letters other than those of a name become '_'.
std::string name_of(const DataSource& source);

}  // namespace hyperion::config
