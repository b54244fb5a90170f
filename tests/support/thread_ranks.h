// Several ranks of a job as threads of one test.
#pragma once

#include <barrier>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "base/collective.h"
#include "base/error.h"

namespace hyperion::test {

// Runs body(coordinator) on `size` threads, each with its own rank, and throws the error of the first rank
// that failed. A rank that ends with an error takes part in no more exchanges: those of the others then throw
// Error(kCommunication), as when a process is lost.
class ThreadRanks {
 public:
  template <typename Body>
  static void run(int size, const Body& body) {
    ThreadRanks ranks(size);
    std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        Member member(ranks, rank);
        try {
          body(static_cast<Coordinator&>(member));
        } catch (...) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
        }
        ranks.texts_[static_cast<size_t>(rank)] = kGone;
        ranks.barrier_.arrive_and_drop();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }

 private:
  static constexpr const char* kGone = "\1gone";

  class Member : public Coordinator {
   public:
    Member(ThreadRanks& ranks, int rank) : ranks_(ranks), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(ranks_.texts_.size()); }
    std::vector<std::string> gather(const std::string& text) override {
      std::vector<std::string> all = exchange(text);
      return rank_ == 0 ? all : std::vector<std::string>();
    }
    std::string broadcast(const std::string& text) override { return exchange(text).front(); }

   private:
    std::vector<std::string> exchange(const std::string& text) {
      ranks_.texts_[static_cast<size_t>(rank_)] = text;
      ranks_.barrier_.arrive_and_wait();
      std::vector<std::string> all = ranks_.texts_;
      ranks_.barrier_.arrive_and_wait();  // everybody has read before anybody writes again
      for (size_t rank = 0; rank < all.size(); ++rank)
        if (all[rank] == kGone) throw_comm("rank {} is gone", rank);
      return all;
    }

    ThreadRanks& ranks_;
    int rank_;
  };

  explicit ThreadRanks(int size) : texts_(static_cast<size_t>(size)), barrier_(size) {}
  std::vector<std::string> texts_;
  std::barrier<> barrier_;
};

// Returns when every rank has called it.
inline void wait_for_all(Coordinator& ranks) {
  ranks.gather("");
  ranks.broadcast("");
}

}  // namespace hyperion::test
