// Formats the console lines of a training step and of a validation. They begin, byte for byte, as torchtitan
// v0.2.2 prints them after the logging prefix; our own fields follow. The functions are pure, so that a test
// can compare them with Python's formatting.
#pragma once

#include <cstdint>
#include <string>

namespace hyperion::metrics {

struct StepReport {
  int64_t step = 0;
  double loss = 0;              // global average over valid tokens
  double grad_norm = 0;         // before clipping
  double reserved_gib = 0;      // peak since the last logged step
  double reserved_percent = 0;  // of the device's memory
  double tps = 0;               // tokens per second and device
  double tflops = 0;            // per device, full-square attention FLOPs
  double mfu = 0;               // percent
  int64_t total_steps = 0;      // training.steps
  double lr = 0;                // learning rate of this step
  double step_seconds = 0;      // mean since the last logged step
  double data_percent = 0;      // percent of that time spent waiting for data
  double eta_seconds = 0;       // until total_steps are done
};

struct ValidationReport {
  int64_t step = 0;
  double loss = 0;
  double reserved_gib = 0;
  double reserved_percent = 0;
  double tps = 0;
};

// The line begins with v0.2.2's fields:
//   step: {:2}  loss: {:8.5f}  grad_norm: {:7.4f}  memory: {:5.2f}GiB({:.2f}%)  tps: {:,}  tflops: {:,.2f}
//   mfu: {:.2f}%
// It ends with our fields, without colours:
//   steps: {}  lr: {:.2e}  step_time: {:.3f}s  data_loading: {:.1f}%  eta: H:MM:SS
std::string step_line(const StepReport& report, bool color);

// Returns "validate step: {:2}  loss: {:7.4f}  memory: {:5.2f}GiB({:.2f}%)  tps: {:,}".
std::string validation_line(const ValidationReport& report, bool color);

// Returns "0:12:30": hours, minutes, seconds; hours are not split into days. Returns "?" if `seconds` is not
// a valid time.
std::string hours_minutes_seconds(double seconds);

// Formats as Python's f"{value:{width}.{precision}f}": the exact binary value is rounded half to even; nan
// has no sign.
std::string python_fixed(double value, int width, int precision);
// Formats with `,` between groups of three digits and without width.
std::string python_grouped(double value, int precision);

}  // namespace hyperion::metrics
