// SPDX-License-Identifier: Apache-2.0
/// CIPs that get lost on the way.
#include "tests/netns/lacking.h"
#include "tests/netns/scenario.h"

namespace {

using namespace spillway::lab;
using nlohmann::json;

// Must show 3 (B1): with 30 % of the CIPs lost on a forwarding node without an agent, which stands between
// the two, the upstream node isolates within a second in 20 of 20 tries.
TEST(LostCips, AreMadeGood) {
    const Chain chain(2, {.bridged = {1}});
    SPILLWAY_MAKE_OR_SKIP(chain.node(1), "tc qdisc add dev eth0 root netem limit 1000 loss 30%");
    setup(chain.node(2), "eth1", "200mbit");
    setup(chain.host(), "eth1", "1gbit");
    const Agent node(chain.node(2), configuration(ways[0], {"eth1"}, {"eth0"}));
    const Agent host(chain.host(), configuration(ways[0], {"eth1"}));
    Capture sent(chain.node(1), "eth1", {.ethertype = 0x8809});
    Capture arrived(chain.host(), "eth1", {.ethertype = 0x8809});
    Traffic sink(chain.receiver(), "sink --port 6000");
    for (int round = 0; round < 20; round++) {
        SCOPED_TRACE(round);
        Traffic flood(chain.host(),
                      fmt::format("flood --to {} --port 6000 --from-port {} --mbit 300 --seconds 20",
                                  chain.receiver_address(), 5000 + round));
        ASSERT_TRUE(eventually(3, [&] { return node.flows().size() == 1; })) << node.status().dump(1);
        EXPECT_TRUE(eventually(1, [&] { return host.flows().size() == 1; })) << node.flows().dump(1);
        flood.stop();
        ASSERT_TRUE(eventually(10, [&] { return node.flows().empty() && host.flows().empty(); }));
    }
    EXPECT_LT(arrived.frames().size(), sent.frames().size()) << "none was lost: nothing was tried";
}

} // namespace
