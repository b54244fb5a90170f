#include "app/report/page.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/report/html.h"
#include "base/counted.h"
#include "base/error.h"

namespace hyperion::report {
namespace {

constexpr const char* kPercent = "\u00a0%";  // the blank does not break the line

std::string swatch(size_t run) {
  return fmt::format(R"(<span class="swatch r{}"></span>)", run);
}

// The run's name. The script changes it where the reader renames the run.
std::string name_of(const ReportRun& run, size_t number) {
  return fmt::format(R"({}<span class="name" data-run="{}">{}</span>)", swatch(number), number,
                     html_text(run.name, 200));
}

// Returns a field of run.txt; "-" if it is missing.
std::string field_of(const RunStart& start, const char* name) {
  const auto found = start.fields.find(name);
  return found == start.fields.end() ? "-" : found->second;
}

// The newest values of one run: its row in the table at the top.
class NewestState {
 public:
  NewestState(const ReportRun& run, double now)
      : run_(run), start_(run.starts.starts.empty() ? RunStart() : run.starts.starts.back()), now_(now) {}

  std::string row(size_t number) const {
    const MetricRow* training = run_.history.newest(RowKind::kTraining);
    const MetricRow* validation = run_.history.newest(RowKind::kValidation);
    const std::string loss = number_of(validation, "validation_metrics/loss");
    std::string html =
        fmt::format(R"(<tr class="r{}" data-run="{}"><td class="run">{}{}</td>)", number, number,
                    name_of(run_, number), folder() + description() + age() + ending() + warnings());
    html += cell("large", "", step());
    html += cell("large", "Loss", number_of(training, "loss_metrics/global_avg_loss"));
    html += cell("large", "Validation loss", loss,
                 loss == "-" ? "" : "at step " + format_count(static_cast<uint64_t>(validation->step)));
    html += cell("", "Gradient norm", number_of(training, "grad_norm"), clipped());
    html += cell("", "Learning rate", number_of(training, "lr"));
    html += cell("", "Throughput", number_of(training, "throughput(tps)"),
                 number_of(training, "mfu(%)", 3, "MFU ", kPercent));
    html += cell("", "Step time", number_of(training, "time_metrics/end_to_end(s)", 5, "", " s"),
                 number_of(training, "time_metrics/data_loading(%)", 2, "", "\u00a0% waiting for data"));
    html += cell("", "Peak memory", number_of(training, "memory/max_reserved(GiB)", 4, "", " GiB"),
                 number_of(training, "memory/max_reserved(%)", 3, "", kPercent));
    return html + "</tr>" + record();
  }

  static std::string header() {
    return "<tr><th>run</th><th>step</th><th>loss</th><th>validation loss</th><th>gradient norm</th>"
           "<th>learning rate</th><th>tokens/s per rank</th><th>step time</th><th>peak memory</th></tr>";
  }

 private:
  // `plot`: the title of the plot with the same values, by which the script compares runs.
  static std::string cell(const char* style, const std::string& plot, const std::string& number,
                          const std::string& below = "") {
    return fmt::format(R"(<td class="number {}"{}>{}{}</td>)", style,
                       plot.empty() ? "" : fmt::format(R"( data-plot="{}")", plot), number,
                       below.empty() || below == "-" ? "" : "<small>" + below + "</small>");
  }

  // "-" where the row has no value
  std::string number_of(const MetricRow* row, const std::string& tag, int digits = 5, const char* before = "",
                        const char* after = "") const {
    const auto number = run_.value(row, tag);
    if (!number) return "-";
    const bool large = std::abs(*number) >= 1e4 || !std::isfinite(*number);
    return before + (large ? number_text(std::round(*number)) : fmt::format("{:.{}g}", *number, digits)) +
           after;
  }

  std::string folder() const {
    return run_.folder.empty() ? "" : fmt::format("<small>{}</small>", html_text(run_.folder));
  }

  std::string description() const {
    const auto found = start_.settings.find("job.description");
    std::string text = found == start_.settings.end() ? "" : found->second;
    if (text.size() >= 2 && text.front() == text.back()) text = text.substr(1, text.size() - 2);  // quotes
    return text.empty() ? "" : fmt::format("<small>{}</small>", html_text(text, 300));
  }

