#include "parallel/comm/agreement.h"

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/pack.h"

namespace hyperion::parallel {

void require_agreement(Communicator& group, const Fingerprint& fingerprint) {
  if (group.size() == 1) return;
  const std::string packed = pack(fingerprint);
  const auto hash = static_cast<int64_t>(hash_text(packed));
  at::Tensor extremes = at::empty({2}, at::kLong);  // the largest hash, and the complement of the smallest
  auto* extreme = extremes.data_ptr<int64_t>();
  extreme[0] = hash;
  extreme[1] = ~hash;
  group.all_reduce_max(extremes);
  if (extreme[0] == ~extreme[1]) return;
  const std::vector<std::string> texts = group.gather(packed);
  std::vector<DifferingRank> differing;
  for (size_t r = 1; r < texts.size(); ++r) {
    Fingerprint entries = differing_entries(fingerprint, unpack<Fingerprint>(texts[r]));
    if (!entries.empty()) differing.push_back({group.global_ranks()[r], std::move(entries)});
  }
  throw_config("{}", group.broadcast(describe_differences(fingerprint, differing)));
}

}  // namespace hyperion::parallel
