#pragma once

#include <string>

namespace millrace::server::messages {

/// Removes each `x-anthropic-billing-header:` with the `key=value;` pairs after it. Claude Code puts it at the very
/// start of the system prompt and changes it between requests or sessions. No prefix of a prompt would then be found
/// again. A header without pairs is prose and stays.
void remove_attribution(std::string& text);

}  // namespace millrace::server::messages
