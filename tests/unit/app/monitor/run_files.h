// Folders of runs for tests of the monitor.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "app/monitor/follower.h"
#include "app/monitor/text.h"

namespace hyperion::monitor {

// A run's folder, which is removed at the end.
struct RunFolder {
  std::filesystem::path path;

  RunFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "monitor-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~RunFolder() { std::filesystem::remove_all(path); }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  void append(const std::string& text) const { std::ofstream(metrics(), std::ios::app) << text; }
  void replace(const std::string& text) const { std::ofstream(metrics(), std::ios::trunc) << text; }
  void record(const std::string& name, const std::string& toml) const {
    std::filesystem::create_directories(path / "runs" / name);
    std::ofstream(path / "runs" / name / "config.toml") << toml;
    std::ofstream(path / "runs" / name / "run.txt") << "host: node7\ndevices: 8 x H100\n";
  }
};

inline std::string training_line(int64_t step, double loss, double time, const std::string& more = "") {
  return fmt::format("{{\"step\": {}, \"time\": {}, \"loss_metrics/global_avg_loss\": {}{}}}\n", step, time,
                     loss, more);
}

// Step 1,000 of 10,000 of a healthy run of 8 ranks at time 2,000, with plots.
inline std::string healthy_run() {
  std::string text = R"j({"step": 0, "time": 1000, "event": "start", "steps": 10000, "ranks": 8})j"
                     "\n";
  for (int step = 10; step <= 1000; step += 10)
    text += training_line(
        step, 10.0 - step / 200.0, 1000 + step,
        fmt::format(R"j(, "grad_norm": 0.5, "lr": 0.0003, "throughput(tps)": {}, "mfu(%)": 36.1,)j"
                    R"j( "time_metrics/end_to_end(s)": 1, "time_metrics/eta(s)": {},)j"
                    R"j( "time_metrics/data_loading(%)": 0.3, "n_tokens_seen": {},)j"
                    R"j( "memory/max_reserved(GiB)": 47.6, "memory/max_reserved(%)": 50.2)j",
                    6000 + step % 70, 10000 - step, step * 1000));
  return text +
         R"j({"step": 900, "time": 1901, "event": "checkpoint_staged", "stall_seconds": 0.1})j"
         "\n"
         R"j({"step": 900, "time": 1905, "event": "checkpoint_durable", "kind": "full", "write_seconds": 3.2, "bytes": 1073741824})j"
         "\n";
}

inline MonitoredRun state_of(const std::string& lines) {
  const RunFolder folder;
  folder.append(lines);
  RunFollower follower(folder.path);
  while (follower.refresh()) continue;
  MonitoredRun state = follower.state();
  state.runs.front().name = "outputs/run";
  return state;
}

inline std::string plain(const TextLine& line) {
  std::string text = render(line, /*colours=*/false);
  return text.erase(text.find_last_not_of(' ') + 1);
}

}  // namespace hyperion::monitor