  std::string age() const {
    if (!std::isfinite(run_.history.last_time())) return "<small>no metrics yet</small>";
    return fmt::format("<small>newest line {} ago, {}</small>",
                       duration_text(now_ - run_.history.last_time()), utc_text(run_.history.last_time()));
  }

  // Returns the end event of the newest start; "" if it has not ended.
  std::string ending() const {
    const std::vector<MetricRow>& events = run_.history.events();
    if (events.empty() || events.front().event != "end") return "";
    const double code = run_.value(&events.front(), "end.exit_code").value_or(0);
    const bool orderly =
        code == static_cast<int>(ExitCode::kOk) || code == static_cast<int>(ExitCode::kStoppedSaved);
    return fmt::format("<small{}>ended: {}</small>", orderly ? "" : " class=\"warn\"",
                       html_text(events.front().details, 300));
  }

  std::string step() const {
    const MetricRow* training = run_.history.newest(RowKind::kTraining);
    const MetricRow* row = training != nullptr ? training : run_.history.newest(RowKind::kEvent);
    if (row == nullptr) return "-";
    std::string html = format_count(static_cast<uint64_t>(row->step));
    const auto small = [&](const std::string& text) { html += "<small>" + text + "</small>"; };
    const double steps = start_.number("training.steps").value_or(0);
    if (steps >= 1 && steps < 1e15) {
      small(fmt::format("of {} ({:.0f}\u00a0%)", number_text(steps),
                        100 * static_cast<double>(row->step) / steps));
      html += fmt::format("<progress value=\"{}\" max=\"{:.0f}\"></progress>", row->step, steps);
    }
    const auto left = run_.value(row, "time_metrics/eta(s)");
    if (left && std::isfinite(*left) && *left > 0) small(duration_text(*left) + " left");
    const std::string tokens = number_of(training, "n_tokens_seen", 5, "", " tokens");
    if (tokens != "-") small(tokens);
    if (run_.history.attempt_count() > 1) small(counted(run_.history.attempt_count() - 1, "restart"));
    return html;
  }

  // "5 % of steps clipped"
  std::string clipped() const {
    ValueRange all;
    for (const auto& [index, bucket] : run_.history.current(RowKind::kTraining).buckets())
      all.add(bucket.range(kClippedTag));
    return all.count == 0 ? "" : fmt::format("{:.3g}\u00a0% of steps clipped", 100 * all.mean());
  }

