// SPDX-License-Identifier: Apache-2.0
// Invariants
// 1. files/<id> is complete and synced before the record is committed (ft_upload_commit).
// 2. A record is deleted, and that committed, before its content is unlinked (ft_file_delete).
// 3. So a crash can only leave content without a record, which ft_files_recover drops.
#include "finetune/files.h"
#include "base/diskio.h"
#include "base/durable.h"
#include "finetune/cleanup.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COLUMNS                                                                                    \
    "id, tenant, filename, purpose, bytes, created_at, expires_at, sha256, status, status_details"

static enum err not_found(struct err_info *info, const char *param, const char *id) {
    return err_set(info, ERR_NOT_FOUND, param, "No such File object: %.64s", id);
}

static void read_row(struct db_rows *q, struct ft_file *f) {
    *f = (struct ft_file){0};
    db_copy(q, 0, f->id, sizeof f->id);
    f->tenant = (uint64_t)db_int(q, 1);
    db_copy(q, 2, f->filename, sizeof f->filename);
    db_copy(q, 3, f->purpose, sizeof f->purpose);
    f->bytes = db_int(q, 4);
    f->created_at = db_int(q, 5);
    f->expires_at = db_int(q, 6);
    db_copy(q, 7, f->sha256, sizeof f->sha256);
    const char *status = db_text(q, 8);
    f->error = status && !strcmp(status, "error");
    db_copy(q, 9, f->status_details, sizeof f->status_details);
}

// ---- uploads

enum err ft_upload_begin(struct ft_home *h, struct ft_upload *u, struct err_info *info) {
    *u = (struct ft_upload){.home = h, .out.fd = -1};
    u->sha = sha256_begin();
    if (!u->sha)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = ft_home_room(h, info);
    if (!e)
        e = ft_id_make("file-", u->id, info);
    if (!e)
        e = durable_begin(&u->out, h->files, u->id, info);
    if (e)
        ft_upload_abort(u);
    return e;
}

enum err ft_upload_write(struct ft_upload *u, const void *p, size_t n, struct err_info *info) {
    if (n > u->home->max_file_bytes || u->out.bytes > u->home->max_file_bytes - n)
        return err_set(info, ERR_TOO_LARGE, "file",
                       "file is larger than %llu bytes, the most that is accepted",
                       (unsigned long long)u->home->max_file_bytes);
    // One that is under way must not take the room that the reserve has given up.
    enum err e = u->own ? ERR_OK : ft_usage_check(u->home, n, info);
    if (!e)
        e = ft_home_room(u->home, info);
    uint64_t before = u->out.bytes;
    if (!e)
        e = durable_write(&u->out, p, n, info);
    ft__usage_add(u->home, (int64_t)(u->out.bytes - before));
    if (!e && sha256_update(u->sha, p, n))
        e = err_set(info, ERR_INTERNAL, NULL, "cannot hash the file");
    return e;
}

static enum err insert(struct ft_home *h, const struct ft_file *f, struct err_info *info) {
    return db_run(h->db, NULL, info,
                  "INSERT INTO files (" COLUMNS
                  ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'processed', NULL)",
                  DB_ARGS(db_t(f->id), db_i((int64_t)f->tenant), db_t(f->filename),
                          db_t(f->purpose), db_i(f->bytes), db_i(f->created_at),
                          f->expires_at ? db_i(f->expires_at) : db_t(NULL), db_t(f->sha256)));
}

// The result of that name that the job has already, into *f; its id is empty if there is none.
static enum err earlier_result(struct ft_home *h, const char *job, const char *filename,
                               struct ft_file *f, struct err_info *info) {
    struct db_rows q;
    *f = (struct ft_file){0};
    enum err e =
        db_query(h->db, &q, info,
                 "SELECT " COLUMNS " FROM files WHERE filename = ? AND id IN (SELECT r.file"
                 " FROM job_results r JOIN jobs j ON j.seq = r.job WHERE j.id = ?) LIMIT 1",
                 DB_ARGS(db_t(filename), db_t(job)));
    if (!e && db_next(&q))
        read_row(&q, f);
    return db_rows_end(&q, info);
}

static enum err insert_result(struct ft_home *h, const struct ft_file *f, const char *job,
                              struct ft_file *earlier, struct err_info *info) {
    int64_t n = 0;
    enum err e = earlier_result(h, job, f->filename, earlier, info);
    if (e || earlier->id[0])
        return e;
    e = insert(h, f, info);
    if (!e)
        e = db_run(h->db, &n, info,
                   "INSERT INTO job_results (job, file) SELECT seq, ? FROM jobs WHERE id = ?",
                   DB_ARGS(db_t(f->id), db_t(job)));
    return e || n ? e : err_set(info, ERR_NOT_FOUND, NULL, "there is no job %.64s", job);
}

