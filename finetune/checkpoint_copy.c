// SPDX-License-Identifier: Apache-2.0
#include "base/diskio.h"
#include "base/durable.h"
#include "finetune/checkpoint_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Files that the manifest lists, then the manifest, then the marker; then all is compared.
static enum err copy_files(int from, int to, struct err_info *info) {
    const char *name;
    json_t *m, *v;
    enum err e = ft_manifest_read(from, &m, info);
    if (e)
        return e;
    json_object_foreach(json_object_get(m, "files"), name, v) {
        if (!e && strchr(name, '/'))
            e = err_set(info, ERR_FORMAT, NULL, "manifest.json lists a file of a folder below");
        if (!e)
            e = ft_file_copy(from, name, to, name, info);
        if (!e)
            e = ft_manifest_check(to, m, name, info);
    }
    json_decref(m);
    if (!e)
        e = ft_file_copy(from, "manifest.json", to, "manifest.json", info);
    if (!e)
        e = ft_file_copy(from, "COMPLETE", to, "COMPLETE", info);
    if (!e && !(e = ft_manifest_read(to, &m, info)))
        json_decref(m);
    return e;
}

static enum err copy_aside(int source, int to, const char *aside, struct err_info *info) {
    int fd;
    enum err e = ft__remove_folder(to, aside, info);
    if (!e && diskio_mkdir(to, aside, 0700))
        e = durable_errno(info, errno, "make", aside);
    if (!e)
        e = ft__open_folder(to, aside, &fd, info);
    if (e)
        return e;
    e = copy_files(source, fd, info);
    close(fd);
    return e;
}

enum err ft_checkpoint_copy(int from, int to, const char *name, struct err_info *info) {
    char aside[FT_CHECKPOINT_NAME + 1];
    int source;
    if (strlen(name) >= FT_CHECKPOINT_NAME || strchr(name, '/') || name[0] == '.')
        return err_set(info, ERR_INVALID, NULL, "'%.64s' is no name of a checkpoint", name);
    snprintf(aside, sizeof aside, ".%s", name);
    enum err e = ft__open_folder(from, name, &source, info);
    if (e)
        return e;
    e = copy_aside(source, to, aside, info);
    close(source);
    if (!e)
        return ft__publish(to, aside, name, info);
    (void)ft__remove_folder(to, aside, NULL);
    return e;
}
