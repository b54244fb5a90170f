#include "trainer/plan/step_time.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace hyperion::trainer {
namespace {

using parallel::Mesh, parallel::MeshDim;

struct Members {
  double ranks = 1, on_node = 1;  // on that of its nodes with the fewest
};

// The fewest ranks that a group has on a node it is on; the ranks of a group are `stride` apart, and those of
// all groups of a block of ranks x stride follow each other.
int fewest_on_node(int ranks, int stride, const Mesh& mesh, int node) {
  const int block = ranks * stride, world = mesh.world_size();
  if (stride >= node) return 1;
  if (node % block == 0 || world <= node) return ranks;
  if (block % node == 0 && node % stride == 0) return node / stride;
  int fewest = ranks;
  for (int begin = 0; begin < std::min(world, block * node); begin += block)
    for (int offset = 0; offset < stride; ++offset) {
      const auto node_of = [&](int member) { return (begin + offset + member * stride) / node; };
      for (int first = 0, next = 0; first < ranks; first = next) {
        while (next < ranks && node_of(next) == node_of(first)) ++next;
        fewest = std::min(fewest, next - first);
      }
    }
  return fewest;
}

// The ranks of a group, and how many of them share a node.
Members members(MeshDim dim, const Links& links) {
  const Mesh& mesh = links.mesh;
  const int tensor = mesh.degree(MeshDim::kTp), shards = mesh.degree(MeshDim::kFsdp),
            replicas = mesh.degree(MeshDim::kDpReplicate);
  int stride = 1;  // between neighbours of the group
  switch (dim) {
    case MeshDim::kCp:
    case MeshDim::kFsdp:
      stride = tensor;
      break;
    case MeshDim::kDpReplicate:
      stride = tensor * shards;
      break;
    case MeshDim::kPp:
      stride = tensor * shards * replicas;
      break;
    case MeshDim::kEp:
    case MeshDim::kEpInNode:
      stride = mesh.degree(MeshDim::kEtp);
      break;
    case MeshDim::kEpNodes:
      stride = links.cluster.gpus_per_node;
      break;
    case MeshDim::kEfsdp:
      stride = mesh.degree(MeshDim::kEp) * mesh.degree(MeshDim::kEtp);
      break;
    default:
      break;
  }
  const int ranks = mesh.degree(dim);
  return {static_cast<double>(ranks),
          static_cast<double>(fewest_on_node(ranks, stride, mesh, links.cluster.gpus_per_node))};
}

double adapter(const Links& links) {
  return links.card.network_share * links.cluster.network;
}

// From each rank of the group to the next one, which for some of them is on another node.
double hop_rate(MeshDim group, const Links& links) {
  const Members found = members(group, links);
  return found.ranks == found.on_node ? links.card.link : adapter(links);
}

// Each rank sends as much to every other one: to those of its node over the links, at the same time to all
// others over its own adapter.
double exchange_seconds(double sent, MeshDim group, const Links& links) {
  const Members found = members(group, links);
  if (found.ranks == 1) return 0;
  const double each = sent / (found.ranks - 1);
  return std::max(each * (found.on_node - 1) / links.card.link,
                  each * (found.ranks - found.on_node) / adapter(links));
}

double seconds_of(const Kernels& kernels, const Card& card) {
  const double moved = kernels.bytes / (kernels.casts_to_float8 ? card.casts : card.memory);
  return std::max(moved, kernels.flops / card.rate(kernels.rate)) + card.launch * kernels.launches;
}

// Adds what the collectives take of a step that computes for `computing` seconds. Of the units' gathers and
// reductions the first and the last of the widest unit overlap nothing. What overlaps takes multiprocessors
// from what it overlaps, and what lasts longer than the step computes is waited for.
void add_collectives(const StepWork& work, double computing, const Links& links, StepTime& time) {
  double tensor = 0, units = 0, waited_for = 0, longest = 0;  // tensor, units: those that overlap
  for (const Collectives& collectives : work.collectives) {
    const double one = collectives.sent / ring_rate(collectives.group, links), all = collectives.times * one;
    if (!collectives.overlaps) {
      waited_for += all;
    } else if (collectives.group == MeshDim::kTp) {
      tensor += all;
    } else {
      units += all;
      longest = std::max(longest, one);
    }
  }
  const double exposed = std::min(units, 2 * longest), hidden = tensor + units - exposed;
  const double share =
      hidden > 0 ? std::max(links.card.link_share, (hidden - computing - waited_for) / hidden) : 0;
  time.of(Family::kShardExchange) = exposed + share * (units - exposed);
  time.of(Family::kTensorExchange) = waited_for + share * tensor;
}

struct Waits {
  double exposed = 0, hidden = 0;
};

// `forward`, `backward`: attention of one block and microbatch.
Waits sequence_waits(const SequenceExchange& exchange, double forward, double backward, const Links& links) {
  const double rate = exchange.ring ? hop_rate(MeshDim::kCp, links) : ring_rate(MeshDim::kCp, links);
  const double keys = exchange.keys / rate, gradients = exchange.gradients / rate;
  double waits = 0, all = 0;
  if (exchange.ring) {
    // Each hop travels under the step before, gradients one step behind; their last hop under nothing.
    const double hops = exchange.exchanges, ranks = hops + 1;
    forward /= ranks;
    backward /= ranks;
    waits = hops * std::max(0.0, keys - forward) + std::max(0.0, keys - backward) +
            (hops - 1) * std::max(0.0, keys + gradients - backward) + gradients;
    all = hops * (2 * keys + gradients);
  } else {
    // The second part's keys travel under the attention of the first part's queries. Backward begins with the
    // second part, and so with all keys.
    const double later = exchange.exchanges - 1;
    waits = keys + later * std::max(0.0, keys - forward * exchange.forward_share) +
            exchange.exchanges * keys + later * std::max(0.0, gradients - backward * exchange.forward_share) +
            gradients;
    all = exchange.exchanges * (2 * keys + gradients);
  }
  return {exchange.runs * waits, exchange.runs * (all - waits)};
}

// Matrices go to their owners and back in rounds. Between the ranks of a shard group a round travels under
// the iterations of another, but for the first one there and the last one back; between tensor parallel ranks
// nothing hides it.
double matrix_seconds(const MuonWork& muon, double iterating, const Links& links) {
  double exposed = 0, hidden = 0;
  for (const MuonExchange& exchange : muon.exchanges) {
    const bool of_shards = exchange.group == MeshDim::kFsdp || exchange.group == MeshDim::kEfsdp;
    const double there = exchange_seconds(exchange.sent, exchange.group, links),
                 back = exchange_seconds(exchange.received, exchange.group, links),
                 ends = (there + back) / (of_shards ? muon.rounds : 1);
    exposed += ends;
    hidden += there + back - ends;
  }
  return exposed + std::max(links.card.link_share * hidden, hidden - iterating);
}

// The seconds of one pass for which the GPU waits for rows on their way to experts and back, `travelling`
// seconds each way in equal slices. The slices leave one after another, and the results of each as soon as
// the experts have computed it, in `computing` seconds for all.
double pass_waits(double travelling, double computing, int64_t slices) {
  const double travels = travelling / static_cast<double>(slices),
               computes = computing / static_cast<double>(slices);
  double arrived = 0, computed = 0, returned = travelling;
  for (int64_t slice = 0; slice < slices; ++slice) {
    arrived += travels;
    computed = std::max(computed, arrived) + computes;
    returned = std::max(returned, computed) + travels;
  }
  return returned - computing;
}

// experts: the seconds of experts' products. Where tokens travel once per node, the exchange inside a node is
// waited for, and rows of another slice travel between nodes meanwhile.
Waits dispatch_waits(const ExpertDispatch& dispatch, double experts, const Links& links) {
  Waits waits;
  if (dispatch.sent.empty()) return waits;
  const double passes = dispatch.forward_passes + dispatch.backward_passes;
  const auto seconds = [&](size_t level) {
    const auto& [group, sent] = dispatch.sent[level];
    return exchange_seconds(sent, group, links) / passes;
  };
  const double way = seconds(0) / 2, inside = dispatch.sent.size() > 1 ? seconds(1) : 0;
  const double of_block = experts / dispatch.backward_passes;
  const auto exposed_in = [&](double share) {
    return pass_waits(way, inside + share * of_block, dispatch.slices);
  };
  const double exposed = dispatch.forward_passes * exposed_in(dispatch.forward_share) +
                         dispatch.backward_passes * exposed_in(dispatch.backward_share);
  return {exposed + passes * inside, passes * 2 * way - exposed};
}

bool is_backward(Rate rate) {
  return rate == Rate::kCudnnBackward || rate == Rate::kFlashBackward || rate == Rate::kWideFlashBackward ||
         rate == Rate::kEfficientBackward;
}

}  // namespace

