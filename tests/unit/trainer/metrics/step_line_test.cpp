#include "trainer/metrics/step_line.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include <catch2/catch.hpp>

namespace hyperion::metrics {

// The expected lines are what Python prints for v0.2.2's format strings and these numbers.
namespace {

// The line up to v0.2.2's last field.
std::string fields_of_torchtitan(const StepReport& report, bool color) {
  const std::string line = step_line(report, color);
  return line.substr(0, line.find("  steps: "));
}

}  // namespace

TEST_CASE("The step line begins as Python prints the format of v0.2.2") {
  CHECK(fields_of_torchtitan({10, 4.12345, 1.2345, 47.65, 50.16, 6150.2, 356.17, 36.01}, false) ==
        "step: 10  loss:  4.12345  grad_norm:  1.2345  memory: 47.65GiB(50.16%)  tps: 6,150  tflops: 356.17  "
        "mfu: 36.01%");
  CHECK(fields_of_torchtitan({1, 8.0, 0.5, 0.125, 0.375, 2.5, 1234.565, 0.005}, false) ==
        "step:  1  loss:  8.00000  grad_norm:  0.5000  memory:  0.12GiB(0.38%)  tps: 2  tflops: 1,234.57  "
        "mfu: 0.01%");
  CHECK(fields_of_torchtitan({123, 12.345675, 123.45675, 123.456, 99.995, 1234567.5, 1234567.125, 100.005},
                             false) ==
        "step: 123  loss: 12.34567  grad_norm: 123.4567  memory: 123.46GiB(100.00%)  tps: 1,234,568  tflops: "
        "1,234,567.12  mfu: 100.00%");
  CHECK(
      fields_of_torchtitan(
          {1, std::nan(""), std::numeric_limits<double>::infinity(), 0, 0, 999.5, 999.995, 0}, false) ==
      "step:  1  loss:      nan  grad_norm:     inf  memory:  0.00GiB(0.00%)  tps: 1,000  tflops: 1,000.00  "
      "mfu: 0.00%");
}

TEST_CASE("Our fields follow those of v0.2.2 without colours") {
  const StepReport report = {10, 1, 1, 1, 1, 1, 1, 1, 1000, 3e-4, 0.5204, 0.26, 750.4};
  CHECK(
      step_line(report, false)
          .ends_with(
              "mfu: 1.00%  steps: 1000  lr: 3.00e-04  step_time: 0.520s  data_loading: 0.3%  eta: 0:12:30"));
  CHECK(step_line(report, true)
            .ends_with("\033[35mmfu: 1.00%\033[39m  steps: 1000  lr: 3.00e-04  step_time: 0.520s  "
                       "data_loading: 0.3%  eta: "
                       "0:12:30"));
}

TEST_CASE("A duration has hours that are not split into days") {
  CHECK(hours_minutes_seconds(0) == "0:00:00");
  CHECK(hours_minutes_seconds(59.5) == "0:01:00");
  CHECK(hours_minutes_seconds(100 * 3600 + 61) == "100:01:01");
  CHECK(hours_minutes_seconds(std::nan("")) == "?");
  CHECK(hours_minutes_seconds(std::numeric_limits<double>::infinity()) == "?");
}

TEST_CASE("The validation line equals what Python prints for the format of v0.2.2") {
  CHECK(validation_line({5, 3.14155, 1.005, 0.62, 3500.5}, false) ==
        "validate step:  5  loss:  3.1416  memory:  1.00GiB(0.62%)  tps: 3,500");
  CHECK(validation_line({1000, 11.00005, 47.655, 50.165, 999999.5}, false) ==
        "validate step: 1000  loss: 11.0000  memory: 47.66GiB(50.16%)  tps: 1,000,000");
}

TEST_CASE("Colours stand before each field and a foreground reset at the end") {
  CHECK(fields_of_torchtitan({1, 1, 1, 1, 1, 1, 1, 1}, true) ==
        "\033[31mstep:  1  \033[32mloss:  1.00000  \033[38;2;180;60;0mgrad_norm:  1.0000  "
        "\033[38;2;54;234;195mmemory:  1.00GiB(1.00%)  \033[34mtps: 1  \033[36mtflops: 1.00  \033[35mmfu: "
        "1.00%\033[39m");
  CHECK(validation_line({1, 1, 1, 1, 1}, true) ==
        "\033[33mvalidate step:  1  \033[32mloss:  1.0000  \033[38;2;54;234;195mmemory:  1.00GiB(1.00%)  "
        "\033[34mtps: 1\033[39m");
}

TEST_CASE("Numbers are rounded and grouped as Python does it") {
  CHECK(python_fixed(0.125, 0, 2) == "0.12");
  CHECK(python_fixed(0.375, 0, 2) == "0.38");
  CHECK(python_fixed(-std::nan(""), 8, 5) == "     nan");
  CHECK(python_fixed(-std::numeric_limits<double>::infinity(), 0, 2) == "-inf");
  CHECK(python_fixed(1e308, 0, 2).size() == 312);
  CHECK(python_grouped(0, 0) == "0");
  CHECK(python_grouped(999, 0) == "999");
  CHECK(python_grouped(1000, 0) == "1,000");
  CHECK(python_grouped(-100000.25, 2) == "-100,000.25");
  CHECK(python_grouped(1e15, 2) == "1,000,000,000,000,000.00");
  CHECK(python_grouped(std::nan(""), 2) == "nan");
}

}  // namespace hyperion::metrics
