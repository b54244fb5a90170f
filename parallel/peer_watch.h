// Knows which ranks have been lost, and ends this one then where nothing else does it in time. That is so
// over NCCL: a collective that a lost rank never joins runs on the device, the host waits for it in some
// call, and NCCL's watchdog gives up when the timeout has passed, if it knows the collective at all. Over
// Gloo and shared memory an operation fails by itself, and the watch says by whom.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/durable.h"
#include "parallel/environment.h"
#include "parallel/host_links.h"

namespace c10d {
class Store;
}

namespace hyperion::parallel {

// Each rank holds a lock on a memory file of its own, which the kernel releases when the process ends,
// however it ends; a rank that ends in order marks the file first. Every rank looks at the files of the other
// ranks of the host: a thread where it is to end the rank, else when it is asked. The first rank of a host
// sends what it finds to the other hosts (HostLinks), and writes what they send into its file.
class PeerWatch {
 public:
  // How a rank ends that can still say so. The peers of a rank that is done go on without it.
  enum class End : char { kDone = 'd', kFailed = 'f' };

  // Collective. `ends_process`: this rank is ended when another one has been lost, but not while it may be
  // asking the others by whom an operation has failed, who answer within `response_timeout`
  // (parallel/post_mortem.h). Throws Error(kCommunication) naming a rank that has not come within `timeout`.
  PeerWatch(c10d::Store& store, const Environment& environment, std::chrono::milliseconds timeout,
            std::chrono::milliseconds response_timeout = kPeerResponseTimeout, bool ends_process = true);
  // Leaves: as failed while an exception is on its way.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Tells the peers how this rank ends, and stops watching them. The first call counts.
  void leave(End end);
  // The ranks that have ended without a word; looks for up to `patience` until there is one.
  std::vector<int> lost_ranks(std::chrono::milliseconds patience);
  // Of the watch of this process, if there is one: the peers are told that this rank fails, and watching goes
  // on. For a thread that ends the process by itself.
  static void announce_failure();

 private:
  struct Peer {
    int rank = 0;
    Descriptor file;
  };
  void watch();
  void look_at_peers();
  void set_lost(const HostLinks::Loss& loss, bool tell_hosts);
  [[noreturn]] void end_process();

  const int own_rank_;
  const std::chrono::milliseconds response_timeout_;
  const bool ends_process_;
  Descriptor own_file_;
  std::vector<Peer> peers_;
  std::optional<HostLinks> links_;  // guarded by mutex_
  std::mutex mutex_;                // guards what follows
  std::condition_variable changed_;
  bool left_ = false;
  std::vector<int> lost_;     // in order of their numbers
  bool lost_failed_ = false;  // they have said that they failed; otherwise they ended without a word
  std::chrono::steady_clock::time_point lost_at_;
  std::thread thread_;
};

}  // namespace hyperion::parallel
