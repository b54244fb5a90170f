// Connections over which the ranks of a job notice each other's end: among all ranks of a host, and from the
// first rank of each host to rank 0. A connection ends with its process, however that ends, at once and
// without a request; a host without power or network is noticed when it does not confirm for kSilence.
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
  static constexpr std::chrono::seconds kSilence{60};  // more than what an overloaded switch or host takes

  // Collective. `silence_is_loss`: also a host that does not confirm for kSilence, or whose connection is
  // reset, as after an outage of the network, is lost; else only the end of its process counts. Ranks that
  // cannot be connected are left out, with a warning. Throws Error(kCommunication) naming a rank that does
  // not get here within `timeout`.
  RankLinks(c10d::Store& store, const Environment& environment, std::chrono::milliseconds timeout,
            bool silence_is_loss = true);

  // Takes what has come and passes it on: what is of this host to the other hosts, and what is of another one
  // to this host and, on rank 0, to the rest. Does not wait. Returns all ranks so far whose processes have
  // ended without a word, or where there are none, those that have said that they fail.
  LostRanks poll();
  // To the others: how this rank ends. The end of its process is no loss then.
  enum class End { kDone, kFailed };
  void send(End end);

  // Whether there is, or was, a link to another rank.
  bool connected() const { return !links_.empty() || !ended_.empty() || !failed_.empty(); }
  // Whether what happens on other hosts reaches ranks through this one alone.
  bool relays() const { return relays_; }

 private:
  struct Link {
    Descriptor socket;
    bool same_host = false;
    int rank = -1;          // at the other end; -1: has not said
    std::string unread{};   // the beginning of a line
    bool has_left = false;  // it has said that it fails or is done
    bool broken = false;    // it has ended, but the process at the other end may live
  };
  void connect_ranks_of_host(c10d::Store& store, const Environment& environment,
                             std::chrono::milliseconds timeout);
  void listen_for_hosts(c10d::Store& store, const Environment& environment);
  void connect_to_rank_0(const std::string& address, const Environment& environment,
                         std::chrono::milliseconds timeout);
  void accept_from(const Descriptor& listener, bool same_host);
  bool read(Link& link);  // whether the connection has ended
  bool take_line(Link& link, const std::string& line);
  void note_end(Link& link);
  void note(const std::set<int>& ranks, bool failed, const Link& from);

  const int own_rank_;
  const bool silence_is_loss_, relays_;
  std::string token_;         // by which a rank knows the job's own connections
  Descriptor host_listener_;  // while ranks of this host are not accepted: closed, it would look like an end
  Descriptor listener_;       // of rank 0, for other hosts
  std::vector<Link> links_;
  std::set<int> ended_, failed_;
};

}  // namespace hyperion::parallel
