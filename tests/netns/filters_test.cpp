// SPDX-License-Identifier: Apache-2.0
/// TC programs as filters of clsact, as on kernels that have no tcx.
#include "agent/core/fd.h"
#include "agent/kernel/features.h"
#include "agent/kernel/filters.h"
#include "agent/kernel/tcx.h"
#include "tests/bpf_program.h"
#include "tests/netns/fixture.h"

#include <bpf/bpf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <optional>
#include <stdexcept>

namespace spillway {
namespace {

using lab::Namespace;
using lab::run;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

template <class T>
T value_of(Result<T> result) {
    if (!result)
        throw std::runtime_error(result.error().text());
    return std::move(*result);
}

constexpr int next_program = -1; // TC_ACT_UNSPEC

class Filters : public testing::Test {
  protected:
    Filters() {
        ns.ip("link add p0 type veth peer name p1");
        ns.call([this] {
            ifindex = static_cast<int>(::if_nametoindex("p0"));
            netlink.emplace(value_of(Netlink::open()));
        });
    }

    Result<> ensure(Hook hook, const Fd &program, std::string_view instance = "default") {
        Result<> done;
        ns.call([&] { done = ensure_filter(*netlink, instance, "p0", ifindex, hook, program.get()); });
        return done;
    }
    void attach(std::string_view instance = "default") {
        for (const Hook hook : {Hook::egress, Hook::ingress}) {
            const auto done = ensure(hook, first, instance);
            ASSERT_TRUE(done) << done.error().text();
        }
    }
    void remove(std::string_view instance = "default") {
        ns.call([&] { remove_filters(*netlink, instance, ifindex); });
    }
    std::vector<std::string> programs(Hook hook) {
        std::vector<std::string> names;
        for (const TcFilter &filter : value_of(netlink->filters(ifindex, clsact_hook(hook))))
            names.push_back(filter.kind == "bpf" ? filter.program.substr(0, filter.program.find(':'))
                                                 : filter.kind);
        return names;
    }
    std::string qdiscs() { return run(ns, {"tc", "qdisc", "show", "dev", "p0"}).out; }

    Namespace ns{"filters"};
    int ifindex = 0;
    std::optional<Netlink> netlink;
    Fd first = make_program(BPF_PROG_TYPE_SCHED_CLS, "first", next_program);
    Fd second = make_program(BPF_PROG_TYPE_SCHED_CLS, "second", next_program);
};

TEST_F(Filters, AClsactOfOursGoesWithThem) {
    attach();
    EXPECT_THAT(programs(Hook::egress), ElementsAre("first"));
    EXPECT_THAT(programs(Hook::ingress), ElementsAre("first"));
    EXPECT_THAT(qdiscs(), HasSubstr("clsact"));
    remove();
    EXPECT_THAT(qdiscs(), Not(HasSubstr("clsact")));
    remove(); // nothing is there
}

TEST_F(Filters, ANewProgramTakesTheOldOnesPlace) {
    attach();
    ASSERT_TRUE(ensure(Hook::egress, second));
    EXPECT_THAT(programs(Hook::egress), ElementsAre("second"));
    EXPECT_THAT(programs(Hook::ingress), ElementsAre("first"));
    remove();
    EXPECT_THAT(qdiscs(), Not(HasSubstr("clsact"))) << "it is still ours";
}

TEST_F(Filters, AClsactOfOthersStays) {
    ns.tc("qdisc add dev p0 clsact");
    attach();
    remove();
    EXPECT_THAT(programs(Hook::egress), IsEmpty());
    EXPECT_THAT(qdiscs(), HasSubstr("clsact"));
}

TEST_F(Filters, FiltersOfOthersStayAndKeepOurClsact) {
    attach();
    ns.tc("filter add dev p0 egress protocol ip prio 5 u32 match u32 0 0 flowid 1:1");
    remove();
    EXPECT_THAT(qdiscs(), HasSubstr("clsact"));
    EXPECT_THAT(programs(Hook::egress), testing::Each("u32"));
    EXPECT_THAT(programs(Hook::egress), Not(IsEmpty()));
    EXPECT_THAT(programs(Hook::ingress), IsEmpty());
}

TEST_F(Filters, InstancesDoNotTouchEachOther) {
    attach("one");
    attach("two");
    EXPECT_THAT(programs(Hook::egress), ElementsAre("first", "first"));
    remove("one");
    EXPECT_THAT(programs(Hook::egress), ElementsAre("first"));
    remove("two");
    EXPECT_THAT(programs(Hook::egress), IsEmpty());
}

TEST_F(Filters, TakenPriorityIsToldWithTheRemedy) {
    ns.tc("qdisc add dev p0 clsact");
    ns.tc("filter add dev p0 egress protocol all prio 1 u32 match u32 0 0 flowid 1:1");
    const auto refused = ensure(Hook::egress, first);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().text(), HasSubstr("attach filter: p0: Invalid argument"));
    EXPECT_THAT(refused.error().hint, HasSubstr("tc filter show dev p0 egress"));
    EXPECT_THAT(programs(Hook::egress), testing::Each("u32"));
}

TEST_F(Filters, PortThatIsGone) {
    ns.ip("link del p0");
    EXPECT_FALSE(ensure(Hook::egress, first));
    remove();
}

TEST(FilterHandle, SaysWhoMadeTheClsactAndIsNeverZero) {
    for (const std::string_view instance : {"default", "a", "lab"}) {
        EXPECT_EQ(filter_handle(instance, true) & 1U, 1U);
        EXPECT_EQ(filter_handle(instance, true), filter_handle(instance, false) | 1U);
        EXPECT_NE(filter_handle(instance, false), 0U);
    }
    EXPECT_NE(filter_handle("a", true), filter_handle("b", true));
}

TEST(Features, AreProbedOnTheKernelItself) {
    const Fd program = make_program(BPF_PROG_TYPE_SCHED_CLS, "probe", next_program);
    EXPECT_FALSE(has_kernel_function("spillway_no_such_function"));
    EXPECT_TRUE(has_kernel_function("dev_queue_xmit") || has_kernel_function("__dev_queue_xmit"));
    // A link is possible if and only if the probe says so.
    const Namespace ns("probe");
    ns.ip("link add p0 type veth peer name p1");
    ns.call([&] {
        const Fd link(
            bpf_link_create(program.get(), static_cast<int>(::if_nametoindex("p0")), tcx_egress, nullptr));
        EXPECT_EQ(has_tcx(program.get()), static_cast<bool>(link));
    });
}

} // namespace
} // namespace spillway
