#include "trainer/data/loader_state.h"

#include <charconv>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace hyperion::trainer {

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

LoaderState LoaderState::from_json(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) throw_data("data loader state: is not a JSON object: load another checkpoint");
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned())
      throw_data("data loader state: {} is missing or no whole number: load another checkpoint", key);
    return found->get<uint64_t>();
  };
  if (const uint64_t version = number("version"); version != 1)
    throw_data("data loader state: version {}, expected 1: it was written by another Hyperion", version);
  LoaderState state;
  state.position = {number("epoch"), number("file"), number("document"), number("token_offset")};
  state.sequence = number("sequence");
  state.seed = number("seed");
  const auto shuffle = json.find("shuffle");
  const auto fingerprint = json.find("fingerprint");
  if (shuffle == json.end() || !shuffle->is_boolean() || fingerprint == json.end() ||
      !fingerprint->is_string())
    throw_data(
        "data loader state: shuffle or fingerprint is missing or of another type: load another checkpoint");
  state.shuffle = shuffle->get<bool>();
  const auto& digits = fingerprint->get_ref<const std::string&>();
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), state.fingerprint, 16);
  if (error != std::errc() || end != digits.data() + digits.size())
    throw_data("data loader state: fingerprint '{}' is no hexadecimal number: load another checkpoint",
               digits);
  return state;
}

}  // namespace hyperion::trainer
