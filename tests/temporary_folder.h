// SPDX-License-Identifier: Apache-2.0
/// A folder for the files of a test; gone with the object.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace spillway {

class TemporaryFolder {
  public:
    /// `word`: for its name. Throws std::system_error when it cannot be made.
    explicit TemporaryFolder(const std::string &word) {
        constexpr std::size_t random_letters = 6; // mkdtemp() puts letters of its own for as many X
        std::string name = std::filesystem::temp_directory_path() / ("spillway-" + word + "-");
        name.append(random_letters, 'X');
        if (::mkdtemp(name.data()) == nullptr)
            throw std::system_error(errno, std::generic_category(), "make the folder " + name);
        path_ = name;
    }
    ~TemporaryFolder() {
        std::error_code ignored; // nothing depends on it
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder &) = delete;
    TemporaryFolder &operator=(const TemporaryFolder &) = delete;

    [[nodiscard]] const std::filesystem::path &path() const { return path_; }

  private:
    std::filesystem::path path_;
};

} // namespace spillway
