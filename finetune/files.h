// SPDX-License-Identifier: Apache-2.0
// Files of the API: content under files/<id>, a record in the state database. The content is
// durable before its record is written, and the record is gone before the content is: whoever finds
// the record finds the content, also after a power loss.
//
// Each belongs to a tenant; another's is not found. Any thread; calls block on the disk. Errors
// beside those named: ERR_NOMEM, ERR_IO, ERR_DISK_FULL, ERR_AGAIN.
#pragma once
#include "base/durable.h"
#include "base/hash.h"
#include "finetune/home.h"
#include <stdbool.h>
#include <stdint.h>

enum { FT_FILENAME_MAX = 255, FT_PURPOSE_MAX = 32 };

struct ft_file {
    char id[FT_ID_MAX];
    uint64_t tenant;
    char filename[FT_FILENAME_MAX + 1];
    char purpose[FT_PURPOSE_MAX];
    int64_t bytes, created_at, expires_at; // Unix seconds; expires_at 0: never
    char sha256[2 * SHA256_BYTES + 1];
    bool error;               // the content is not what was stored
    char status_details[200]; // or empty
};

// A file that is being received. One thread at a time. Begin, write ..., then commit or abort.
struct ft_upload {
    struct ft_home *home;
    struct durable out;
    struct sha256_ctx *sha;
    bool own; // set it after begin: a result of ours, which --max-data-bytes does not refuse
    char id[FT_ID_MAX];
};
enum err ft_upload_begin(struct ft_home *h, struct ft_upload *u, struct err_info *info);
// ERR_TOO_LARGE (param "file"): beyond the home's max_file_bytes. ERR_LIMIT: beyond its max_bytes.
enum err ft_upload_write(struct ft_upload *u, const void *p, size_t n, struct err_info *info);
// *f: tenant, filename, purpose and expires_at are the caller's; the rest is filled in. When this
// returns ERR_OK, the file lasts. The upload has ended either way.
enum err ft_upload_commit(struct ft_upload *u, struct ft_file *f, struct err_info *info);
// The same for a job's result file, which is tied to the job in the same transaction. Where the job
// has a result of that filename already, that one stays and *f is it.
enum err ft_upload_commit_result(struct ft_upload *u, struct ft_file *f, const char *job,
                                 struct err_info *info);
void ft_upload_abort(struct ft_upload *u); // also of one that has ended or never began (zeros)

// ERR_NOT_FOUND: no such file of this tenant.
enum err ft_file_get(struct ft_home *h, uint64_t tenant, const char *id, struct ft_file *out,
                     struct err_info *info);
// *fd: the content, to be closed by the caller; it stays readable although the file is deleted.
enum err ft_file_open(struct ft_home *h, uint64_t tenant, const char *id, struct ft_file *out,
                      int *fd, struct err_info *info);
// ERR_INVALID: a job that has not ended uses it.
enum err ft_file_delete(struct ft_home *h, uint64_t tenant, const char *id, struct err_info *info);

struct ft_file_query {
    uint64_t tenant;
    const char *purpose; // NULL: any
    const char *after;   // an id, or NULL. ERR_NOT_FOUND (param "after"): none of this tenant's
    bool ascending;
    int64_t limit;
};
// Calls `each` in order. *more: the limit cut the list.
enum err ft_file_list(struct ft_home *h, const struct ft_file_query *q,
                      void (*each)(void *arg, const struct ft_file *f), void *arg, bool *more,
                      struct err_info *info);

// Somebody has read the whole content: `digest` is its SHA-256; NULL: it is not there. Where that
// is not what was stored, the file gets status error, and *damaged is what was found, else empty.
enum { FT_DAMAGE_MAX = 96 };
enum err ft_file_compare(struct ft_home *h, const char *id, const uint8_t *digest,
                         char damaged[FT_DAMAGE_MAX], struct err_info *info);
// Deletes what has expired and is not in use. Expired files are not found, also before this.
enum err ft_files_expire(struct ft_home *h, struct err_info *info);
// At start: drops content without a record; a record whose content is not there gets status error.
enum err ft_files_recover(struct ft_home *h, struct err_info *info);
