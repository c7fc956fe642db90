// SPDX-License-Identifier: Apache-2.0
#include "base/db.h"
#include "base/diskio.h"
#include "base/durable.h"
#include "base/mem.h"
#include "base/thread.h"
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

enum { BUSY_MS = 5000, ROOM_PAGES = 32 };

struct db {
    sqlite3 *sql;
    bool read_only;
    struct lock lock;
    void (*full)(void *arg);
    void *full_arg;
    bool was_full;
    int64_t changes; // rows that had ever been changed when the transaction began
};

static enum err code_of(int rc) {
    switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_DONE:
    case SQLITE_ROW:
        return ERR_OK;
    case SQLITE_NOMEM:
        return ERR_NOMEM;
    case SQLITE_FULL:
        return ERR_DISK_FULL;
    case SQLITE_IOERR: // a file beside the database could not grow
        return rc == SQLITE_IOERR_SHMSIZE ? ERR_DISK_FULL : ERR_IO;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return ERR_AGAIN;
    case SQLITE_CONSTRAINT:
        return ERR_INVALID;
    default:
        return ERR_IO;
    }
}

static void note_full(struct db *d) {
    d->was_full = true;
    if (d->full)
        d->full(d->full_arg);
}

static enum err failed(struct db *d, int rc, struct err_info *info) {
    enum err e = code_of(rc);
    int why = sqlite3_system_errno(d->sql);
    const char *path = sqlite3_db_filename(d->sql, "main");
    if (e == ERR_NOMEM)
        return err_set(info, e, NULL, "out of memory");
    if (e == ERR_IO && (why == ENOSPC || why == EDQUOT))
        e = ERR_DISK_FULL;
    if (e == ERR_DISK_FULL)
        note_full(d);
    return err_set(info, e, NULL, "state database %.200s: %s (%d)", path ? path : "",
                   sqlite3_errmsg(d->sql), sqlite3_extended_errcode(d->sql));
}

void db_on_full(struct db *d, void (*full)(void *arg), void *arg) {
    d->full = full;
    d->full_arg = arg;
}

struct db_value db_t(const char *s) {
    if (!s)
        return (struct db_value){.kind = DB_NULL};
    return (struct db_value){.kind = DB_TEXT, .p = s, .n = strlen(s)};
}

struct db_value db_b(const void *p, size_t n) {
    return (struct db_value){.kind = DB_BLOB, .p = p ? p : "", .n = n};
}

static int bind_one(sqlite3_stmt *s, int i, const struct db_value *v) {
    switch (v->kind) {
    case DB_INT:
        return sqlite3_bind_int64(s, i, v->i);
    case DB_REAL:
        return sqlite3_bind_double(s, i, v->x);
    case DB_TEXT:
        return sqlite3_bind_text64(s, i, v->p, v->n, SQLITE_TRANSIENT, SQLITE_UTF8);
    case DB_BLOB:
        return sqlite3_bind_blob64(s, i, v->p, v->n, SQLITE_TRANSIENT);
    case DB_NULL:
        break;
    }
    return sqlite3_bind_null(s, i);
}

static enum err prepare(struct db *d, sqlite3_stmt **out, struct err_info *info, const char *sql,
                        const struct db_value *args, size_t n_args) {
    int rc = sqlite3_prepare_v2(d->sql, sql, -1, out, NULL);
    for (size_t i = 0; rc == SQLITE_OK && i < n_args; i++)
        rc = bind_one(*out, (int)i + 1, &args[i]);
    if (rc == SQLITE_OK)
        return ERR_OK;
    enum err e = failed(d, rc, info);
    sqlite3_finalize(*out);
    *out = NULL;
    return e;
}

enum err db_run(struct db *d, int64_t *changed, struct err_info *info, const char *sql,
                const struct db_value *args, size_t n_args) {
    sqlite3_stmt *s = NULL;
    enum err e = prepare(d, &s, info, sql, args, n_args);
    if (e)
        return e;
    int rc = sqlite3_step(s);
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        e = failed(d, rc, info);
    if (changed)
        *changed = sqlite3_changes64(d->sql);
    sqlite3_finalize(s);
    return e;
}

int64_t db_last_id(struct db *d) {
    return sqlite3_last_insert_rowid(d->sql);
}

enum err db_query(struct db *d, struct db_rows *q, struct err_info *info, const char *sql,
                  const struct db_value *args, size_t n_args) {
    sqlite3_stmt *s = NULL;
    *q = (struct db_rows){.db = d};
    q->rc = prepare(d, &s, info, sql, args, n_args);
    q->stmt__ = s;
    return q->rc;
}

bool db_next(struct db_rows *q) {
    if (q->rc || !q->stmt__)
        return false;
    int rc = sqlite3_step(q->stmt__);
    q->rc = code_of(rc);
    return rc == SQLITE_ROW;
}

