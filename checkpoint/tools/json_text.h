// JSON that the tools print.
#pragma once

#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace hyperion::checkpoint {

using Json = nlohmann::ordered_json;

// Names from files may hold bytes that are no UTF-8: they are replaced.
inline void print_json(const Json& json, std::FILE* out) {
  fmt::print(out, "{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace hyperion::checkpoint