// job NULL: the file stands for itself.
static enum err commit(struct ft_upload *u, struct ft_file *f, const char *job,
                       struct err_info *info) {
    uint8_t digest[SHA256_BYTES];
    struct ft_home *h = u->home;
    struct ft_file earlier = {0};
    enum err e = sha256_end(u->sha, digest);
    u->sha = NULL;
    if (e) {
        ft_upload_abort(u);
        return err_set(info, e, NULL, "cannot hash the file");
    }
    hex_encode(digest, sizeof digest, f->sha256);
    strcpy(f->id, u->id);
    f->bytes = (int64_t)u->out.bytes;
    f->created_at = ft_now(h);
    f->error = false;
    f->status_details[0] = '\0';
    e = durable_commit(&u->out, info);
    if (!e && !(e = db_begin(h->db, info))) {
        e = job ? insert_result(h, f, job, &earlier, info) : insert(h, f, info);
        e = db_end(h->db, e, info);
    }
    // Whether or not a rename or a commit took place: nobody was told of this file.
    if (e || earlier.id[0]) {
        (void)diskio_unlink(h->files, u->id);
        ft__usage_add(h, -(int64_t)u->out.bytes);
    }
    if (!e && earlier.id[0])
        *f = earlier;
    return e;
}

enum err ft_upload_commit(struct ft_upload *u, struct ft_file *f, struct err_info *info) {
    // An empty file has a row, too.
    enum err e = u->own ? ERR_OK : ft_usage_check(u->home, 0, info);
    if (e) {
        ft_upload_abort(u);
        return e;
    }
    return commit(u, f, NULL, info);
}

enum err ft_upload_commit_result(struct ft_upload *u, struct ft_file *f, const char *job,
                                 struct err_info *info) {
    return commit(u, f, job, info);
}

void ft_upload_abort(struct ft_upload *u) {
    uint8_t digest[SHA256_BYTES];
    if (u->sha)
        (void)sha256_end(u->sha, digest);
    u->sha = NULL;
    if (u->home && u->out.fd >= 0)
        ft__usage_add(u->home, -(int64_t)u->out.bytes);
    if (u->home)
        durable_abort(&u->out);
}

// ---- reading

static enum err find(struct ft_home *h, uint64_t tenant, const char *id, struct ft_file *out,
                     struct err_info *info) {
    struct db_rows q;
    bool found = false;
    enum err e = db_query(h->db, &q, info,
                          "SELECT " COLUMNS " FROM files WHERE id = ? AND tenant = ?"
                          " AND (expires_at IS NULL OR expires_at > ?)",
                          DB_ARGS(db_t(id), db_i((int64_t)tenant), db_i(ft_now(h))));
    if (!e && db_next(&q)) {
        read_row(&q, out);
        found = true;
    }
    e = db_rows_end(&q, info);
    return e ? e : found ? ERR_OK : not_found(info, "id", id);
}

enum err ft_file_get(struct ft_home *h, uint64_t tenant, const char *id, struct ft_file *out,
                     struct err_info *info) {
    enum err e = db_begin(h->db, info);
    return e ? e : db_end(h->db, find(h, tenant, id, out, info), info);
}

enum err ft_file_open(struct ft_home *h, uint64_t tenant, const char *id, struct ft_file *out,
                      int *fd, struct err_info *info) {
    enum err e = ft_file_get(h, tenant, id, out, info);
    if (e)
        return e;
    struct err_info why;
    e = durable_open(h->files, out->id, fd, &why);
    if (!e)
        return ERR_OK;
    if (e == ERR_NOT_FOUND && !out->error) // deleted in between
        return not_found(info, "id", id);
    return err_set(info, ERR_IO, NULL, "the content of a file: %.200s", why.message);
}

static enum err seq_of(struct ft_home *h, const struct ft_file_query *q, int64_t *seq,
                       struct err_info *info) {
    struct db_rows r;
    bool found = false;
    enum err e = db_query(h->db, &r, info, "SELECT seq FROM files WHERE id = ? AND tenant = ?",
                          DB_ARGS(db_t(q->after), db_i((int64_t)q->tenant)));
    if (!e && db_next(&r)) {
        *seq = db_int(&r, 0);
        found = true;
    }
    e = db_rows_end(&r, info);
    return e ? e : found ? ERR_OK : not_found(info, "after", q->after);
}

