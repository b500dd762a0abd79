// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/instance.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <thread>

namespace spillway {
namespace {

constexpr const char *bpffs = "/sys/fs/bpf";
constexpr long bpffs_magic = 0xcafe4a11;

/// agent_running() holds a shared lock for an instant; an agent that starts just then must not give up.
constexpr int lock_attempts = 25;
constexpr std::chrono::milliseconds lock_pause{10};

bool is_bpffs() {
    struct statfs info {};
    return ::statfs(bpffs, &info) == 0 && static_cast<long>(info.f_type) == bpffs_magic;
}

/// Who holds the exclusive lock of `folder`, from /proc/locks: "1: FLOCK ADVISORY WRITE 4711 00:1c:20 0 EOF".
std::optional<int> lock_holder(const struct stat &folder) {
    const std::string file =
        fmt::format("{:02x}:{:02x}:{}", major(folder.st_dev), minor(folder.st_dev), folder.st_ino);
    std::ifstream locks("/proc/locks");
    std::string number;
    std::string kind;
    std::string advisory;
    std::string access;
    std::string where;
    std::string rest;
    int pid = 0;
    while (locks >> number >> kind >> advisory >> access >> pid >> where && std::getline(locks, rest)) {
        if (kind == "FLOCK" && access == "WRITE" && where == file && pid > 0)
            return pid;
    }
    return std::nullopt;
}

Fd open_folder(const std::filesystem::path &path) {
    return Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

Result<> make_folder(const std::filesystem::path &path) {
    if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST)
        return {};
    const int number = errno;
    return fail({.operation = "make folder",
                 .object = path,
                 .number = number,
                 .hint = number == EACCES || number == EPERM
                             ? std::string(privilege_hint)
                             : "is a BPF file system mounted on /sys/fs/bpf, and writable?"});
}

Result<> make_folders(std::initializer_list<std::filesystem::path> paths) {
    for (const auto &path : paths) {
        if (auto made = make_folder(path); !made)
            return made;
    }
    return {};
}

/// False when the folder was deleted (and perhaps made again) since it was opened.
bool still_there(const Fd &folder, const std::filesystem::path &path) {
    struct stat opened {};
    struct stat found {};
    return ::fstat(folder.get(), &opened) == 0 && ::stat(path.c_str(), &found) == 0 &&
           opened.st_dev == found.st_dev && opened.st_ino == found.st_ino;
}

} // namespace

Result<> valid_instance(std::string_view name) {
    const auto allowed = [](char c) {
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '-';
    };
    if (!name.empty() && name.size() <= 32 && std::ranges::all_of(name, allowed))
        return {};
    return fail({.operation = fmt::format("'{}' is no name of an instance", name),
                 .hint = "1 to 32 letters, digits, '_' and '-'",
                 .kind = ErrorKind::usage});
}

Paths::Paths(std::string_view name)
    : instance(name), root(std::filesystem::path(bpffs) / "spillway" / name), maps(root / "maps"),
      links(root / "links"), progs(root / "progs") {}

Result<> ensure_bpffs() {
    if (is_bpffs() || ::mount("bpf", bpffs, "bpf", 0, "mode=0700") == 0)
        return {};
    return fail({.operation = "mount the BPF file system",
                 .object = bpffs,
                 .number = errno,
                 .hint = fmt::format("mount it yourself: mount -t bpf bpf {}", bpffs)});
}

bool agent_running(const Paths &paths) {
    const Fd folder = open_folder(paths.root);
    return folder && ::flock(folder.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

Result<Fd> claim_name(const Paths &paths) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = "spillway/" + paths.instance;
    name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1); // a zero first: abstract
    Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (socket && ::bind(socket.get(), reinterpret_cast<const sockaddr *>(&address), length) == 0)
        return socket;
    if (errno != EADDRINUSE)
        return fail({.operation = "claim the name of instance", .object = paths.instance, .number = errno});
    return fail(
        {.operation =
             fmt::format("an agent of instance {} is running in this network namespace", paths.instance),
         .hint = "stop it first, or give this one another name with --instance NAME; ip netns exec hides it "
                 "from the other commands: use --netns"});
}

Result<Fd> lock_instance(const Paths &paths) {
    int number = 0;
    for (int attempt = 0; attempt < lock_attempts; attempt++) {
        if (attempt > 0)
            std::this_thread::sleep_for(lock_pause);
        if (auto made = make_folders({paths.root.parent_path(), paths.root}); !made)
            return fail(made.error());
        Fd folder = open_folder(paths.root);
        if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) {
            if (!still_there(folder, paths.root))
                continue;
            if (auto made = make_folders({paths.maps, paths.links, paths.progs}); !made)
                return fail(made.error());
            return folder;
        }
        number = errno;
    }
    if (number != EWOULDBLOCK)
        return fail({.operation = "lock", .object = paths.root, .number = number});
    struct stat found {};
    std::string detail = fmt::format("an agent of instance {} is running", paths.instance);
    if (::stat(paths.root.c_str(), &found) == 0) {
        if (const auto pid = lock_holder(found))
            detail += fmt::format(" (pid {})", *pid);
    }
    return fail(
        {.operation = detail, .hint = "stop it first, or give this one another name with --instance NAME"});
}

} // namespace spillway
