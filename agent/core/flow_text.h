// SPDX-License-Identifier: Apache-2.0
/// A flow as people write it: `PROTO SRC[:PORT] DST[:PORT] [vni N]`, an IPv6 address with a port in brackets.
///
///     udp 10.0.0.1:5000 10.0.0.2:6000
///     tcp [fd00::1]:5000 [fd00::2]:80
///     icmp 10.0.0.1 10.0.0.2             a 3-tuple
///     udp 10.0.0.1 10.0.0.2              a 3-tuple: fragments, which show no ports
///     tcp 10.0.0.1:5000 10.0.0.2:80 vni 7 inside a VXLAN tunnel
#pragma once

#include "agent/core/result.h"

#include <spillway/flow_key.h>

#include <cstdint>
#include <span>
#include <string>

namespace spillway {

/// Reads a flow from its words; an argument may hold several, so that a quoted flow is taken too. The key's
/// port is 0. Errors are of kind usage.
[[nodiscard]] Result<spillway_flow_key> parse_flow(std::span<const std::string> arguments);

/// What parse_flow() reads. The key's port is not part of it.
[[nodiscard]] std::string flow_text(const spillway_flow_key &key);

/// The name of an IP protocol ("udp"), or its number where it has none here.
[[nodiscard]] std::string proto_text(std::uint8_t proto);

/// An address of the family 4 or 6, in its usual form.
[[nodiscard]] std::string address_text(std::uint8_t family, const std::uint8_t (&address)[16]);

} // namespace spillway
