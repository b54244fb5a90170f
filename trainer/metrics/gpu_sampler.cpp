#include "trainer/metrics/gpu_sampler.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include <dlfcn.h>

#include "base/log.h"

namespace hyperion::metrics {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr uint64_t kIdle = 0x01;  // nvmlClocksEventReasonGpuIdle
constexpr int kPeriodsUntilOld = 10;

std::atomic<bool> left_behind = false;

// A function of NVML; null where this version has none. All return 0 for success.
template <typename... Arguments>
class Function {
 public:
  Function(void* library, const char* name)
      : call_(reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name))) {}
  explicit operator bool() const { return call_ != nullptr; }
  int operator()(Arguments... arguments) const {
    constexpr int kFunctionNotFound = 13;  // NVML_ERROR_FUNCTION_NOT_FOUND
    return call_ != nullptr ? call_(arguments...) : kFunctionNotFound;
  }

 private:
  int (*call_)(Arguments...);
};

class Nvml {
 public:
  explicit Nvml(void* library)
      : init_(library, "nvmlInit_v2"),
        shutdown_(library, "nvmlShutdown"),
        device_by_bus_id_(library, "nvmlDeviceGetHandleByPciBusId_v2"),
        ecc_errors_(library, "nvmlDeviceGetTotalEccErrors"),
        remapped_rows_(library, "nvmlDeviceGetRemappedRows"),
        reasons_(library, "nvmlDeviceGetCurrentClocksEventReasons"),
        older_reasons_(library, "nvmlDeviceGetCurrentClocksThrottleReasons"),
        clock_(library, "nvmlDeviceGetClockInfo"),
        temperature_(library, "nvmlDeviceGetTemperature"),
        power_(library, "nvmlDeviceGetPowerUsage") {}

  int open(const std::string& bus_id) {
    if (const int code = init_(); code != 0) return code;
    const int code = device_by_bus_id_(bus_id.c_str(), &device_);
    if (code != 0) shutdown_();
    return code;
  }
  void close() { shutdown_(); }

  GpuCounters read() const {
    constexpr int kCorrected = 0, kUncorrected = 1, kVolatile = 0;  // since the driver was loaded
    constexpr int kSmClock = 1, kTemperatureOfGpu = 0;
    GpuCounters counters;
    unsigned long long reasons = 0, errors = 0;
    if (ecc_errors_(device_, kCorrected, kVolatile, &errors) == 0) counters.ecc_corrected = errors;
    if (ecc_errors_(device_, kUncorrected, kVolatile, &errors) == 0) counters.ecc_uncorrected = errors;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (remapped_rows_(device_, &corrected, &uncorrected, &pending, &failed) == 0)
      counters.remapped_rows = int64_t{corrected} + uncorrected;
    if ((reasons_ ? reasons_ : older_reasons_)(device_, &reasons) == 0)
      for (const ThrottleReason& reason : kThrottleReasons) counters.throttled |= reasons & reason.bits;
    unsigned value = 0;
    if ((reasons & kIdle) == 0 && clock_(device_, kSmClock, &value) == 0) counters.sm_mhz = value;
    if (temperature_(device_, kTemperatureOfGpu, &value) == 0) counters.temperature = value;
    if (power_(device_, &value) == 0) counters.watts = value / 1e3;
    return counters;
  }

 private:
  Function<> init_, shutdown_;
  Function<const char*, void**> device_by_bus_id_;
  Function<void*, int, int, unsigned long long*> ecc_errors_;
  Function<void*, unsigned*, unsigned*, unsigned*, unsigned*> remapped_rows_;
  Function<void*, unsigned long long*> reasons_, older_reasons_;
  Function<void*, int, unsigned*> clock_, temperature_;
  Function<void*, unsigned*> power_;
  void* device_ = nullptr;
};

// `first`: the first value that was read.
void count_from_first(std::optional<int64_t>& count, std::optional<int64_t>& first) {
  if (!first) first = count;
  if (count) *count -= *first;
}

template <typename Choose>
void choose(std::optional<double>& value, const std::optional<double>& other, const Choose& better) {
  if (!value)
    value = other;
  else if (other)
    value = better(*value, *other);
}

}  // namespace

struct GpuSampler::Shared {
  const std::chrono::milliseconds period;
  const bool says_why_not;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, ended = false;
  bool taken = false;  // `counters`: since the last sample
  bool old_said = false;
  std::chrono::steady_clock::time_point changed_at = std::chrono::steady_clock::now();
  std::optional<GpuCounters> counters{};

  void add(const GpuCounters& sample) {
    changed_at = std::chrono::steady_clock::now();
    if (!counters || std::exchange(taken, false)) {
      counters = sample;
      return;
    }
    counters->ecc_corrected = sample.ecc_corrected;
    counters->ecc_uncorrected = sample.ecc_uncorrected;
    counters->remapped_rows = sample.remapped_rows;
    counters->throttled |= sample.throttled;
    choose(counters->sm_mhz, sample.sm_mhz, [](double a, double b) { return std::min(a, b); });
    choose(counters->temperature, sample.temperature, [](double a, double b) { return std::max(a, b); });
    choose(counters->watts, sample.watts, [](double a, double b) { return std::max(a, b); });
  }

  void sample_until_stopped(const std::string& bus_id) {
    constexpr const char* kWithout = "GPU: no clocks, throttling or ECC errors in the metrics";
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      if (says_why_not) log_info("{}: {} was not found", kWithout, kLibrary);
      return;
    }
    Nvml nvml(library);
    if (const int code = nvml.open(bus_id); code != 0) {
      if (says_why_not) log_info("{}: NVML does not open {} (nvmlReturn_t {})", kWithout, bus_id, code);
      return;
    }
    GpuCounters first;
    for (;;) {
      GpuCounters sample = nvml.read();
      count_from_first(sample.ecc_corrected, first.ecc_corrected);
      count_from_first(sample.ecc_uncorrected, first.ecc_uncorrected);
      count_from_first(sample.remapped_rows, first.remapped_rows);
      std::unique_lock lock(mutex);
      add(sample);
      if (changed.wait_for(lock, period, [this] { return stop; })) break;
    }
    nvml.close();
  }
};

GpuSampler::GpuSampler(const std::string& bus_id, std::chrono::milliseconds period, bool says_why_not)
    : shared_(std::make_shared<Shared>(period, says_why_not)) {
  std::thread([shared = shared_, bus_id] {
    shared->sample_until_stopped(bus_id);
    const std::lock_guard lock(shared->mutex);
    shared->ended = true;
    shared->changed.notify_all();
  }).detach();
}

GpuSampler::~GpuSampler() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  if (!shared_->changed.wait_for(lock, std::chrono::seconds(2), [this] { return shared_->ended; }))
    left_behind = true;
}

std::optional<GpuCounters> GpuSampler::take() {
  const std::lock_guard lock(shared_->mutex);
  shared_->taken = true;
  const std::chrono::seconds limit =
      std::chrono::ceil<std::chrono::seconds>(kPeriodsUntilOld * shared_->period);
  if (shared_->ended || std::chrono::steady_clock::now() - shared_->changed_at <= limit)
    return shared_->counters;
  if (!std::exchange(shared_->old_said, true))
    log_warning(
        "GPU: NVML has not answered for {} s: clocks, throttling and ECC errors of this rank's GPU are not "
        "in the metrics until it does",
        limit.count());
  return std::nullopt;
}

bool gpu_sampler_left_behind() {
  return left_behind;
}

}  // namespace hyperion::metrics
