// The streams of a simulated GPU: what is put into one runs later, in order, on a thread of its own.
//
// A stream here is as late as CUDA allows one to be, so that code which forgot to wait is seen to. How late
// is chosen by HYPERION_SIMULATED_SCHEDULE:
//   eager   every piece of work has run before the call that enqueued it returns
//   late    work runs when somebody waits for it, or after a while
//   NUMBER  each piece is eager or late, drawn by this seed (default: 1)
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace simulated_gpu {

using Work = std::function<void()>;

class Stream {
 public:
  // The number of the piece, counted from 1.
  uint64_t enqueue(Work work);
  // The number of the newest piece.
  uint64_t newest();
  bool done(uint64_t number);
  // Has everything up to `number` run now, and waits for it.
  void wait(uint64_t number);
  void wait() { wait(newest()); }
  // Drops what has not run, and waits for what does: the process ends.
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  struct Piece {
    Work work;
    Clock::time_point due;
  };

  void run();

  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::deque<Piece> pieces_;
  uint64_t enqueued_ = 0, done_ = 0, wanted_ = 0;
  bool started_ = false, working_ = false, ended_ = false;
};

// Created when first asked for; they live as long as the process.
Stream& stream_of(void* cuda_stream);
void* new_stream();
void wait_for_all_streams();

}  // namespace simulated_gpu
