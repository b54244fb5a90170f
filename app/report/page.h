// The page of `hyperion report`. No I/O.
#pragma once

#include <string>
#include <vector>

#include "app/report/report_data.h"

namespace hyperion::report {

// Runs are distinguished by colour and dash: as many as there are pairs of them.
inline constexpr size_t kMaxRuns = 14;

// A complete HTML document that loads nothing. `now`: seconds since 1970, for the age of the newest lines.
std::string report_page(const std::vector<ReportRun>& runs, double now);

// Of page_assets.cpp: constants, into which nothing from outside goes. The hash is base64 of the script's
// SHA-256: the page's content security policy lets a browser run this text alone, so that nothing else in the
// page could run even if it got past html_text().
extern const char *const kPageStyle, *const kPageScript, *const kPageScriptHash;

}  // namespace hyperion::report
