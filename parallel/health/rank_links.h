// RankLinks are connections over which ranks notice each other's end: among all ranks of a host, and from
// the first rank of each host to rank 0. A connection closes with its process, however that ends, at once
// and without a request; a host without power or network is noticed if it does not acknowledge for
// kKeepaliveTimeout.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "base/durable.h"
#include "parallel/health/lost_ranks.h"
#include "parallel/job/environment.h"

namespace c10d {
class Store;
}

namespace hyperion::parallel {

class RankLinks {
 public:
  static constexpr std::chrono::seconds kKeepaliveTimeout{
      60};  // longer than an overloaded switch or host needs

  // Collective. With `timeout_is_loss` a host that does not acknowledge for kKeepaliveTimeout, or whose
  // connection is reset, as after a network outage, counts as lost; else only the end of a process does.
  // Ranks that cannot be connected are left out, with a warning. Throws Error(kCommunication) naming a rank
  // that does not get here within `timeout`.
  RankLinks(c10d::Store& store, const Environment& environment, std::chrono::milliseconds timeout,
            bool timeout_is_loss = true);

  // Reads messages and relays them: those of this host to the other hosts, and those of another host to
  // this host and, on rank 0, to the rest. Does not wait. Returns all ranks so far whose processes have
  // ended without a message, or if there are none, the ranks that have reported their failure.
  LostRanks poll();
  // Tells the other ranks how this rank ends. The end of its process then counts as no loss.
  enum class End { kDone, kFailed };
  void send(End end);

  // Returns whether there is, or was, a link to another rank.
  bool connected() const { return !links_.empty() || !ended_.empty() || !failed_.empty(); }
  // Returns whether other ranks hear of other hosts through this rank alone.
  bool relays() const { return relays_; }

 private:
  struct Link {
    Descriptor socket;
    bool same_host = false;
    int rank = -1;          // the peer; -1: not yet known
    std::string unread{};   // beginning of an incomplete line
    bool has_left = false;  // the peer has sent that it failed or is done
    bool broken = false;    // the connection has closed, but the peer's process may live
  };
  void connect_ranks_of_host(c10d::Store& store, const Environment& environment,
                             std::chrono::milliseconds timeout);
  void listen_for_hosts(c10d::Store& store, const Environment& environment);
  void connect_to_rank_0(const std::string& address, const Environment& environment,
                         std::chrono::milliseconds timeout);
  void accept_from(const Descriptor& listener, bool same_host);
  bool read(Link& link);  // returns whether the connection has closed
  bool take_line(Link& link, const std::string& line);
  void note_end(Link& link);
  void note(const std::set<int>& ranks, bool failed, const Link& from);

  const int own_rank_;
  const bool timeout_is_loss_, relays_;
  std::string token_;         // identifies the job's own connections
  Descriptor host_listener_;  // stays open until ranks of this host are accepted: closing looks like an end
  Descriptor listener_;       // rank 0's, for other hosts
  std::vector<Link> links_;
  std::set<int> ended_, failed_;
};

}  // namespace hyperion::parallel
