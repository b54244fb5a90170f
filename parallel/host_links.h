// What the hosts of a job tell each other about lost ranks. One rank of each host holds a connection to rank
// 0, which passes on what it hears: a connection ends with its process, at once and without anybody asking,
// and a host without power or network is noticed when it does not confirm for kSilence.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/durable.h"
#include "parallel/environment.h"

namespace c10d {
class Store;
}

namespace hyperion::parallel {

class HostLinks {
 public:
  static constexpr std::chrono::seconds kSilence{60};  // more than what an overloaded switch or host takes

  struct Loss {
    std::vector<int> ranks;
    bool failed = false;  // they have said that they failed; otherwise they ended without a word
  };

  // Of rank 0 and the first rank of each other host. A rank that cannot connect says so in its log: then its
  // host is left out. `silence_is_loss`: also a host that does not confirm for kSilence, or whose connection
  // is reset, as after an outage of the network, is a loss; else only the end of its process. Throws
  // Error(kCommunication) when rank 0 does not get here within `timeout`.
  HostLinks(c10d::Store& store, const Environment& environment, std::chrono::milliseconds timeout,
            bool silence_is_loss = true);

  // What came from other hosts since the last call; rank 0 also passes it on. Does not wait.
  std::vector<Loss> news();
  // To the other hosts. Once a rank has told anything, the end of its process is no loss of its own.
  void tell(const Loss& loss);
  void tell_done();

 private:
  struct Link {
    Descriptor socket;
    int rank = -1;          // at the other end; -1: has not said
    std::string unread{};   // the beginning of a line
    bool has_told = false;  // a loss, or that it is done
    bool broken = false;    // it has ended, but the process at the other end may live
  };
  static std::string loss_line(const Loss& loss);
  void listen(c10d::Store& store, const Environment& environment);
  void connect(const std::string& address, const Environment& environment, std::chrono::milliseconds timeout);
  void accept_links();
  // Whether the connection has ended.
  bool read(Link& link);
  std::optional<Loss> take_line(Link& link, const std::string& line);
  void send(const std::string& line, const Link* except = nullptr);

  const int own_rank_;
  const bool silence_is_loss_;
  std::string token_;    // by which rank 0 knows the job's own connections
  Descriptor listener_;  // of rank 0
  std::vector<Link> links_;
};

}  // namespace hyperion::parallel