static enum err list(struct ft_home *h, const struct ft_file_query *q,
                     void (*each)(void *arg, const struct ft_file *f), void *arg, bool *more,
                     struct err_info *info) {
    int64_t after = q->ascending ? 0 : INT64_MAX, n = 0;
    enum err e = q->after ? seq_of(h, q, &after, info) : ERR_OK;
    if (e)
        return e;
    struct db_rows r;
    e = db_query(h->db, &r, info,
                 q->ascending ? "SELECT " COLUMNS " FROM files WHERE tenant = ? AND seq > ?"
                                " AND (?3 IS NULL OR purpose = ?3)"
                                " AND (expires_at IS NULL OR expires_at > ?) ORDER BY seq LIMIT ?"
                              : "SELECT " COLUMNS " FROM files WHERE tenant = ? AND seq < ?"
                                " AND (?3 IS NULL OR purpose = ?3)"
                                " AND (expires_at IS NULL OR expires_at > ?)"
                                " ORDER BY seq DESC LIMIT ?",
                 DB_ARGS(db_i((int64_t)q->tenant), db_i(after), db_t(q->purpose), db_i(ft_now(h)),
                         db_i(q->limit + 1)));
    while (!e && db_next(&r)) {
        struct ft_file f;
        if (n++ == q->limit) {
            *more = true;
            break;
        }
        read_row(&r, &f);
        if (!r.rc)
            each(arg, &f);
    }
    return db_rows_end(&r, info);
}

enum err ft_file_list(struct ft_home *h, const struct ft_file_query *q,
                      void (*each)(void *arg, const struct ft_file *f), void *arg, bool *more,
                      struct err_info *info) {
    *more = false;
    enum err e = db_begin(h->db, info);
    return e ? e : db_end(h->db, list(h, q, each, arg, more, info), info);
}

// ---- deleting

#define USED                                                                                       \
    "SELECT id FROM jobs WHERE (training_file = files.id OR validation_file = files.id)"           \
    " AND state NOT IN ('succeeded', 'failed', 'cancelled')"

static enum err check_unused(struct ft_home *h, const char *id, struct err_info *info) {
    struct db_rows q;
    char job[FT_ID_MAX] = "";
    enum err e = db_query(h->db, &q, info, "SELECT (" USED " LIMIT 1) FROM files WHERE id = ?",
                          DB_ARGS(db_t(id)));
    if (!e && db_next(&q))
        db_copy(&q, 0, job, sizeof job);
    e = db_rows_end(&q, info);
    if (e || !job[0])
        return e;
    return err_set(info, ERR_INVALID, "id", "%s is used by %s, which has not ended", id, job);
}

static enum err remove_record(struct ft_home *h, uint64_t tenant, const char *id, struct ft_file *f,
                              struct err_info *info) {
    enum err e = db_begin(h->db, info);
    if (e)
        return e;
    e = find(h, tenant, id, f, info);
    if (!e)
        e = check_unused(h, f->id, info);
    if (!e)
        e = db_run(h->db, NULL, info, "DELETE FROM files WHERE id = ?", DB_ARGS(db_t(f->id)));
    return db_end(h->db, e, info);
}

enum err ft_file_delete(struct ft_home *h, uint64_t tenant, const char *id, struct err_info *info) {
    struct ft_file f;
    enum err e;
    int tries = 0;
    do
        e = remove_record(h, tenant, id, &f, info);
    while (ft__again(e, &tries));
    if (!e)
        ft__usage_add(h, -f.bytes);
    if (!e && diskio_unlink(h->files, f.id) != 0 && errno != ENOENT)
        log_write(h->log, LOG_WARN, "%s is deleted, but its content is not: %s", f.id,
                  strerror(errno)); // the next start tries again
    return e;
}

// One expired file, if there is any: its id, or none.
static enum err expire(struct ft_home *h, char id[FT_ID_MAX], struct err_info *info) {
    struct db_rows q;
    enum err e = db_begin(h->db, info);
    id[0] = '\0';
    if (e)
        return e;
    e = db_query(h->db, &q, info,
                 "SELECT id FROM files WHERE expires_at <= ? AND NOT EXISTS (" USED ") LIMIT 1",
                 DB_ARGS(db_i(ft_now(h))));
    if (!e && db_next(&q))
        db_copy(&q, 0, id, FT_ID_MAX);
    e = db_rows_end(&q, info);
    if (!e && id[0])
        e = db_run(h->db, NULL, info, "DELETE FROM files WHERE id = ?", DB_ARGS(db_t(id)));
    return db_end(h->db, e, info);
}

enum err ft_files_expire(struct ft_home *h, struct err_info *info) {
    for (;;) {
        char id[FT_ID_MAX];
        enum err e;
        int tries = 0;
        do
            e = expire(h, id, info);
        while (ft__again(e, &tries));
        if (e || !id[0])
            return e;
        (void)diskio_unlink(h->files, id);
    }
}

// ---- start

