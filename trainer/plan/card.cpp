#include "trainer/plan/card.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace hyperion::trainer {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;

// The constants in TFLOP/s, which "flops" of a card that is like another one scales.
constexpr std::pair<const char*, Rate> kFlops[] = {{"bf16", Rate::kBf16},
                                                   {"fp32", Rate::kFp32},
                                                   {"cudnn_forward", Rate::kCudnnForward},
                                                   {"cudnn_backward", Rate::kCudnnBackward},
                                                   {"flash_forward", Rate::kFlashForward},
                                                   {"flash_backward", Rate::kFlashBackward},
                                                   {"flash_192_forward", Rate::kWideFlashForward},
                                                   {"flash_192_backward", Rate::kWideFlashBackward},
                                                   {"efficient_forward", Rate::kEfficientForward},
                                                   {"efficient_backward", Rate::kEfficientBackward}};
// A higher value of these makes a step slower.
constexpr const char* kCosts[] = {"launch", "link_share", "overhead"};
constexpr const char* kOthers[] = {"grouped",     "fp8",           "fp8_slow", "copy",
                                   "plain_share", "cast_share",    "launch",   "link",
                                   "link_share",  "network_share", "overhead", "peak"};

bool is_constant(const std::string& name) {
  return name == "flops" || std::ranges::any_of(kOthers, [&](const char* one) { return name == one; }) ||
         std::ranges::any_of(kFlops, [&](const auto& one) { return name == one.first; });
}

Card make_card(const std::function<double(const char*)>& value) {
  Card card;
  const auto set = [&](Rate rate, double flops) { card.flops[static_cast<size_t>(rate)] = flops; };
  for (const auto& [name, rate] : kFlops) set(rate, value(name) * kTera);
  set(Rate::kGrouped, card.rate(Rate::kBf16) * value("grouped"));
  set(Rate::kFp8, card.rate(Rate::kBf16) * value("fp8"));
  set(Rate::kFp8Slow, card.rate(Rate::kFp8) * value("fp8_slow"));
  const double copy = value("copy") * kGiga;
  card.memory = copy * value("plain_share");
  card.casts = copy * value("cast_share");
  card.launch = value("launch") * kMicro;
  card.link = value("link") * kGiga;
  card.link_share = value("link_share");
  card.network_share = value("network_share");
  card.overhead = value("overhead");
  card.peak = value("peak") * kTera;
  return card;
}

}  // namespace

Cards::Cards(const std::filesystem::path& file) : file_(file) {
  const auto refuse = [&](const std::string& where, const std::string& why) {
    throw_config("cards of GPUs in {}{}: {}", file.string(), where, why);
  };
  try {
    const nlohmann::json json = parse_json(read_file(file), file.string());
    const JsonNode root(json, file.string());
    for (const auto& [key, value] : root.object().items()) {
      const JsonNode node(value, key);
      Entry entry;
      entry.name = node["name"].text();
      if (!node["like"].is_null()) entry.like = node["like"].text();
      if (!node["memory_gib"].is_null()) entry.memory_gib = node["memory_gib"].positive_number();
      for (const auto& [name, range] : node["constants"].object().items()) {
        const JsonNode constant(range, name);
        const double low = constant["low"].positive_number(), high = constant["high"].positive_number();
        const std::string where = fmt::format(", card \"{}\", \"{}\"", key, name);
        if (!is_constant(name)) refuse(where, "there is no such constant");
        if (low > high) refuse(where, fmt::format("{} to {} is no range", low, high));
        entry.constants[name] = {low, high};
      }
      entries_[key] = std::move(entry);
    }
  } catch (const Error& error) {
    if (error.code() == ExitCode::kUsage) throw;
    refuse("", error.what());
  }
}

std::vector<std::string> Cards::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

const Cards::Entry& Cards::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw_config("there is no card \"{}\" in {}; there are {}", name, file_.string(),
                 fmt::join(names(), ", "));
  return found->second;
}

std::map<std::string, std::pair<double, double>> Cards::constants_of(const std::string& name,
                                                                     int depth) const {
  const Entry& own = entry(name);
  if (own.like.empty()) return own.constants;
  if (depth > 8) throw_config("card \"{}\" in {}: its \"like\" leads back to it", name, file_.string());
  auto constants = constants_of(own.like, depth + 1);
  if (const auto factor = own.constants.find("flops"); factor != own.constants.end())
    for (const auto& [flops, rate] : kFlops)
      if (const auto scaled = constants.find(flops); scaled != constants.end()) {
        scaled->second.first *= factor->second.first;
        scaled->second.second *= factor->second.second;
      }
  for (const auto& [constant, range] : own.constants) constants[constant] = range;
  return constants;
}

CardRange Cards::find(const std::string& name) const {
  std::string key = name;
  if (!entries_.contains(name))  // "h100": the card of that name that no other one describes
    for (const auto& [other, entry] : entries_)
      if (other.starts_with(name) && (key == name || entry.like.empty())) key = other;
  const Entry& own = entry(key);
  const auto constants = constants_of(key, 0);
  enum class End { kSlow, kMiddle, kFast };
  const auto at = [&](End end) {
    return make_card([&](const char* constant) {
      const auto range = constants.find(constant);
      if (range == constants.end())
        throw_config("card \"{}\" in {} does not have the constant \"{}\"", key, file_.string(), constant);
      const auto [low, high] = range->second;
      if (end == End::kMiddle) return (low + high) / 2;
      const bool cost =
          std::ranges::any_of(kCosts, [&](const char* one) { return std::string_view(constant) == one; });
      return (end == End::kSlow) == cost ? high : low;
    });
  };
  double memory = own.memory_gib;  // constants_of() has found that the chain ends
  for (const Entry* next = &own; memory == 0 && !next->like.empty(); memory = next->memory_gib)
    next = &entry(next->like);
  if (memory == 0) throw_config("card \"{}\" in {} does not have \"memory_gib\"", key, file_.string());
  return {.name = own.name,
          .memory_bytes = memory * (1 << 30),
          .slow = at(End::kSlow),
          .middle = at(End::kMiddle),
          .fast = at(End::kFast)};
}

}  // namespace hyperion::trainer
