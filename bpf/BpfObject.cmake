# SPDX-License-Identifier: Apache-2.0
# bpf_object(NAME SOURCE...): compiles each SOURCE for BPF, links them into one object, and makes its skeleton.
# Gives the interface target NAME; link it and include "NAME.skel.h". An edited header rebuilds the skeleton,
# because clang's depfile tells which headers a source used.
find_program(CLANG NAMES clang REQUIRED)
find_program(BPFTOOL NAMES bpftool PATHS /usr/sbin /sbin REQUIRED)

# UAPI headers of the host's architecture (asm/types.h), where distributions keep them apart.
execute_process(COMMAND ${CMAKE_C_COMPILER} -print-multiarch OUTPUT_VARIABLE multiarch
                OUTPUT_STRIP_TRAILING_WHITESPACE)

function(bpf_object name)
  set(objects)
  foreach(source ${ARGN})
    get_filename_component(stem ${source} NAME_WE)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${stem}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CLANG} -target bpf -mcpu=v3 -O2 -g -std=gnu11 -Wall -Wextra -Werror
              -I${CMAKE_CURRENT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include -isystem /usr/include/${multiarch}
              -MD -MF ${object}.d -MT ${object} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
      DEPFILE ${object}.d
      COMMENT "Compiling ${source} for BPF"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(linked ${CMAKE_CURRENT_BINARY_DIR}/${name}.bpf.o)
  set(skeleton ${CMAKE_CURRENT_BINARY_DIR}/include/${name}.skel.h)
  add_custom_command(
    OUTPUT ${skeleton} ${linked}
    COMMAND ${BPFTOOL} gen object ${linked} ${objects}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/include
    COMMAND ${BPFTOOL} gen skeleton ${linked} name ${name} > ${skeleton}
    DEPENDS ${objects}
    COMMENT "Making the skeleton ${name}.skel.h"
    VERBATIM)
  add_custom_target(${name}_skeleton DEPENDS ${skeleton})
  add_library(${name} INTERFACE)
  add_dependencies(${name} ${name}_skeleton)
  target_include_directories(${name} SYSTEM INTERFACE ${CMAKE_CURRENT_BINARY_DIR}/include)
  target_link_libraries(${name} INTERFACE PkgConfig::LIBBPF)
endfunction()
