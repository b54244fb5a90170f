// Writes what tensorboard_peer.py judges: an event file and metrics.jsonl into the folder given, and on
// stdout step lines beside the exact numbers (as hexadecimal floats) that they were made from.
#include <cmath>
#include <cstdint>
#include <limits>

#include <fmt/format.h>

#include "base/log.h"
#include "base/philox.h"
#include "trainer/metrics/metrics_logger.h"
#include "trainer/metrics/step_line.h"

using namespace hyperion;

namespace {

// Numbers of very different size, ties of the decimal rounding among them.
double number(uint64_t index) {
  const PhiloxBlock block = philox4x32(7, index);
  const double value =
      uniform_open(block[0], block[1]) * std::pow(10.0, static_cast<double>(block[2] % 9) - 2.0);
  return block[3] % 4 == 0 ? std::round(value * 8) / 8 : value;
}

void print_step_lines() {
  for (uint64_t i = 0; i < 2000; ++i) {
    const auto n = [i](uint64_t field) { return number(16 * i + field); };
    const metrics::StepReport r = {
        static_cast<int64_t>(i), n(0), n(1), n(2), n(3), n(4), n(5), n(6), 2000, n(7), n(8), n(9), 3661};
    fmt::print("{} {:a} {:a} {:a} {:a} {:a} {:a} {:a} {:a} {:a} {:a}|{}|{}\n", r.step, r.loss, r.grad_norm,
               r.reserved_gib, r.reserved_percent, r.tps, r.tflops, r.mfu, r.lr, r.step_seconds,
               r.data_percent, metrics::step_line(r, false),
               metrics::validation_line({r.step, r.loss, r.reserved_gib, r.reserved_percent, r.tps}, false));
  }
}

void write_run(const char* folder) {
  const config::JobConfig::Metrics options{.log_freq = 10, .enable_tensorboard = true};
  const metrics::MeasuredRun run{.dump_folder = folder,
                                 .prints = false,
                                 .flops_per_token_square = 1e6,
                                 .flops_per_token_causal = 1e6,
                                 .peak_flops = 1e12};
  metrics::MetricsLogger logger(options, run, {});
  logger.log_config("[training]\nsteps = 500  # \xC3\xA9\n");
  for (int64_t step = 1; step <= 500; ++step) {
    logger.add_batch(64, 1e-6);
    const double loss =
        step == 500 ? std::numeric_limits<double>::quiet_NaN() : 8.0 / static_cast<double>(step);
    if (logger.should_log(step)) logger.log({step, loss, 2 * loss, 1.0 / 3, 1e-3, 64 * step, {}});
    if (step % 100 != 0) continue;
    logger.begin_validation();
    logger.log_validation(step, 9.0 / static_cast<double>(step));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  init_logging(true);  // stdout is for the numbers
  write_run(argv[1]);
  print_step_lines();
}
