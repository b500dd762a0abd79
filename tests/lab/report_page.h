// SPDX-License-Identifier: Apache-2.0
/// The page as written in report.html, with a place for the data.
#pragma once

#include <string_view>

namespace spillway::lab {

extern const std::string_view report_page;

} // namespace spillway::lab
