// SPDX-License-Identifier: Apache-2.0
#include "finetune/home.h"
#include "base/hash.h"
#include "finetune/files.h"
#include "finetune/schema.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum err ft_id_make(const char *prefix, char out[FT_ID_MAX], struct err_info *info) {
    uint8_t random[12];
    char hex[2 * sizeof random + 1];
    if (random_bytes(random, sizeof random))
        return err_set(info, ERR_IO, NULL, "no random numbers");
    hex_encode(random, sizeof random, hex);
    snprintf(out, FT_ID_MAX, "%.12s%s", prefix, hex);
    return ERR_OK;
}

enum err ft_home_open(struct ft_home *h, const struct ft_home_config *cfg, struct err_info *info) {
    char path[sizeof h->path + 16];
    memset(h, 0, sizeof *h);
    h->dir = (struct data_dir){-1, -1};
    h->files = h->jobs = -1;
    h->clock = cfg->clock;
    h->log = cfg->log;
    h->max_file_bytes = cfg->max_file_bytes;
    if (strlen(cfg->path) >= sizeof h->path)
        return err_set(info, ERR_INVALID, "data-dir", "the data folder's name is too long");
    strcpy(h->path, cfg->path);
    snprintf(path, sizeof path, "%s/graft.db", cfg->path);
    enum err e = data_dir_open(cfg->path, &h->dir, info);
    if (!e)
        e = durable_folder(h->dir.fd, "files", &h->files, info);
    if (!e)
        e = durable_folder(h->dir.fd, "jobs", &h->jobs, info);
    if (!e)
        e = db_open(path, ft_schema, ft_schema_len, &h->db, info);
    if (!e)
        e = ft_files_recover(h, info);
    if (e)
        ft_home_close(h);
    return e;
}

void ft_home_close(struct ft_home *h) {
    if (!h->clock) // zeros
        return;
    db_close(h->db);
    if (h->files >= 0)
        close(h->files);
    if (h->jobs >= 0)
        close(h->jobs);
    data_dir_close(&h->dir);
    memset(h, 0, sizeof *h);
}