bool db_is_null(const struct db_rows *q, int col) {
    return sqlite3_column_type(q->stmt__, col) == SQLITE_NULL;
}

int64_t db_int(const struct db_rows *q, int col) {
    return sqlite3_column_int64(q->stmt__, col);
}

double db_real(const struct db_rows *q, int col) {
    return sqlite3_column_double(q->stmt__, col);
}

const char *db_text(struct db_rows *q, int col) {
    if (db_is_null(q, col))
        return NULL;
    const unsigned char *s = sqlite3_column_text(q->stmt__, col);
    if (!s) { // only without memory
        q->rc = ERR_NOMEM;
        return "";
    }
    return (const char *)s;
}

void db_copy(struct db_rows *q, int col, char *out, size_t cap) {
    const char *s = db_text(q, col);
    snprintf(out, cap, "%s", s ? s : "");
}

const void *db_blob(const struct db_rows *q, int col, size_t *n) {
    const void *p = sqlite3_column_blob(q->stmt__, col);
    *n = p ? (size_t)sqlite3_column_bytes(q->stmt__, col) : 0;
    return p;
}

enum err db_rows_end(struct db_rows *q, struct err_info *info) {
    enum err e = q->rc;
    if (e && q->stmt__)
        e == ERR_NOMEM ? err_set(info, e, NULL, "out of memory")
                       : err_set(info, e, NULL, "state database: %s", sqlite3_errmsg(q->db->sql));
    sqlite3_finalize(q->stmt__);
    q->stmt__ = NULL;
    return e;
}

enum err db_begin(struct db *d, struct err_info *info) {
    lock_take(&d->lock);
    // What the log holds goes into the database, and the log begins anew in its blocks.
    if (d->was_full)
        (void)sqlite3_wal_checkpoint_v2(d->sql, NULL, SQLITE_CHECKPOINT_RESTART, NULL, NULL);
    d->was_full = false;
    // IMMEDIATE: a transaction that reads and then writes never finds that another came between.
    enum err e = db_run(d, NULL, info, d->read_only ? "BEGIN" : "BEGIN IMMEDIATE", DB_NONE);
    if (e)
        lock_drop(&d->lock);
    d->changes = e ? 0 : sqlite3_total_changes64(d->sql);
    return e;
}

static enum err commit(struct db *d, struct err_info *info) {
    const char *path = sqlite3_db_filename(d->sql, "main");
    bool changed = sqlite3_total_changes64(d->sql) != d->changes;
    if (changed && diskio_commit(path)) {
        enum err why = durable_errno(info, errno, "write", path);
        if (why == ERR_DISK_FULL)
            note_full(d);
        return why;
    }
    enum err e = db_run(d, NULL, info, "COMMIT", DB_NONE);
    if (!e && changed)
        diskio_committed(path);
    return e;
}

enum err db_end(struct db *d, enum err rc, struct err_info *info) {
    if (!rc)
        rc = commit(d, info);
    if (rc && !sqlite3_get_autocommit(d->sql))
        (void)sqlite3_exec(d->sql, "ROLLBACK", NULL, NULL, NULL);
    lock_drop(&d->lock);
    return rc;
}

// ---- room

static int64_t free_pages(struct db *d) {
    struct db_rows q;
    int64_t n = 0;
    if (!db_query(d, &q, NULL, "PRAGMA freelist_count", DB_NONE) && db_next(&q))
        n = db_int(&q, 0);
    (void)db_rows_end(&q, NULL);
    return n;
}

// Pages of a table that is dropped in another transaction than the one that filled it: within one
// they would never be written.
enum err db_make_room(struct db *d, struct err_info *info) {
    static const char *const steps[] = {
        "CREATE TABLE IF NOT EXISTS room (x BLOB)",
        "INSERT INTO room VALUES (zeroblob(524288))",
        "DROP TABLE room",
    };
    enum err e = ERR_OK;
    lock_take(&d->lock);
    for (size_t i = free_pages(d) >= ROOM_PAGES ? 3 : 0; i < 3 && !e; i++)
        e = db_run(d, NULL, info, steps[i], DB_NONE);
    // Into the database; the log begins anew and keeps its blocks.
    if (!e)
        (void)sqlite3_wal_checkpoint_v2(d->sql, NULL, SQLITE_CHECKPOINT_RESTART, NULL, NULL);
    lock_drop(&d->lock);
    return e;
}

// ---- opening

