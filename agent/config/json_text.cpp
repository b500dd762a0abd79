// SPDX-License-Identifier: Apache-2.0
#include "agent/config/json_text.h"

#include "agent/config/fault.h"

#include <algorithm>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace spillway {

namespace {

using nlohmann::json;

/// Deeper than any configuration; without a limit a hostile file exhausts the stack of whoever walks it.
constexpr std::size_t most_levels = 32;

/// Builds the document, event by event, and stops at the first fault.
class Builder final : public nlohmann::json_sax<json> {
  public:
    explicit Builder(std::string_view text, std::string_view file) : text_(text), file_(file) {}

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool number_float(number_float_t value, const string_t &) override { return add(value); }
    bool string(string_t &value) override { return add(std::move(value)); }
    bool binary(binary_t &value) override { return add(json::binary(std::move(value))); }
    bool start_object(std::size_t) override { return open(json::object()); }
    bool start_array(std::size_t) override { return open(json::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }

    bool key(string_t &name) override {
        if (open_.back()->contains(name)) {
            error = config_error(file_, {.place = place() + pointer_step(name),
                                         .found = "this key a second time",
                                         .allowed = "each key once in an object",
                                         .hint = fmt::format("remove one of the two {}", in_quotes(name))});
            return false;
        }
        key_ = std::move(name);
        return true;
    }

    bool parse_error(std::size_t position, const std::string &, const json::exception &exception) override {
        error =
            config_error(file_, fmt::format("{}: not JSON: {}", where(position), reason(exception.what())),
                         remedy(position));
        return false;
    }

    json document;
    std::optional<Error> error;

  private:
    json *put(json value) {
        if (open_.empty())
            return &(document = std::move(value));
        if (open_.back()->is_array())
            return &open_.back()->emplace_back(std::move(value));
        return &((*open_.back())[key_] = std::move(value));
    }

    bool add(json value) {
        put(std::move(value));
        return true;
    }

    bool open(json container) {
        if (open_.size() == most_levels) {
            error = config_error(file_, {.place = place(),
                                         .found = "one more list or object inside the other",
                                         .allowed = fmt::format("at most {} levels", most_levels),
                                         .hint = "compare the brackets with those of the example file"});
            return false;
        }
        open_.push_back(put(std::move(container)));
        return true;
    }

    bool close() {
        open_.pop_back();
        return true;
    }

    /// JSON pointer of the innermost list or object. Each open container is the last member of the one
    /// around it, in a list by place and in an object by address.
    [[nodiscard]] std::string place() const {
        std::string place;
        for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
            const json &outer = *open_[i];
            if (outer.is_array()) {
                place += fmt::format("/{}", outer.size() - 1);
                continue;
            }
            const auto &members = outer.get_ref<const json::object_t &>();
            const auto member = std::ranges::find_if(members, [inner = open_[i + 1]](const auto &candidate) {
                return &candidate.second == inner;
            });
            place += pointer_step(member->first);
        }
        return place;
    }

    /// `position` counts bytes up to and including the last one read.
    [[nodiscard]] std::string where(std::size_t position) const {
        const auto before = text_.substr(0, position > 0 ? position - 1 : 0);
        const auto lines = std::ranges::count(before, '\n');
        const auto line_start = lines > 0 ? before.rfind('\n') + 1 : 0;
        return fmt::format("line {}, column {}", lines + 1, before.size() - line_start + 1);
    }

    /// What the reader says, without its own name, position and the text read, which may be long.
    static std::string reason(std::string_view what) {
        if (const auto start = what.find(" - "); start != std::string_view::npos)
            what.remove_prefix(start + 3);
        else if (const auto name_end = what.find("] "); name_end != std::string_view::npos)
            what.remove_prefix(name_end + 2);
        const std::string reason(what.substr(0, what.find("; last read: ")));
        constexpr std::size_t most = 120;
        return reason.size() <= most ? reason : reason.substr(0, most) + "...";
    }

    [[nodiscard]] std::string remedy(std::size_t position) const {
        const char stopped = position > 0 && position <= text_.size() ? text_[position - 1] : '\0';
        auto before = text_.substr(0, position > 0 ? position - 1 : 0);
        before = before.substr(0, before.find_last_not_of(" \t\r\n") + 1);
        if (stopped == '/' || stopped == '#' || before.ends_with('/'))
            return "JSON has no comments: remove it";
        if ((stopped == '}' || stopped == ']') && before.ends_with(','))
            return fmt::format("remove the comma before {}", stopped);
        return "check the commas, quotes and brackets just before this place";
    }

    std::string_view text_;
    std::string_view file_;
    std::vector<json *> open_; ///< lists and objects not yet closed, outermost first
    std::string key_;          ///< of the member whose value comes next
};

} // namespace

Result<json> read_json(std::string_view text, std::string_view file) {
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
        return std::unexpected(config_error(file, {.place = "",
                                                   .found = "an empty file",
                                                   .allowed = "a JSON object",
                                                   .hint = R"(begin with {"ports": [{"name": "eth1"}]})"}));
    if (const auto zero = text.find('\0'); zero != std::string_view::npos) // the parser would stop there
        return std::unexpected(config_error(file, {.place = "",
                                                   .found = fmt::format("a zero byte at byte {}", zero),
                                                   .allowed = "a JSON object",
                                                   .hint = "is this a text file, whole and in UTF-8?"}));
    Builder builder(text, file);
    json::sax_parse(text, &builder);
    if (builder.error)
        return std::unexpected(*std::move(builder.error));
    return std::move(builder.document);
}

} // namespace spillway
