# Flags that every target of this project shares, and the two ways a target is declared.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(GRAFT_CCACHE ccache)
if(GRAFT_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER "${GRAFT_CCACHE}")
endif()

add_library(graft_flags INTERFACE)
target_include_directories(graft_flags INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_definitions(graft_flags INTERFACE _GNU_SOURCE GRAFT_VERSION="${PROJECT_VERSION}")
# Contraction is decided in the source (explicit FMA), never by the compiler: results must not depend
# on which loop of a function an element falls into.
target_compile_options(graft_flags INTERFACE
  -ffp-contract=off -fno-strict-aliasing -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef
  -Wcast-qual -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wwrite-strings -Wformat=2
  -Wdouble-promotion -Wimplicit-fallthrough -Wnull-dereference)
if(GRAFT_WERROR)
  target_compile_options(graft_flags INTERFACE -Werror)
endif()
if(GRAFT_SANITIZE)
  target_compile_options(graft_flags INTERFACE
    -fsanitize=${GRAFT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(graft_flags INTERFACE -fsanitize=${GRAFT_SANITIZE})
endif()
if(GRAFT_FUZZ)
  target_compile_options(graft_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Coverage")
  target_compile_options(graft_flags INTERFACE -O0 --coverage)
  target_link_options(graft_flags INTERFACE --coverage)
endif()

# graft_library(NAME SOURCES a.c ... DEPS lib ...): one folder's static library.
function(graft_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC graft_flags ${ARG_DEPS})
endfunction()

# graft_test(NAME SOURCES a.c ... DEPS lib ... [LABELS x] [TIMEOUT s]): one cmocka program.
# It runs in the source tree's root, so that tests/golden/... opens as written.
function(graft_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE graft_flags ${ARG_DEPS} graft_test_support)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

# graft_fuzz(NAME SOURCES a.c DEPS lib ...): one libFuzzer target; built with GRAFT_FUZZ only.
function(graft_fuzz name)
  if(GRAFT_FUZZ)
    cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE graft_flags ${ARG_DEPS})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endif()
endfunction()