  // One click away under the run's row: what was started, where and with which configuration.
  std::string record() const {
    if (run_.starts.newest_record.empty()) return "";
    return fmt::format(
        R"(<tr class="record"><td colspan="9"><details><summary>Record <small>{}</small></summary>)"
        "<pre>{}</pre></details></td></tr>",
        html_text(field_of(start_, "devices") + ", host " + field_of(start_, "host"), 200),
        html_text(run_.starts.newest_record, 100'000));
  }

  std::string warnings() const {
    std::string html;
    const auto warn = [&](const std::string& text) {
      html += fmt::format("<small class=\"warn\">{}</small>", html_text(text));
    };
    if (const auto step = run_.history.first_non_finite_step())
      warn(fmt::format("loss or gradient norm not finite, first at step {}", *step));
    uint64_t failed = 0;
    for (const MetricRow& event : run_.history.events()) failed += event.event == "checkpoint_failed";
    if (failed > 0) warn(counted(failed, "checkpoint") + " could not be saved: see the events");
    if (run_.bad_lines > 0) {
      warn(fmt::format("{} of {} in metrics.jsonl could not be read{}", format_count(run_.bad_lines),
                       counted(run_.lines, "line"),
                       run_.torn_end ? "; the last one is torn or being written" : ""));
    }
    if (run_.tags_left_out > 0)
      warn(fmt::format("{} left out: more than {} different names, or a name too long",
                       counted(run_.tags_left_out, "field"), MetricParser::kMaxTags));
    for (const std::string& problem : run_.starts.problems) warn(problem);
    return html;
  }

  const ReportRun& run_;
  RunStart start_;  // the newest
  double now_;
};

std::string control_bar(const std::vector<ReportRun>& runs, bool superseded, double refresh) {
  std::string html =
      R"(<div class="bar"><label>x axis <select id="axis"><option value="0">step</option>)"
      R"(<option value="1">tokens seen</option><option value="2">time</option></select></label>)"
      R"(<label>smoothing <input id="smoothing" type="range" min="0" max="0.99" step="0.01" value="0">)"
      R"(<output>0.00</output></label><label>steps <input id="from" type="number" min="0"> to )"
      R"(<input id="to" type="number" min="0"></label><button id="whole" type="button" disabled>all steps</button>)";
  if (superseded)
    html += R"(<label><input id="superseded" type="checkbox" checked> steps that were repeated after a )"
            "restart</label>";
  if (refresh > 0)
    html += fmt::format(
        R"(<label><input id="refresh" type="checkbox" checked> refresh every {:.4g} s</label>)", refresh);
  if (runs.size() > 1) {
    html += R"(<label>baseline <select id="baseline"><option value="">none</option>)";
    for (size_t i = 0; i < runs.size(); ++i)
      html += fmt::format(R"(<option value="{}">{}</option>)", i, html_text(runs[i].name, 200));
    html += R"(</select><select id="ratio"><option value="">difference</option>)"
            R"(<option value="1">ratio</option></select></label>)";
  }
  for (size_t i = 0; i < runs.size(); ++i)
    html += fmt::format(R"(<button class="run" type="button" aria-pressed="true">{}</button>)",
                        name_of(runs[i], i));
  return html + "</div>";
}

std::string figure(const Plot& plot, const ReportData& data, size_t first_line) {
  std::string unit = plot.unit, dashed;
  for (const double value : plot.references) dashed += (dashed.empty() ? " " : ", ") + tick_label(value);
  if (!dashed.empty()) unit += (unit.empty() ? "" : "; ") + ("dashed: " + plot.reference + dashed);
  return fmt::format(
      R"(<figure><figcaption>{} <small>{}</small><button class="log" type="button">log</button></figcaption>{}</figure>)"
      "\n",
      html_text(plot.title), html_text(unit), plot_svg(plot, data.points, data.axes, data.marks, first_line));
}

// The newest settings of the runs that have some, and the runs' names as a table's head.
struct NewestSettings {
  std::vector<const Settings*> columns{};
  std::string head = "<tr><th>key</th>";

  explicit NewestSettings(const std::vector<ReportRun>& runs) {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].starts.starts.empty()) continue;
      columns.push_back(&runs[i].starts.starts.back().settings);
      head += "<th>" + name_of(runs[i], i) + "</th>";
    }
    head += "</tr>";
  }
};

// Returns the table of settings that differ between runs, which is the top of the page. The names of jobs and
// folders, which always do, come last.
std::string difference_table(const std::vector<ReportRun>& runs) {
  const NewestSettings newest(runs);
  if (newest.columns.size() < 2) return "";
  const auto rows = differences(newest.columns);
  std::string html = fmt::format(
      "<h2>Configuration: {}</h2>",
      rows.empty() ? "the same in all runs" : counted(rows.size(), "key") + " with different values");
  if (rows.empty()) return html;
  html += "<div class=\"scroll first\"><table>" + newest.head;
  for (const bool of_job : {false, true}) {
    for (const auto& [key, values] : rows) {
      if (key.starts_with("job.") != of_job) continue;
      html += fmt::format("<tr><td><code>{}</code></td>", html_text(key, 200));
      for (const std::string& value : values)
        html += value.empty() ? "<td><small>not set</small></td>"
                              : fmt::format("<td><code>{}</code></td>", html_text(value, 500));
      html += "</tr>";
    }
  }
  return html + "</table></div><h2>Runs</h2>";
}

// The settings that differ from the start before, "key: old -> new" per line.
std::string changed_settings(const Settings& before, const Settings& after) {
  std::string html;
  const auto text = [](const std::string& value) {
    return html_text(value.empty() ? "not set" : value, 200);
  };
  for (const auto& [key, values] : differences({&before, &after}))
    html += fmt::format("<code>{}: {} \u2192 {}</code><br>", html_text(key, 200), text(values[0]),
                        text(values[1]));
  return html;
}

// Returns "" without rows. `count` includes rows that are not shown.
std::string folded_table(const char* title, const char* noun, uint64_t count, uint64_t shown,
                         const char* header, const std::string& rows) {
  if (count == 0) return "";
  return fmt::format(
      "<details><summary>{} <small>{}{}</small></summary><div class=\"scroll\"><table><tr>{}</tr>{}</table>"
      "</div></details>",
      title, counted(count, noun), shown < count ? fmt::format(", the newest {}", shown) : "", header, rows);
}

// The settings that all runs share.
std::string same_table(const std::vector<ReportRun>& runs) {
  const NewestSettings newest(runs);
  if (newest.columns.size() < 2) return "";
  const auto different = differences(newest.columns);
  std::string rows;
  uint64_t count = 0;
  for (const auto& [key, value] : *newest.columns.front()) {
    if (different.contains(key)) continue;
    ++count;
    rows += fmt::format("<tr><td><code>{}</code></td><td><code>{}</code></td></tr>", html_text(key, 200),
                        html_text(value, 500));
  }
  return folded_table("Same in all runs", "key", count, count, "<th>key</th><th>value</th>", rows);
}

std::string starts_table(const std::vector<ReportRun>& runs) {
  std::string rows;
  uint64_t count = 0, shown = 0;
  for (size_t run = 0; run < runs.size(); ++run) {
    const std::vector<RunStart>& starts = runs[run].starts.starts;
    count += runs[run].starts.count;
    shown += starts.size();
    for (size_t i = starts.size(); i-- > 0;) {
      const auto text = [&](const char* name) { return html_text(field_of(starts[i], name), 1000); };
      rows += fmt::format(
          "<tr><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td><code>{}</code></td>"
          "<td><code>{}</code></td><td>{}</td></tr>",
          swatch(run), html_text(starts[i].name, 100), text("start"), text("host"), text("ranks"),
          text("devices"), text("commit").substr(0, 12), text("command"),
          i > 0 ? changed_settings(starts[i - 1].settings, starts[i].settings) : "");
    }
  }
  return folded_table("Starts", "record", count, shown,
                      "<th>start</th><th>time</th><th>host</th><th>ranks</th><th>devices</th><th>commit</th>"
                      "<th>command</th><th>changed since the start before</th>",
                      rows);
}

std::string events_table(const std::vector<ReportRun>& runs) {
  std::string rows;
  uint64_t count = 0, shown = 0;
  for (size_t run = 0; run < runs.size(); ++run) {
    count += runs[run].history.event_count();
    shown += runs[run].history.events().size();
    for (const MetricRow& event : runs[run].history.events())
      rows +=
          fmt::format("<tr><td>{}{}</td><td>{}</td><td class=\"number\">{}</td><td><code>{}</code></td></tr>",
                      swatch(run), utc_text(event.value(kTimeTag).value_or(0)), html_text(event.event),
                      format_count(static_cast<uint64_t>(event.step)), html_text(event.details));
  }
  return folded_table("Events", "event", count, shown,
                      "<th>time</th><th>event</th><th>after step</th><th>details</th>", rows);
}

// Returns the JSON that the script reads.
std::string page_data(const ReportData& data, const PageChoices& choices) {
  using Frame = PlotFrame;
  std::vector<std::string> ranges, names, marks, points, lines;
  for (const HorizontalAxis& axis : data.axes) {
    ranges.push_back(fmt::format("[{},{}]", axis.interval.low, axis.interval.high));
    names.push_back(fmt::format("\"{}\"", axis.name));
  }
  std::vector<int> runs;
  for (const PlotPoints& of_table : data.points) {
    runs.push_back(of_table.run);
    std::vector<std::string> axes;
    for (const std::vector<double>& x : of_table.x) axes.push_back(json_numbers(x));
    points.push_back(fmt::format("[{}]", fmt::join(axes, ",")));
  }
  for (const PlotMark& mark : data.marks) marks.push_back(json_numbers({mark.x.begin(), mark.x.end()}));
  for (const auto* plots : {&data.plots, &data.more_plots})
    for (const Plot& plot : *plots) lines.push_back(lines_json(plot));
  return fmt::format(
      "{{\"frame\":[{},{},{},{}],\"x\":[{}],\"axes\":[{}],\"runs\":[{}],\"marks\":[{}],\"points\":[{}],"
      "\"lines\":[{}],\"baseline\":{},\"ratio\":{},\"refresh\":{}}}",
      Frame::kLeft, Frame::kRight, Frame::kTop, Frame::kBottom, fmt::join(ranges, ","), fmt::join(names, ","),
      fmt::join(runs, ","), fmt::join(marks, ","), fmt::join(points, ",\n"), fmt::join(lines, ",\n"),
      choices.baseline ? fmt::to_string(*choices.baseline) : "null", choices.ratio, choices.refresh);
}

}  // namespace

