// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/commands.h"
#include "agent/cli/flow_json.h"
#include "agent/cli/frames.h"
#include "agent/cli/views.h"
#include "agent/core/flow_text.h"

#include <spillway/cip.h>

#include <cerrno>
#include <fmt/format.h>
#include <iostream>
#include <memory>
#include <span>

namespace spillway {
namespace {

using Bytes = std::span<const std::uint8_t>;

/// Where a CIP lies in what was handed in.
struct Carrier {
    Bytes payload;
    std::size_t offset = 0; ///< of the payload
    std::optional<std::string> source;
    std::optional<std::string> destination;
    std::optional<unsigned> vlan;
};

/// A frame that a node takes: of the CIPs' EtherType, to one station, behind one tag at most. Or a payload
/// alone. None: it is no CIP.
std::optional<Carrier> find_cip(Bytes bytes, std::uint16_t ethertype) {
    const auto word = [&bytes](std::size_t i) {
        return static_cast<unsigned>(bytes[i] << 8U | bytes[i + 1]);
    };
    std::size_t at = 12;
    std::optional<unsigned> vlan;
    if (at + 6 <= bytes.size() && (word(at) == SPILLWAY_ETH_P_8021Q || word(at) == SPILLWAY_ETH_P_8021AD)) {
        vlan = word(at + 2) & 0xfffU;
        at += 4;
    }
    if (at + 2 < bytes.size() && word(at) == ethertype) {
        Carrier carrier{.payload = bytes.subspan(at + 2),
                        .offset = at + 2,
                        .source = mac_text(bytes.subspan(6, 6)),
                        .destination = mac_text(bytes.first(6)),
                        .vlan = vlan};
        const bool group = (bytes[0] & 1U) != 0;
        return !group && spillway_cip_is_ours(carrier.payload[0]) != 0 ? std::optional(carrier)
                                                                       : std::nullopt;
    }
    if (!bytes.empty() && spillway_cip_is_ours(bytes[0]) != 0)
        return Carrier{.payload = bytes, .offset = 0, .source = {}, .destination = {}, .vlan = {}};
    return std::nullopt;
}

spillway_reason read(Bytes payload, const std::vector<std::uint16_t> &vxlan_ports, spillway_cip &cip) {
    spillway_tunnels tunnels{};
    std::copy_n(vxlan_ports.begin(), std::min<std::size_t>(vxlan_ports.size(), SPILLWAY_VXLAN_PORTS_MAX),
                std::begin(tunnels.vxlan_ports));
    cip = {};
    return spillway_cip_read(payload.data(), payload.data() + payload.size(), &tunnels, &cip);
}

/// The byte that decides: of headers the first one with which they cannot become a CIP any more, of a
/// descriptor that of the field.
std::size_t deciding_byte(Bytes payload, const std::vector<std::uint16_t> &vxlan_ports,
                          spillway_reason reason) {
    if (payload[0] == SPILLWAY_CIP_DESCRIPTOR && reason != SPILLWAY_TOO_SHORT)
        switch (reason) {
        case SPILLWAY_BAD_TYPE:
            return 1;
        case SPILLWAY_BAD_FAMILY:
            return 2;
        case SPILLWAY_BAD_FLAGS:
            return 4;
        default: // the VNI, or what follows an IPv4 address
            return payload[8] != 0 ? 8 : 16;
        }
    spillway_cip cip{};
    for (std::size_t length = 1; length <= payload.size(); length++)
        if (read(payload.first(length), vxlan_ports, cip) != SPILLWAY_TOO_SHORT)
            return length - 1;
    return payload.size();
}

nlohmann::ordered_json to_json(const InputFrame &frame, const Carrier &carrier, const spillway_cip &cip) {
    using json = nlohmann::ordered_json;
    const bool descriptor = carrier.payload[0] == SPILLWAY_CIP_DESCRIPTOR;
    json object{{"frame", frame.place},
                {"form", descriptor ? "descriptor" : "headers"},
                {"type", cip.type == SPILLWAY_CIP_RESTORE ? "restore" : "isolate"}};
    object.update(flow_key_json(cip.key));
    object.update({{"lifetime_ms", descriptor ? json(cip.lifetime_ms) : json(nullptr)},
                   {"sequence", descriptor ? json(cip.sequence) : json(nullptr)},
                   {"from", or_null(carrier.source)},
                   {"to", or_null(carrier.destination)},
                   {"vlan", or_null(carrier.vlan)}});
    return object;
}

std::string to_text(const InputFrame &frame, const Carrier &carrier, const spillway_cip &cip) {
    std::string text =
        fmt::format("{}: {} {}", frame.place, cip.type == SPILLWAY_CIP_RESTORE ? "restore" : "isolate",
                    flow_text(cip.key));
    if (carrier.payload[0] == SPILLWAY_CIP_DESCRIPTOR)
        text +=
            fmt::format(", descriptor, lifetime {}, sequence {}",
                        cip.lifetime_ms != 0 ? fmt::format("{} ms", cip.lifetime_ms) : "the receiver's own",
                        cip.sequence);
    else
        text += ", headers";
    if (carrier.source)
        text += fmt::format(", from {} to {}", *carrier.source, *carrier.destination);
    if (carrier.vlan)
        text += fmt::format(", VLAN {}", *carrier.vlan);
    return text;
}

} // namespace

std::vector<Error> run_cip_decode(const CipDecodeOptions &options) {
    const bool standard_input = options.file == "-";
    struct Close {
        void operator()(std::FILE *file) const { std::fclose(file); }
    };
    std::unique_ptr<std::FILE, Close> opened;
    if (!standard_input) {
        opened.reset(std::fopen(options.file.c_str(), "rbe"));
        if (!opened)
            return {{.operation = "read frames",
                     .object = options.file,
                     .number = errno,
                     .hint = "name a capture file or a text of hexadecimal digits, or - for standard input",
                     .kind = ErrorKind::usage}};
    }
    const auto frames =
        read_frames(standard_input ? stdin : opened.get(), standard_input ? "standard input" : options.file);
    if (!frames)
        return {frames.error()};
    std::vector<Error> problems;
    std::size_t found = 0;
    for (const InputFrame &frame : *frames) {
        const auto carrier = find_cip(frame.bytes, options.ethertype);
        if (!carrier)
            continue;
        found++;
        spillway_cip cip{};
        const spillway_reason reason = read(carrier->payload, options.vxlan_ports, cip);
        if (reason != SPILLWAY_OK) {
            problems.push_back(
                {.operation = frame.place,
                 .detail = fmt::format("no CIP: {} at byte {}", reason_name(reason),
                                       carrier->offset +
                                           deciding_byte(carrier->payload, options.vxlan_ports, reason)),
                 .hint = "`man spillway` explains the reasons"});
            continue;
        }
        if (options.json)
            std::cout << to_json(frame, *carrier, cip).dump() << "\n";
        else
            std::cout << to_text(frame, *carrier, cip) << "\n";
    }
    const std::string name = standard_input ? "standard input" : options.file;
    if (frames->empty())
        problems.push_back({.operation = "decode",
                            .object = name,
                            .detail = "there are no frames in it",
                            .hint = "capture some: tcpdump -i PORT -w FILE ether proto 0x8809"});
    else if (found == 0)
        problems.push_back({.operation = "decode",
                            .object = name,
                            .detail = fmt::format("none of {} frames is a CIP of EtherType 0x{:04X}",
                                                  frames->size(), options.ethertype),
                            .hint = "--ethertype names another one"});
    return problems;
}

} // namespace spillway
