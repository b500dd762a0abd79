// SPDX-License-Identifier: Apache-2.0
/// Aligned columns of text.
#pragma once

#include <string>
#include <vector>

namespace spillway {

enum class Align { left, right };

struct Column {
    std::string title;
    Align align = Align::left;
};

/// A line of titles and a line for each of `rows`: columns as wide as their widest cell, two spaces apart, no
/// spaces at the end of a line. A row has as many cells as there are columns.
[[nodiscard]] std::string table(const std::vector<Column> &columns,
                                const std::vector<std::vector<std::string>> &rows);

} // namespace spillway
