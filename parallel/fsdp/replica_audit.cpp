#include "parallel/fsdp/replica_audit.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/rank_list.h"

namespace hyperion::parallel {
namespace {

constexpr int64_t kWordsAtOnce = int64_t{4} << 20;
constexpr size_t kMaxNamed = 10;

// The constants of splitmix64.
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15, kFirst = 0xbf58476d1ce4e5b9, kSecond = 0x94d049bb133111eb;

// z ^= z >> bits, as if z were unsigned.
void fold(at::Tensor& z, int64_t bits) {
  const int64_t kept = (int64_t{1} << (64 - bits)) - 1;
  z.bitwise_xor_(z.bitwise_right_shift(bits).bitwise_and_(kept));
}

// The bits as integers: as wide as the number of bytes allows, wherever the tensor lies.
at::Tensor words_of(const at::Tensor& tensor) {
  at::Tensor bytes = tensor.view({-1}).view(at::kByte);
  for (const at::ScalarType type : {at::kLong, at::kInt}) {
    const auto width = static_cast<int64_t>(c10::elementSize(type));
    if (bytes.numel() % width != 0) continue;
    if (bytes.storage_offset() % width != 0) bytes = bytes.clone();
    return bytes.view(type);
  }
  return bytes;
}

at::Tensor hash(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return hash_of_bits(tensor);
  return at::full({}, static_cast<int64_t>(hash_bytes(tensor.const_data_ptr(), tensor.nbytes())), at::kLong);
}

// The ranks whose hash is not the one that most have; of equally frequent ones that of the lowest rank
// counts.
std::vector<int> differing_ranks(const std::vector<int64_t>& hashes, const std::vector<int>& global_ranks) {
  std::map<int64_t, int> counts;
  for (const int64_t hash : hashes) ++counts[hash];
  int64_t common = hashes.front();
  for (const int64_t hash : hashes)
    if (counts[hash] > counts[common]) common = hash;
  std::vector<int> ranks;
  for (size_t r = 0; r < hashes.size(); ++r)
    if (hashes[r] != common) ranks.push_back(global_ranks[r]);
  return ranks;
}

// Returns what differs between the tensors that `group` replicates, or an empty text; hashes: int64 [n] on
// the device of the group.
std::string compare(Communicator& group, const std::vector<std::string>& names, const at::Tensor& hashes) {
  const auto count = static_cast<int64_t>(names.size());
  at::Tensor extremes =
      at::cat({hashes, hashes.bitwise_not()});  // the largest, the complement of the smallest
  group.all_reduce_max(extremes);
  extremes = extremes.cpu();
  const auto* extreme = extremes.const_data_ptr<int64_t>();
  std::vector<int64_t> differing;
  for (int64_t i = 0; i < count; ++i)
    if (extreme[i] != ~extreme[count + i]) differing.push_back(i);
  if (differing.empty()) return "";
  at::Tensor all = at::zeros({group.size(), count}, hashes.options());
  all[group.rank()].copy_(hashes);
  group.all_reduce_sum(all);  // which takes host tensors over NCCL too
  all = all.cpu();
  std::string list;
  for (size_t i = 0; i < std::min(differing.size(), kMaxNamed); ++i) {
    std::vector<int64_t> of_ranks;
    for (int64_t r = 0; r < group.size(); ++r)
      of_ranks.push_back(all.const_data_ptr<int64_t>()[r * count + differing[i]]);
    list += fmt::format("\n  {}: rank {} differs", names[static_cast<size_t>(differing[i])],
                        rank_list(differing_ranks(of_ranks, group.global_ranks())));
  }
  if (differing.size() > kMaxNamed) list += fmt::format("\n  and {} more", differing.size() - kMaxNamed);
  return fmt::format("\nover group {} (ranks {}) {} with different bits:{}", group.name(),
                     rank_list(group.global_ranks()), counted(differing.size(), "tensor"), list);
}

}  // namespace

at::Tensor hash_of_bits(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions(at::kLong).device(tensor.device());
  at::Tensor sum = at::zeros({}, options);
  if (tensor.numel() == 0) return sum;
  const at::Tensor words = words_of(tensor);
  const int64_t step = std::min(kWordsAtOnce, words.numel());
  const at::Tensor places = at::arange(1, step + 1, options).mul_(static_cast<int64_t>(kGolden));
  for (int64_t first = 0; first < words.numel(); first += step) {
    const int64_t count = std::min(step, words.numel() - first);
    at::Tensor mixed = words.narrow(0, first, count).to(at::kLong).add(places.narrow(0, 0, count));
    mixed.add_(static_cast<int64_t>(kGolden * static_cast<uint64_t>(first)));
    fold(mixed, 30);
    mixed.mul_(static_cast<int64_t>(kFirst));
    fold(mixed, 27);
    mixed.mul_(static_cast<int64_t>(kSecond));
    fold(mixed, 31);
    sum.add_(mixed.sum());
  }
  return sum;
}

void audit_replicas(const std::vector<ReplicatedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<Communicator*> groups;  // in the order in which they are named first
  for (const ReplicatedTensor& tensor : tensors)
    for (Communicator* group : tensor.groups)
      if (group->size() > 1 && std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  if (groups.empty()) return;
  at::Device device = at::kCPU;
  for (const ReplicatedTensor& tensor : tensors)
    if (!tensor.tensor.is_cpu()) device = tensor.tensor.device();
  std::vector<at::Tensor> hashes(tensors.size());
  std::string problems;  // of all groups: a rank that stopped at the first would leave the others waiting
  for (Communicator* group : groups) {
    std::vector<std::string> names;
    std::vector<at::Tensor> of_group;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (std::ranges::find(tensors[i].groups, group) == tensors[i].groups.end()) continue;
      if (!hashes[i].defined()) hashes[i] = hash(tensors[i].tensor).to(device, /*non_blocking=*/true);
      names.push_back(tensors[i].name);
      of_group.push_back(hashes[i]);
    }
    problems += compare(*group, names, at::stack(of_group));
  }
  if (!problems.empty())
    throw_bug(
        "replicas do not hold equal bits: a sum of gradients is missing, or the memory of a rank is faulty; "
        "the job must not go on from here{}",
        problems);
}

}  // namespace hyperion::parallel
