// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/network_namespace.h"

#include "agent/core/fd.h"

#include <cerrno>
#include <fcntl.h>
#include <sched.h>

namespace spillway {

Result<> enter_network_namespace(const std::string &name) {
    const std::string object = "'" + name + "'";
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
        return fail({.operation = object + " is no name of a network namespace",
                     .hint = "give a name that ip netns list shows",
                     .kind = ErrorKind::usage});
    Fd space;
    for (const char *folder : {"/run/netns/", "/var/run/netns/"}) {
        space = Fd(::open((folder + name).c_str(), O_RDONLY | O_CLOEXEC));
        if (space || errno != ENOENT)
            break;
    }
    if (!space)
        return fail({.operation = "open network namespace",
                     .object = object,
                     .number = errno,
                     .hint = "ip netns list shows the namespaces there are"});
    if (::setns(space.get(), CLONE_NEWNET) == 0)
        return {};
    const int number = errno;
    return fail({.operation = "enter network namespace",
                 .object = object,
                 .number = number,
                 .hint = number == EPERM ? "run as root (with capability SYS_ADMIN)"
                                         : "it is gone; ip netns list shows the namespaces there are"});
}

} // namespace spillway
