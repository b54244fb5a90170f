// Style and script of the report's page: constants, into which nothing from outside goes.
#pragma once

namespace hyperion::report {

extern const char* const kPageStyle;
extern const char* const kPageScript;
// base64 of the script's SHA-256: the page's content security policy lets a browser run this text alone, so
// that nothing else in the page could run even if it got past html_text().
extern const char* const kPageScriptHash;

}  // namespace hyperion::report
