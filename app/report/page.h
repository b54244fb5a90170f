// Writes the page of `hyperion report`. No I/O.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/report/report_data.h"

namespace hyperion::report {

// Each run has its own pair of colour and dash; there are this many pairs.
inline constexpr size_t kMaxRuns = 14;

// PageChoices are the page's settings when it opens; the reader can change them.
struct PageChoices {
  std::optional<size_t> baseline{};  // the run that the others are compared with
  bool ratio = false;                // compared by ratios, not by differences
  double refresh = 0;                // seconds between reloads; 0: the page stays as it is
};

// Returns a complete HTML document that loads nothing. `now` (seconds since 1970) gives the age of the newest
// lines.
std::string report_page(const std::vector<ReportRun>& runs, double now, const PageChoices& choices = {});

// page_assets.cpp, page_plots.cpp and page_controls.cpp define these constants; no untrusted text enters
// them. The page's script is kPlotScript and kControlScript. The hash is base64 of its SHA-256. The page's
// content security policy lets a browser run this script alone, so other script could not run even if it
// passed html_text().
extern const char *const kPageStyle, *const kPlotScript, *const kControlScript, *const kPageScriptHash;

}  // namespace hyperion::report
