#include "tests/simulated_gpu/stream.h"

#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace simulated_gpu {
namespace {

constexpr std::chrono::milliseconds kWhile{30};

// Empty: now.
std::optional<std::chrono::milliseconds> drawn_delay() {
  static const std::string schedule = [] {
    const char* given = std::getenv("HYPERION_SIMULATED_SCHEDULE");
    return std::string(given == nullptr || *given == '\0' ? "1" : given);
  }();
  if (schedule == "eager") return std::nullopt;
  if (schedule == "late") return kWhile;
  static const uint64_t seed = std::stoull(schedule);
  thread_local std::mt19937_64 random(seed + std::hash<std::thread::id>{}(std::this_thread::get_id()));
  // Runs of both: single late pieces among eager ones would be waited for at once.
  thread_local int left = 0;
  thread_local bool late = false;
  if (left-- <= 0) {
    left = static_cast<int>(random() % 40);
    late = random() % 2 == 0;
  }
  return late ? kWhile : std::chrono::milliseconds(0);
}

std::mutex g_mutex;
std::vector<std::unique_ptr<Stream>>& streams() {
  static auto* const all = new std::vector<std::unique_ptr<Stream>>;
  return *all;
}

std::vector<Stream*> all_streams() {
  const std::lock_guard lock(g_mutex);
  std::vector<Stream*> all;
  for (const auto& stream : streams()) all.push_back(stream.get());
  return all;
}

// Before libtorch's objects go, which work uses.
void end_all() {
  for (Stream* stream : all_streams()) stream->end();
}

}  // namespace

uint64_t Stream::enqueue(Work work) {
  const auto delay = drawn_delay();
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return enqueued_;
    if (!started_) {
      static const int registered [[maybe_unused]] = std::atexit(end_all);
      std::thread([this] { run(); }).detach();
      started_ = true;
    }
    pieces_.push_back({std::move(work), Clock::now() + delay.value_or(std::chrono::milliseconds(0))});
    number = ++enqueued_;
    wake_.notify_one();
  }
  if (!delay) wait(number);
  return number;
}

uint64_t Stream::newest() {
  const std::lock_guard lock(mutex_);
  return enqueued_;
}

bool Stream::done(uint64_t number) {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

void Stream::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  if (number > wanted_) wanted_ = number;
  wake_.notify_one();
  finished_.wait(lock, [&] { return done_ >= number; });
}

void Stream::end() {
  std::unique_lock lock(mutex_);
  ended_ = true;
  pieces_.clear();
  finished_.wait_for(lock, std::chrono::seconds(1),
                     [&] { return !working_; });  // a collective may wait for ever
  done_ = enqueued_;
  finished_.notify_all();
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return !pieces_.empty(); });
    while (!pieces_.empty() && wanted_ <= done_ && Clock::now() < pieces_.front().due) {
      const auto due = pieces_.front().due;
      wake_.wait_until(lock, due);
    }
    if (pieces_.empty()) continue;
    Work work = std::move(pieces_.front().work);
    pieces_.pop_front();
    working_ = true;
    lock.unlock();
    work();
    work = nullptr;  // what it holds goes while nothing is locked
    lock.lock();
    working_ = false;
    ++done_;
    finished_.notify_all();
  }
}

void* new_stream() {
  const std::lock_guard lock(g_mutex);
  streams().push_back(std::make_unique<Stream>());
  return streams().back().get();
}

Stream& stream_of(void* cuda_stream) {
  static Stream* const unnamed = static_cast<Stream*>(new_stream());
  return cuda_stream == nullptr ? *unnamed : *static_cast<Stream*>(cuda_stream);
}

void wait_for_all_streams() {
  for (Stream* stream : all_streams()) stream->wait();
}

}  // namespace simulated_gpu