static enum err script(struct db *d, const char *sql, struct err_info *info) {
    int rc = sqlite3_exec(d->sql, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? ERR_OK : failed(d, rc, info);
}

// Reads what was applied and compares it with the list, place by place.
static enum err applied(struct db *d, const struct db_migration *list, size_t n, size_t *done,
                        struct err_info *info) {
    struct db_rows q;
    struct err_info newer = {0};
    *done = 0;
    enum err e = db_query(d, &q, info, "SELECT name FROM migrations ORDER BY seq", DB_NONE);
    while (!e && !newer.code && db_next(&q)) {
        const char *name = db_text(&q, 0);
        if (*done < n && name && !strcmp(list[*done].name, name))
            ++*done;
        else if (!q.rc)
            err_set(&newer, ERR_UNSUPPORTED, NULL,
                    "the state database was written by a newer version: this one does not know "
                    "its schema change '%.64s'",
                    name ? name : "");
    }
    e = db_rows_end(&q, info);
    if (!e && newer.code) {
        *info = newer;
        e = newer.code;
    }
    return e;
}

static enum err migrate(struct db *d, const struct db_migration *list, size_t n,
                        struct err_info *info) {
    size_t done = 0;
    enum err e = db_begin(d, info);
    if (e)
        return e;
    e = script(d,
               "CREATE TABLE IF NOT EXISTS migrations ("
               "seq INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
               info);
    if (!e)
        e = applied(d, list, n, &done, info);
    e = db_end(d, e, info);
    for (size_t i = done; !e && i < n; i++) {
        e = db_begin(d, info);
        if (e)
            return e;
        e = script(d, list[i].sql, info);
        if (!e)
            e = db_run(d, NULL, info, "INSERT INTO migrations (seq, name) VALUES (?, ?)",
                       DB_ARGS(db_i((int64_t)i + 1), db_t(list[i].name)));
        if (e)
            err_prefix(info, "schema change '%s'", list[i].name);
        e = db_end(d, e, info);
    }
    return e;
}

static enum err set_up(struct db *d, struct err_info *info) {
    enum err e = script(d,
                        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; "
                        "PRAGMA foreign_keys = ON; "
                        // The log stays small, for small disks.
                        "PRAGMA wal_autocheckpoint = 250; PRAGMA journal_size_limit = 1048576;",
                        info);
    // The mode is a wish: SQLite stays with another one where the file system cannot do it.
    struct db_rows q;
    bool wal = false;
    if (e)
        return e;
    e = db_query(d, &q, info, "PRAGMA journal_mode", DB_NONE);
    if (!e && db_next(&q)) {
        const char *mode = db_text(&q, 0);
        wal = mode && !strcmp(mode, "wal");
    }
    e = db_rows_end(&q, info);
    if (!e && !wal)
        e = err_set(info, ERR_UNSUPPORTED, NULL,
                    "state database: this file system does not carry SQLite's WAL mode");
    return e;
}

// The schema must be this one already.
static enum err check_schema(struct db *d, const struct db_migration *list, size_t n,
                             struct err_info *info) {
    size_t done = 0;
    enum err e = db_begin(d, info);
    if (!e)
        e = db_end(d, applied(d, list, n, &done, info), info);
    if (!e && done < n)
        e = err_set(
            info, ERR_UNSUPPORTED, NULL,
            "the state database is of an older version; a server that is started on it brings "
            "it up to date");
    return e;
}

static enum err open_with(const char *path, int flags, const struct db_migration *list, size_t n,
                          struct db **out, struct err_info *info) {
    struct err_info own;
    info = info ? info : &own;
    *out = NULL;
    struct db *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    lock_init(&d->lock);
    d->read_only = flags == SQLITE_OPEN_READONLY;
    // Its own mutexes are not needed: the lock above is held around each use.
    int rc = sqlite3_open_v2(path, &d->sql, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE,
                             NULL);
    enum err e = rc == SQLITE_OK ? ERR_OK : d->sql ? failed(d, rc, info) : ERR_NOMEM;
    if (!d->sql)
        err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (!e) {
        sqlite3_extended_result_codes(d->sql, 1);
        sqlite3_busy_timeout(d->sql, BUSY_MS);
        e = d->read_only ? check_schema(d, list, n, info) : set_up(d, info);
    }
    if (!e && !d->read_only)
        e = migrate(d, list, n, info);
    if (e == ERR_IO && (sqlite3_errcode(d->sql) & 0xff) == SQLITE_NOTADB)
        e = err_set(info, ERR_FORMAT, NULL, "%.200s is not a state database", path);
    if (e) {
        db_close(d);
        return e;
    }
    *out = d;
    return ERR_OK;
}

enum err db_open(const char *path, const struct db_migration *list, size_t n, struct db **out,
                 struct err_info *info) {
    return open_with(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, list, n, out, info);
}

enum err db_open_read(const char *path, const struct db_migration *list, size_t n, struct db **out,
                      struct err_info *info) {
    return open_with(path, SQLITE_OPEN_READONLY, list, n, out, info);
}

void db_close(struct db *d) {
    if (!d)
        return;
    sqlite3_close(d->sql);
    lock_fini(&d->lock);
    mem_free(d);
}
