# Target graft_llhttp: the system's libllhttp (Debian 13), or the C sources that the package
# node-llhttp installs (Debian 12, Ubuntu), compiled here.
find_path(LLHTTP_INCLUDE_DIR llhttp.h PATHS /usr/share/include/llhttp)
find_library(LLHTTP_LIBRARY llhttp)
if(LLHTTP_INCLUDE_DIR AND LLHTTP_LIBRARY)
  add_library(graft_llhttp INTERFACE)
  target_include_directories(graft_llhttp SYSTEM INTERFACE "${LLHTTP_INCLUDE_DIR}")
  target_link_libraries(graft_llhttp INTERFACE "${LLHTTP_LIBRARY}")
elseif(LLHTTP_INCLUDE_DIR AND EXISTS /usr/share/llhttp/llhttp.c)
  add_library(graft_llhttp STATIC
    /usr/share/llhttp/api.c /usr/share/llhttp/http.c /usr/share/llhttp/llhttp.c)
  target_include_directories(graft_llhttp SYSTEM PUBLIC "${LLHTTP_INCLUDE_DIR}")
  target_compile_options(graft_llhttp PRIVATE -w)
  # Version 8 compiles its lenient grammar unless told otherwise; version 9 is strict by itself.
  target_compile_definitions(graft_llhttp PUBLIC LLHTTP_STRICT_MODE=1)
else()
  message(FATAL_ERROR "llhttp not found: install libllhttp-dev or node-llhttp")
endif()
