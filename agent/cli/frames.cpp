// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/frames.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <pcap/pcap.h>
#include <span>
#include <sstream>

namespace spillway {
namespace {

constexpr std::size_t most_bytes = std::size_t{64} << 20;

Error unreadable(const std::string &name, std::string detail, std::string hint) {
    return {.operation = "read frames",
            .object = name,
            .detail = std::move(detail),
            .hint = std::move(hint),
            .kind = ErrorKind::usage};
}

Result<std::string> read_all(std::FILE *file, const std::string &name) {
    std::string content;
    std::array<char, 65536> part{};
    while (const std::size_t got = std::fread(part.data(), 1, part.size(), file)) {
        content.append(part.data(), got);
        if (content.size() > most_bytes)
            return fail(unreadable(name, fmt::format("more than {} MiB", most_bytes >> 20),
                                   "cut the capture: tcpdump -r FILE -w SMALLER ether proto 0x8809"));
    }
    if (std::ferror(file) != 0)
        return fail({.operation = "read frames",
                     .object = name,
                     .number = errno,
                     .hint = "name a capture file or a text of hexadecimal digits",
                     .kind = ErrorKind::usage});
    return content;
}

bool is_capture(std::string_view content) {
    // pcap in either byte order, with micro- or nanoseconds, and pcapng.
    static constexpr std::array<std::string_view, 5> magics{
        "\xa1\xb2\xc3\xd4", "\xd4\xc3\xb2\xa1", "\xa1\xb2\x3c\x4d", "\x4d\x3c\xb2\xa1", "\x0a\x0d\x0d\x0a"};
    return std::ranges::any_of(magics,
                               [content](std::string_view magic) { return content.starts_with(magic); });
}

std::string link_type(pcap_t *pcap) {
    const char *name = pcap_datalink_val_to_name(pcap_datalink(pcap));
    return name != nullptr ? std::string(name) : fmt::format("{}", pcap_datalink(pcap));
}

Result<std::vector<InputFrame>> read_capture(std::string &content, const std::string &name) {
    struct Close {
        void operator()(pcap_t *pcap) const { pcap_close(pcap); }
    };
    std::array<char, PCAP_ERRBUF_SIZE> why{};
    std::FILE *memory = ::fmemopen(content.data(), content.size(), "r");
    if (memory == nullptr)
        return fail({.operation = "read frames", .object = name, .number = errno});
    const std::unique_ptr<pcap_t, Close> pcap(pcap_fopen_offline(memory, why.data())); // closes it
    if (!pcap) {
        std::fclose(memory);
        return fail(unreadable(name, why.data(), "is the file cut off?"));
    }
    if (pcap_datalink(pcap.get()) != DLT_EN10MB)
        return fail(unreadable(name, fmt::format("its link type is {}", link_type(pcap.get())),
                               "capture on an Ethernet port: tcpdump -i PORT -w FILE ether proto 0x8809"));
    std::vector<InputFrame> frames;
    pcap_pkthdr *header = nullptr;
    const u_char *bytes = nullptr;
    int got = 0;
    while ((got = pcap_next_ex(pcap.get(), &header, &bytes)) == 1)
        frames.push_back({fmt::format("frame {}", frames.size() + 1), {bytes, bytes + header->caplen}});
    if (got == PCAP_ERROR)
        return fail(unreadable(name,
                               fmt::format("after frame {}: {}", frames.size(), pcap_geterr(pcap.get())),
                               "is the file cut off?"));
    return frames;
}

std::optional<std::uint8_t> digit(char c) {
    static constexpr std::string_view digits = "0123456789abcdef";
    const auto at = digits.find(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    return at == std::string_view::npos ? std::nullopt : std::optional(static_cast<std::uint8_t>(at));
}

Result<std::vector<InputFrame>> read_hex(const std::string &content, const std::string &name) {
    std::vector<InputFrame> frames;
    std::istringstream stream(content);
    std::size_t number = 0;
    for (std::string line; std::getline(stream, line);) {
        number++;
        std::vector<std::uint8_t> digits;
        for (std::size_t i = 0; i < line.size() && line[i] != '#'; i++) {
            const char c = line[i];
            if (std::isspace(static_cast<unsigned char>(c)) != 0 || c == ':')
                continue;
            if (digits.size() % 2 == 0 && (line.compare(i, 2, "0x") == 0 || line.compare(i, 2, "0X") == 0)) {
                i++;
                continue;
            }
            const auto value = digit(c);
            if (!value)
                return fail(unreadable(
                    name, fmt::format("line {}, column {}: '{}' is no hexadecimal digit", number, i + 1, c),
                    "give a capture file, or the bytes of one frame on each line"));
            digits.push_back(*value);
        }
        if (digits.size() % 2 != 0)
            return fail(unreadable(name, fmt::format("line {}: an odd number of digits", number),
                                   "a byte has two digits"));
        std::vector<std::uint8_t> bytes;
        for (std::size_t i = 0; i < digits.size(); i += 2)
            bytes.push_back(static_cast<std::uint8_t>(digits[i] << 4U | digits[i + 1]));
        if (!bytes.empty())
            frames.push_back({fmt::format("line {}", number), std::move(bytes)});
    }
    return frames;
}

} // namespace

Result<std::vector<InputFrame>> read_frames(std::FILE *file, const std::string &name) {
    auto content = read_all(file, name);
    if (!content)
        return fail(content.error());
    return is_capture(*content) ? read_capture(*content, name) : read_hex(*content, name);
}

} // namespace spillway
