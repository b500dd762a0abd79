#include "tests/lab/run.h"
#include <algorithm>
#include <fmt/format.h>
using namespace spillway::lab;
int main(int argc, char **argv) {
    catch_interrupts();
    for (const Scenario &s : scenarios()) {
        if (argc > 1 && s.id != argv[1])
            continue;
        Laboratory lab(s);
        fmt::print("{} reaction {} us headroom {}\n", s.id, lab.reaction_ns() / 1000,
                   lab.headroom(*lab.topology().ports()[0]));
        for (Scheme scheme : schemes) {
            if (argc > 2 && id_of(scheme) != argv[2])
                continue;
            RunResult r = lab.run(scheme);
            fmt::print("== {}\n", title_of(scheme));
            for (auto &v : r.victims)
                fmt::print("victim {} p50 {:.3f} p99 {:.3f} max {:.3f} sent {} lost {} late {}\n", v.name,
                           v.p50_ms, v.p99_ms, v.max_ms, v.sent, v.lost, v.late);
            for (auto &v : r.elephants)
                fmt::print("elephant {} {:.2f} lost {} late {} blocked {} retr {}\n", v.name, v.mbit, v.lost,
                           v.late, v.blocked, v.retransmits);
            fmt::print("dropped {} vanished {} overshoot {} cips {} victims marked {} frames {}\n", r.dropped,
                       r.vanished, r.overshoot, r.cips, r.victims_marked, r.frames.size());
            for (auto &m : r.marks)
                fmt::print("mark {} {} {} at {:.3f} released {:.3f}\n", m.node->name, m.port,
                           m.destination_port, (double)(m.marked_ns - r.start_ns) / 1e9,
                           m.released_ns ? (double)(*m.released_ns - r.start_ns) / 1e9 : -1.0);
            for (auto &p : lab.topology().ports())
                for (Priority pr : priorities)
                    if (double s2 = r.paused(*p, pr); s2 > 0) {
                        auto n = std::ranges::count_if(
                            r.pauses, [&](auto &i) { return i.port == p.get() && i.priority == pr; });
                        fmt::print("paused {} {} {} times {:.3f} s\n", p->label(), to_string(pr), n, s2);
                    }
            auto st = [](std::vector<uint64_t> v) {
                std::ranges::sort(v);
                if (v.empty())
                    return std::string("-");
                return fmt::format("p50 {} max {} us", v[v.size() / 2] / 1000, v.back() / 1000);
            };
            fmt::print("frame->gate {}  crossing->gate {}\n", st(r.frame_to_gate_ns),
                       st(r.crossing_to_gate_ns));
            fflush(stdout);
        }
    }
}
