#include "tests/simulated_gpu/nccl_transfers.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace simulated_gpu {
namespace {

struct InFlight {
  const Message& message;
  size_t moved = 0, pieces = 0;
  bool done = false;
};

std::string text_of(const Message& message) {
  return (message.sends ? "send of " : "receive of ") + message.what + (message.sends ? " to" : " from") +
         " rank " + std::to_string(message.peer);
}

// Moves one piece. Whether there was one to be moved.
bool advance(const ncclComm& comm, InFlight& in_flight) {
  const Message& message = in_flight.message;
  if (message.sends) {
    Channel& channel = comm.channel(comm.rank, message.peer);
    if (channel.read != channel.written) return false;
    if (in_flight.pieces > 0 && in_flight.moved == message.bytes) {
      in_flight.done = true;
      return true;
    }
    channel.length = std::min(kPiece, message.bytes - in_flight.moved);
    std::snprintf(channel.what, sizeof channel.what, "%s", message.what.c_str());
    std::memcpy(channel.piece, message.from + in_flight.moved, channel.length);
    in_flight.moved += channel.length;
    ++in_flight.pieces;
    ++channel.written;
    return true;
  }
  Channel& channel = comm.channel(message.peer, comm.rank);
  if (channel.read == channel.written) return false;
  if (message.what != channel.what)
    comm.stop_all("ranks make different calls: rank " + std::to_string(comm.rank) + " " + text_of(message) +
                  ", rank " + std::to_string(message.peer) + " send of " + channel.what + " to rank " +
                  std::to_string(comm.rank));
  std::memcpy(message.to + in_flight.moved, channel.piece, channel.length);
  in_flight.moved += channel.length;
  in_flight.done = in_flight.moved == message.bytes;
  // Before the sender can go on, and look at what this rank still waits for.
  if (in_flight.done) --comm.shared->members[comm.rank].receives[message.peer];
  ++channel.read;
  return true;
}

// What the peer is in, if that can never end before this message does: empty where it may.
std::string call_that_waits(const ncclComm& comm, const Message& message) {
  const Member& own = comm.shared->members[comm.rank];
  const Member& peer = comm.shared->members[message.peer];
  // A collective that this rank has not come to waits for it, and its calls run one after the other.
  if (peer.collectives > own.collectives) return peer.call;
  const uint32_t launch = peer.launches;
  if (launch % 2 == 0) return "";
  const int sends = peer.sends[comm.rank], receives = peer.receives[comm.rank];
  const bool answers = message.sends ? receives > 0 : sends > 0;
  // A send that this rank has read to its end is done, whether the peer has seen it or not.
  const Channel& from_peer = comm.channel(message.peer, comm.rank);
  const bool unread = from_peer.written != from_peer.read;
  const bool waits = (sends > 0 && unread && own.receives[message.peer] == 0) ||
                     (receives > 0 && own.sends[message.peer] == 0);
  if (answers || !waits || peer.launches != launch) return "";
  return std::string(sends > 0 ? "send to" : "receive from") + " rank " + std::to_string(comm.rank);
}

// Copies what this rank sends itself: its first send to its first receive, and so on.
void copy_own(const ncclComm& comm, const std::vector<Message>& messages) {
  std::vector<const Message*> sends, receives;
  for (const Message& message : messages)
    if (message.peer == comm.rank) (message.sends ? sends : receives).push_back(&message);
  bool together = sends.size() == receives.size();
  for (size_t i = 0; together && i < sends.size(); ++i) {
    together = sends[i]->what == receives[i]->what;
    if (together) std::memcpy(receives[i]->to, sends[i]->from, sends[i]->bytes);
  }
  if (!together) comm.stop_all("sends and receives of a rank to itself do not go together");
}

}  // namespace

void run_messages(const ncclComm& comm, const std::vector<Message>& messages) {
  copy_own(comm, messages);
  Member& own = comm.shared->members[comm.rank];
  std::vector<InFlight> all;
  for (const Message& message : messages) {
    if (message.peer == comm.rank) continue;
    all.push_back({message});
    ++(message.sends ? own.sends : own.receives)[message.peer];
  }
  ++own.launches;
  size_t left = all.size();
  const auto step = [&](InFlight& one) {
    const bool moved = advance(comm, one);
    if (!one.done) return moved;
    if (one.message.sends) --own.sends[one.message.peer];
    --left;
    return true;
  };
  auto begin = std::chrono::steady_clock::now();
  while (left > 0 && !comm.aborted) {
    bool moved = false;
    std::vector<InFlight*> blocked;  // the first of its pair and direction
    for (InFlight& one : all) {
      const bool behind_another = std::ranges::any_of(blocked, [&](const InFlight* before) {
        return before->message.sends == one.message.sends && before->message.peer == one.message.peer;
      });
      if (one.done || behind_another) continue;
      moved = step(one) || moved;
      if (!one.done) blocked.push_back(&one);
    }
    if (moved) {
      begin = std::chrono::steady_clock::now();
      continue;
    }
    for (InFlight* one : blocked) {
      const std::string other = call_that_waits(comm, one->message);
      // The peer may have done its part before it went on.
      if (other.empty() || step(*one)) continue;
      comm.stop_all("ranks make different calls: rank " + std::to_string(comm.rank) + " " +
                    text_of(one->message) + ", rank " + std::to_string(one->message.peer) + " " + other);
    }
    if (left > 0) comm.wait(begin);
  }
  ++own.launches;
}

}  // namespace simulated_gpu