double StepTime::total() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

double ring_rate(MeshDim group, const Links& links) {
  const Members found = members(group, links);
  if (found.ranks == found.on_node) return links.card.link;
  const double between = found.on_node * adapter(links);
  return found.on_node == 1 ? between : std::min(links.card.link, between);
}

StepTime step_time(const StepWork& work, const Links& links, const PipelineTimes& pipeline) {
  const Card& card = links.card;
  StepTime time;
  double forward = 0, backward = 0;
  for (const Kernels& kernels : work.kernels) {
    const double seconds = kernels.times * seconds_of(kernels, card);
    time.of(kernels.family) += seconds;
    if (kernels.family == Family::kAttention && kernels.flops > 0)
      (is_backward(kernels.rate) ? backward : forward) += seconds;
  }
  const double iterating = time.of(Family::kMuonProducts);
  add_collectives(work, time.total() - iterating, links, time);
  if (const auto& exchange = work.sequence_exchange) {
    const Waits waits = sequence_waits(*exchange, forward / exchange->runs, backward / exchange->runs, links);
    time.of(Family::kSequenceExchange) = waits.exposed + card.link_share * waits.hidden;
  }
  const Waits rows = dispatch_waits(work.dispatch, time.of(Family::kExpertProducts), links);
  time.of(Family::kDispatch) = rows.exposed + card.link_share * rows.hidden;
  if (pipeline) {
    const double computing = time.total() - time.of(Family::kOptimizer) - iterating;
    const double transfer = work.transfer / hop_rate(MeshDim::kPp, links);
    const double units = pipeline(0).units, unit = computing / units;
    const PipelineSeconds seconds = pipeline(transfer / unit);
    time.of(Family::kBubble) = seconds.bubble * unit;
    time.of(Family::kTransfers) = seconds.transfers * unit;
  }
  if (work.muon) time.of(Family::kMuonExchange) = matrix_seconds(*work.muon, iterating, links);
  time.of(Family::kNotModelled) = (card.overhead - 1) * time.total();
  return time;
}

}  // namespace hyperion::trainer
