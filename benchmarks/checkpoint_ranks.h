// The ranks of a benchmark: processes forked by rank 0, which they are joined to by sockets.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/collective.h"
#include "base/durable.h"
#include "base/error.h"

namespace hyperion::checkpoint {

// Everybody has a socket to rank 0.
class SocketRanks : public Coordinator {
 public:
  SocketRanks(int rank, int size, std::vector<Descriptor> sockets)
      : rank_(rank), size_(size), sockets_(std::move(sockets)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int64_t exchanges() const { return exchanges_; }

  std::vector<std::string> gather(const std::string& text) override {
    ++exchanges_;
    if (rank_ != 0) return send(sockets_[0], text), std::vector<std::string>();
    std::vector<std::string> texts = {text};
    for (int r = 1; r < size_; ++r) texts.push_back(receive(sockets_[r]));
    return texts;
  }
  std::string broadcast(const std::string& text) override {
    ++exchanges_;
    if (rank_ != 0) return receive(sockets_[0]);
    for (int r = 1; r < size_; ++r) send(sockets_[r], text);
    return text;
  }

 private:
  static void send(const Descriptor& socket, const std::string& text) {
    const uint64_t bytes = text.size();
    transfer(socket, const_cast<uint64_t*>(&bytes), sizeof bytes, &::write);
    transfer(socket, const_cast<char*>(text.data()), bytes, &::write);
  }

  static std::string receive(const Descriptor& socket) {
    uint64_t bytes = 0;
    transfer(socket, &bytes, sizeof bytes, &::read);
    std::string text(bytes, '\0');
    transfer(socket, text.data(), bytes, &::read);
    return text;
  }

  template <typename Call>
  static void transfer(const Descriptor& socket, void* data, uint64_t bytes, const Call& call) {
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t n = call(socket.get(), static_cast<char*>(data) + done, bytes - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw_comm("a rank of the benchmark is gone");
      done += static_cast<uint64_t>(n);
    }
  }

  int rank_, size_;
  std::vector<Descriptor> sockets_;  // rank 0: by rank; others: to rank 0
  int64_t exchanges_ = 0;
};

// Runs body(ranks) in `size` processes, this one being rank 0; returns whether all of them succeeded. Call it
// before there are threads.
template <typename Body>
bool run_ranks(int size, const Body& body) {
  std::vector<Descriptor> to_others(1);
  std::vector<pid_t> children;
  const auto guarded = [&](int rank, std::vector<Descriptor> sockets) {
    try {
      SocketRanks ranks(rank, size, std::move(sockets));
      body(ranks);
      return true;
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      return false;
    }
  };
  for (int rank = 1; rank < size; ++rank) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) throw_comm("socketpair failed");
    Descriptor here(pair[0]), there(pair[1]);
    const pid_t child = ::fork();
    if (child < 0) throw_comm("fork failed");
    if (child == 0) {
      to_others.clear();  // so that the end of rank 0 is seen
      here = Descriptor();
      std::vector<Descriptor> sockets;
      sockets.push_back(std::move(there));
      ::_exit(guarded(rank, std::move(sockets)) ? 0 : 1);
    }
    to_others.push_back(std::move(here));
    children.push_back(child);
  }
  bool good = guarded(0, std::move(to_others));
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    good = good && status == 0;
  }
  return good;
}

// Returns when every rank has called it.
inline void wait_for_all(Coordinator& ranks) {
  ranks.gather("");
  ranks.broadcast("");
}

}  // namespace hyperion::checkpoint
