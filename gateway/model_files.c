// SPDX-License-Identifier: Apache-2.0
#include "gateway/model_files.h"
#include "base/buf.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TEMPLATE_BYTES = 4 << 20 };

static enum err read_text(const char *path, struct buf *out, struct err_info *info) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum err e = fd < 0 ? ERR_IO : buf_read(out, fd);
    if (e == ERR_IO)
        err_set(info, e, NULL, "%s", strerror(errno));
    else if (e)
        err_set(info, e, NULL, "it has more than %d bytes", MAX_TEMPLATE_BYTES);
    if (fd >= 0)
        close(fd);
    return e;
}

enum err model_files_template(const char *path, struct chat_template **out, struct err_info *info) {
    struct buf text;
    buf_init(&text, MAX_TEMPLATE_BYTES);
    enum err e = read_text(path, &text, info);
    if (!e)
        e = chat_template_parse(text.data ? text.data : "", text.len, out, info);
    if (e)
        err_prefix(info, "--chat-template %s", path);
    buf_fini(&text);
    return e;
}

// As mkdir -p does; what fails here shows as no cache.
static void make_folders(char *path) {
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(path, 0700);
            *p = '/';
        }
    (void)mkdir(path, 0700);
}

const char *model_files_cache(const char *option, char *buf, size_t cap) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool has_xdg = xdg && *xdg;
    if (option)
        return option;
    if (!has_xdg && !(home && *home))
        return NULL;
    int n = snprintf(buf, cap, "%s%s/graft", has_xdg ? xdg : home, has_xdg ? "" : "/.cache");
    if (n < 0 || (size_t)n >= cap)
        return NULL;
    make_folders(buf);
    return buf;
}
