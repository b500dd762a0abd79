// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/occupancy.h"

#include "agent/kernel/tcx.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <lab_occupancy_bpf.skel.h>
#include <stdexcept>
#include <sys/mman.h>

namespace spillway::lab {

namespace {

constexpr std::size_t slot_count = std::size_t{LAB_PORTS} * LAB_PRIORITIES;

std::size_t slot_of(const Port &port, Priority priority) {
    return std::size_t{port.number} * LAB_PRIORITIES + static_cast<std::size_t>(priority);
}

[[noreturn]] void give_up(const std::string &what) {
    const int number = errno;
    throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(number)));
}

} // namespace

void Occupancy::CloseSkeleton::operator()(lab_occupancy_bpf *skeleton) const {
    lab_occupancy_bpf::destroy(skeleton);
}

void Occupancy::FreeRing::operator()(ring_buffer *ring) const {
    ring_buffer__free(ring);
}

Occupancy::Occupancy(const Topology &topology) : skeleton_(lab_occupancy_bpf::open_and_load()) {
    if (!skeleton_)
        give_up("load the program that counts what waits");
    for (const auto &port : topology.ports()) {
        port->node->ns->call([&] {
            Fd attached(bpf_link_create(bpf_program__fd(skeleton_->progs.lab_arrive), port->ifindex,
                                        tcx_ingress, nullptr));
            if (!attached)
                give_up(fmt::format("attach to {}", port->label()));
            links_.push_back(std::move(attached));
        });
    }
    void *start = ::mmap(nullptr, slot_count * sizeof(lab_occupancy), PROT_READ | PROT_WRITE, MAP_SHARED,
                         bpf_map__fd(skeleton_->maps.occupancy), 0);
    if (start == MAP_FAILED)
        give_up("map what waits");
    slots_ = static_cast<lab_occupancy *>(start);
    const auto deliver = [](void *self, void *data, std::size_t) {
        lab_crossing crossing{};
        std::memcpy(&crossing, data, sizeof crossing);
        static_cast<Occupancy *>(self)->handle_(crossing);
        return 0;
    };
    ring_.reset(ring_buffer__new(bpf_map__fd(skeleton_->maps.crossings), deliver, this, nullptr));
    if (!ring_)
        give_up("open the ring of crossings");
}

Occupancy::~Occupancy() {
    if (slots_ != nullptr)
        ::munmap(slots_, slot_count * sizeof(lab_occupancy));
}

void Occupancy::begin(const Port &port, std::uint64_t xoff, std::uint64_t xon) {
    for (const Priority priority : priorities) {
        volatile lab_occupancy &slot = of(port, priority);
        slot.bytes = 0;
        slot.peak = 0;
        slot.pausing = 0;
        slot.xon = xon;
        slot.xoff = xoff;
    }
}

volatile lab_occupancy &Occupancy::of(const Port &port, Priority priority) {
    return slots_[slot_of(port, priority)];
}

int Occupancy::crossings_fd() const {
    return ring_buffer__epoll_fd(ring_.get());
}

void Occupancy::take_crossings(const std::function<void(const lab_crossing &)> &handle) {
    handle_ = handle;
    ring_buffer__consume(ring_.get());
}

} // namespace spillway::lab