std::string report_page(const std::vector<ReportRun>& runs, double now, const PageChoices& choices) {
  std::vector<ReportRun> coarse = runs;
  for (ReportRun& run : coarse) run.history.limit_buckets(drawn_buckets_per_run(runs.size()));
  const ReportData data = report_data(coarse);
  int64_t widest = 1;  // in steps, of the points that the script has
  for (const ReportRun& run : runs)
    for (const auto& [index, bucket] : run.history.current(RowKind::kTraining).buckets())
      widest = std::max(widest, static_cast<int64_t>(bucket.steps.largest - bucket.steps.smallest) + 1);
  bool superseded = false;
  for (const ReportRun& run : runs)
    for (int kind = 0; kind < kRowKinds; ++kind)
      superseded |= !run.history.superseded(static_cast<RowKind>(kind)).empty();

  std::string title = "Training report";
  if (runs.size() == 1) title += ": " + runs[0].name;
  std::string html = fmt::format(
      R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{}</title>
<style>{}</style></head>
<body>
<header><h1>{}</h1><p>{}, {}</p></header>
{}
<div class="scroll"><table>)",
      kPageScriptHash, html_text(title, 200), kPageStyle, html_text(title, 200), counted(runs.size(), "run"),
      utc_text(now), difference_table(runs));
  html += NewestState::header();
  for (size_t i = 0; i < runs.size(); ++i) html += NewestState(runs[i], now).row(i) + "\n";
  html += fmt::format(
      R"(</table></div>
{}
<p class="note"><span>Drag over a plot to zoom all of them{}, double click for all steps. </span>)"
      "Dotted vertical lines: restarts. Red crosses: values that are not finite. Faint lines: steps that "
      "were "
      "repeated after a restart. Shaded: smallest to largest value where a point stands for several steps."
      "</p>\n<div class=\"plots\">\n",
      control_bar(runs, superseded, choices.refresh),
      widest > 1 ? fmt::format(" (a point then stands for up to {} steps)", widest) : "");
  size_t line = 0;
  const auto add_figures = [&](const std::vector<Plot>& plots) {
    for (const Plot& plot : plots) {
      html += figure(plot, data, line);
      line += plot.lines.size();
    }
    html += "</div>";
  };
  add_figures(data.plots);
  html += "\n";
  if (!data.more_plots.empty()) {
    html += fmt::format("<details><summary>More metrics <small>{}{}</small></summary><div class=\"plots\">\n",
                        counted(data.more_plots.size(), "plot"),
                        data.plots_left_out > 0 ? fmt::format(", {} left out", data.plots_left_out) : "");
    add_figures(data.more_plots);
    html += "</details>\n";
  }
  html += same_table(runs) + starts_table(runs) + events_table(runs);
  html += "\n<script type=\"application/json\" id=\"data\">" + page_data(report_data(runs), choices) +
          "</script>\n";
  return html + "<script>" + kPlotScript + kControlScript + "</script>\n</body></html>\n";
}

}  // namespace hyperion::report
