// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/table.h"

#include <algorithm>
#include <fmt/format.h>

namespace spillway {

std::string table(const std::vector<Column> &columns, const std::vector<std::vector<std::string>> &rows) {
    std::vector<std::string> titles;
    std::vector<std::size_t> widths;
    for (const auto &column : columns) {
        titles.push_back(column.title);
        widths.push_back(column.title.size());
    }
    for (const auto &row : rows) {
        for (std::size_t i = 0; i < row.size(); i++)
            widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    const auto add = [&](const std::vector<std::string> &cells) {
        std::string line;
        for (std::size_t i = 0; i < cells.size(); i++) {
            line += i > 0 ? "  " : "";
            line += columns[i].align == Align::left ? fmt::format("{:<{}}", cells[i], widths[i])
                                                    : fmt::format("{:>{}}", cells[i], widths[i]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    };
    add(titles);
    for (const auto &row : rows)
        add(row);
    return text;
}

} // namespace spillway
