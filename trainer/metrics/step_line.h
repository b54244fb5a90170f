// The console lines of a training step and of a validation. They begin byte for byte as torchtitan v0.2.2
// prints them after the logging prefix; fields of our own follow. Pure functions of the numbers, so that a
// test can compare them with Python's own formatting.
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
  double lr = 0;                // the value this step used
  double step_seconds = 0;      // of a step, since the last logged one
  double data_percent = 0;      // of that time: waiting for data
  double eta_seconds = 0;       // until total_steps are done
};

struct ValidationReport {
  int64_t step = 0;
  double loss = 0;
  double reserved_gib = 0;
  double reserved_percent = 0;
  double tps = 0;
};

// v0.2.2's fields:
//   step: {:2}  loss: {:8.5f}  grad_norm: {:7.4f}  memory: {:5.2f}GiB({:.2f}%)  tps: {:,}  tflops: {:,.2f}
//   mfu: {:.2f}%
// then ours, without colours:
//   steps: {}  lr: {:.2e}  step_time: {:.3f}s  data_loading: {:.1f}%  eta: H:MM:SS
std::string step_line(const StepReport& report, bool color);

// validate step: {:2}  loss: {:7.4f}  memory: {:5.2f}GiB({:.2f}%)  tps: {:,}
std::string validation_line(const ValidationReport& report, bool color);

// "0:12:30": hours, minutes, seconds; hours are not split into days. "?" for what is no time.
std::string hours_minutes_seconds(double seconds);

// Python's f"{value:{width}.{precision}f}": rounded half to even on the exact binary value; nan and inf
// without a sign for nan.
std::string python_fixed(double value, int width, int precision);
// The same with `,` between groups of three digits and no width.
std::string python_grouped(double value, int precision);

}  // namespace hyperion::metrics
