#include "data/loader_state.h"

#include <charconv>

#include "base/error.h"
#include "base/json.h"

namespace hyperion::data {

std::string LoaderState::to_json() const {
  return nlohmann::ordered_json{{"version", 1},
                                {"epoch", position.epoch},
                                {"file", position.file},
                                {"document", position.document},
                                {"token_offset", position.token},
                                {"sequence", sequence},
                                {"seed", seed},
                                {"shuffle", shuffle},
                                {"fingerprint", fmt::format("{:016x}", fingerprint)}}
      .dump();
}

LoaderState LoaderState::from_json(std::string_view text) try {
  const auto json = parse_json(text, "data loader state", /*max_depth=*/2);
  const JsonNode node(json, "data loader state");
  if (const uint64_t version = node["version"].count(); version != 1)
    throw_data("data loader state: version {}, expected 1: it was written by another Hyperion", version);
  LoaderState state;
  state.position = {node["epoch"].count(), node["file"].count(), node["document"].count(),
                    node["token_offset"].count()};
  state.sequence = node["sequence"].count();
  state.seed = node["seed"].count();
  state.shuffle = node["shuffle"].flag();
  const std::string& digits = node["fingerprint"].text();
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), state.fingerprint, 16);
  if (error != std::errc() || end != digits.data() + digits.size())
    throw_data("data loader state: fingerprint '{}' is no hexadecimal number", digits);
  return state;
} catch (const Error& error) {
  throw_data("{}: load another checkpoint", error.what());
}

}  // namespace hyperion::data
