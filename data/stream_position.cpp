#include "data/stream_position.h"

#include <tuple>

#include "base/error.h"
#include "base/json.h"

namespace hyperion::data {

void StreamPosition::move_to(const DrawnDocument& drawn, uint64_t slot_count) {
  if (draws > 0 && drawn.epoch == epoch && drawn.draws == draws) return;
  if (drawn.epoch != epoch || slots.empty())
    slots.assign(slot_count, {});
  else if (draws > 0)
    ++slots[slot].document;
  epoch = drawn.epoch;
  draws = drawn.draws;
  slot = drawn.slot;
  slots[slot] = drawn.at;
  token = 0;
}

nlohmann::ordered_json StreamPosition::to_json() const {
  auto list = nlohmann::ordered_json::array();
  for (const SlotPosition& at : slots) list.push_back({at.part, at.block, at.document});
  return {{"epoch", epoch}, {"draws", draws}, {"slot", slot}, {"token_offset", token}, {"slots", list}};
}

StreamPosition StreamPosition::from_json(const JsonNode& node) {
  StreamPosition position;
  std::tie(position.epoch, position.draws, position.token) =
      std::tuple(node["epoch"].count(), node["draws"].count(), node["token_offset"].count());
  node["slots"].each([&](const JsonNode& slot) {
    std::vector<uint64_t> numbers;
    slot.each([&](const JsonNode& number) { numbers.push_back(number.count()); });
    if (numbers.size() != 3) slot.refuse("3 numbers");
    position.slots.push_back({numbers[0], numbers[1], numbers[2]});
  });
  if (position.draws > 0 || !position.slots.empty()) {
    if (position.slots.empty()) node["slots"].refuse("a slot for the document that was drawn");
    position.slot = node["slot"].count(0, position.slots.size() - 1);
  }
  return position;
}

StreamPosition StreamPosition::from_json_version_1(const JsonNode& node) {
  return {.epoch = node["epoch"].count(),
          .draws = 1,
          .slot = 0,
          .token = node["token_offset"].count(),
          .slots = {{node["file"].count(), 0, node["document"].count()}}};
}

}  // namespace hyperion::data