static enum err has_record(struct ft_home *h, const char *id, bool *has, struct err_info *info) {
    struct db_rows q;
    enum err e = db_query(h->db, &q, info, "SELECT 1 FROM files WHERE id = ?", DB_ARGS(db_t(id)));
    *has = !e && db_next(&q);
    return db_rows_end(&q, info);
}

static enum err drop_orphans(struct ft_home *h, struct err_info *info) {
    DIR *entries = durable_list(h->files, ".");
    if (!entries)
        return durable_errno(info, errno, "read", "the folder of files");
    enum err e = ERR_OK;
    struct dirent *entry;
    while (!e && (entry = readdir(entries)) != NULL) {
        bool has = true;
        if (!strncmp(entry->d_name, "file-", 5)) // nothing else is ours to drop
            e = has_record(h, entry->d_name, &has, info);
        if (!e && !has) {
            log_write(h->log, LOG_INFO, "dropping %s, whose upload was not finished",
                      entry->d_name);
            (void)diskio_unlink(h->files, entry->d_name);
        }
    }
    closedir(entries);
    return e;
}

static enum err mark(struct ft_home *h, const char *id, const char *why, struct err_info *info) {
    log_write(h->log, LOG_ERROR, "%s: %s", id, why);
    return db_run(h->db, NULL, info,
                  "UPDATE files SET status = 'error', status_details = ? WHERE id = ?",
                  DB_ARGS(db_t(why), db_t(id)));
}

// NULL: as its record says, as far as can be seen without reading it.
static const char *flaw_of_entry(const struct ft_home *h, const char *id, int64_t bytes) {
    struct stat st;
    if (fstatat(h->files, id, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? "the content is missing on the disk" : NULL;
    return !S_ISREG(st.st_mode) || st.st_size != bytes
               ? "the content on the disk does not have its size"
               : NULL;
}

static enum err compare(struct ft_home *h, const char *id, const uint8_t *digest,
                        char damaged[FT_DAMAGE_MAX], struct err_info *info) {
    struct db_rows q;
    char hex[2 * SHA256_BYTES + 1] = "", was[sizeof hex] = "";
    int64_t bytes = 0;
    enum err e = db_query(h->db, &q, info, "SELECT sha256, bytes FROM files WHERE id = ?",
                          DB_ARGS(db_t(id)));
    if (!e && db_next(&q)) {
        db_copy(&q, 0, was, sizeof was);
        bytes = db_int(&q, 1);
    }
    e = db_rows_end(&q, info);
    const char *flaw = NULL;
    if (digest) {
        hex_encode(digest, SHA256_BYTES, hex);
        flaw = strcmp(was, hex) != 0 ? "the content on the disk is damaged" : NULL;
    } else if (was[0]) {
        flaw = flaw_of_entry(h, id, bytes);
    }
    if (!e && was[0] && flaw)
        snprintf(damaged, FT_DAMAGE_MAX, "%s", flaw);
    return !e && damaged[0] ? mark(h, id, damaged, info) : e;
}

enum err ft_file_compare(struct ft_home *h, const char *id, const uint8_t *digest,
                         char damaged[FT_DAMAGE_MAX], struct err_info *info) {
    enum err e;
    int tries = 0;
    damaged[0] = '\0';
    do {
        if (!(e = db_begin(h->db, info)))
            e = db_end(h->db, compare(h, id, digest, damaged, info), info);
    } while (ft__again(e, &tries));
    return e;
}

static enum err check_content(struct ft_home *h, struct err_info *info) {
    int64_t seq = 0;
    for (;;) {
        struct db_rows q;
        struct stat st;
        char id[FT_ID_MAX] = "";
        int64_t bytes = 0;
        enum err e = db_query(h->db, &q, info,
                              "SELECT seq, id, bytes FROM files WHERE seq > ? AND "
                              "status = 'processed' ORDER BY seq LIMIT 1",
                              DB_ARGS(db_i(seq)));
        if (!e && db_next(&q)) {
            seq = db_int(&q, 0);
            db_copy(&q, 1, id, sizeof id);
            bytes = db_int(&q, 2);
        }
        e = db_rows_end(&q, info);
        if (e || !id[0])
            return e;
        if (fstatat(h->files, id, &st, AT_SYMLINK_NOFOLLOW) != 0)
            e = mark(h, id, "the content is missing on the disk", info);
        else if (!S_ISREG(st.st_mode) || st.st_size != bytes)
            e = mark(h, id, "the content on the disk does not have its size", info);
        if (e)
            return e;
    }
}

enum err ft_files_recover(struct ft_home *h, struct err_info *info) {
    enum err e = durable_clean(h->files, info);
    if (!e)
        e = db_begin(h->db, info);
    if (e)
        return e;
    e = drop_orphans(h, info);
    if (!e)
        e = check_content(h, info);
    return db_end(h->db, e, info);
}
