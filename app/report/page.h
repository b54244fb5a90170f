// Writes the page of `hyperion report`. No I/O.
#pragma once

#include <string>
#include <vector>

#include "app/report/report_data.h"

namespace hyperion::report {

// Each run has its own pair of colour and dash; there are this many pairs.
inline constexpr size_t kMaxRuns = 14;

// Returns a complete HTML document that loads nothing. `now` (seconds since 1970) gives the age of the newest
// lines.
std::string report_page(const std::vector<ReportRun>& runs, double now);

// page_assets.cpp defines these constants; no untrusted text enters them. The hash is base64 of the script's
// SHA-256. The page's content security policy lets a browser run this script alone, so other script could not
// run even if it passed html_text().
extern const char *const kPageStyle, *const kPageScript, *const kPageScriptHash;

}  // namespace hyperion::report
