// SPDX-License-Identifier: Apache-2.0
// The state database: SQLite in WAL mode, synchronous FULL, so that a committed transaction
// survives a power loss. Its schema is an ordered list of migrations; a database that knows more of
// them than this binary is refused.
//
// Everything happens between db_begin and db_end, which hold the database's lock: any thread may
// use it, one at a time. Calls block on the disk. Between the two a failed call leaves the
// transaction to be rolled back by its owner: db_end(d, rc, ...) commits only if rc is ERR_OK.
//
// Errors: ERR_NOMEM, ERR_DISK_FULL, ERR_AGAIN (another process has it locked), ERR_INVALID (a
// constraint does not hold), else ERR_IO.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct db;

struct db_migration {
    const char *name; // never changes once it was released
    const char *sql;  // statements; run in one transaction with the note that it was done
};

// Opens or makes the file and brings its schema up to the list's end. ERR_UNSUPPORTED: the file
// holds a migration that the list does not have at its place; ERR_FORMAT: it is no database.
enum err db_open(const char *path, const struct db_migration *list, size_t n, struct db **out,
                 struct err_info *info);
// For reading alone, beside a process that has it open or not; nothing is brought up to date.
// ERR_UNSUPPORTED also where the file has fewer migrations than the list.
enum err db_open_read(const char *path, const struct db_migration *list, size_t n, struct db **out,
                      struct err_info *info);
void db_close(struct db *d); // NULL is legal
// Called when a change finds no room on the disk, before the caller learns of it: what it does may
// let the same change succeed when it is tried again. Inside the transaction; it may not use the
// database.
void db_on_full(struct db *d, void (*full)(void *arg), void *arg);

// Room inside the database's own files: free pages, and blocks of its log, that later changes use
// although the disk is full. Does nothing where there is enough already. Not within a transaction.
enum err db_make_room(struct db *d, struct err_info *info);

enum err db_begin(struct db *d, struct err_info *info); // takes the lock, also for reading
// Commits if rc is ERR_OK, else rolls back; drops the lock. Returns rc, or why the commit failed.
enum err db_end(struct db *d, enum err rc, struct err_info *info);

// A bound parameter. Text and blobs are copied by SQLite before the call returns.
struct db_value {
    enum { DB_NULL, DB_INT, DB_REAL, DB_TEXT, DB_BLOB } kind;
    int64_t i;
    double x;
    const void *p;
    size_t n;
};
static inline struct db_value db_i(int64_t v) {
    return (struct db_value){.kind = DB_INT, .i = v};
}
static inline struct db_value db_x(double v) {
    return (struct db_value){.kind = DB_REAL, .x = v};
}
struct db_value db_t(const char *s); // NULL: null
struct db_value db_b(const void *p, size_t n);
// Parameters of a call: DB_ARGS(db_i(1), db_t("x")), or DB_NONE.
#define DB_ARGS(...)                                                                               \
    (const struct db_value[]){__VA_ARGS__},                                                        \
        sizeof((const struct db_value[]){__VA_ARGS__}) / sizeof(struct db_value)
#define DB_NONE NULL, 0

// One statement that gives no rows. *changed (may be NULL): rows that it changed.
enum err db_run(struct db *d, int64_t *changed, struct err_info *info, const char *sql,
                const struct db_value *args, size_t n_args);
int64_t db_last_id(struct db *d); // of the last insert

// Rows of a query. Begin, then db_next until it says false, then db_rows_end, which says why it
// ended.
struct db_rows {
    struct db *db;
    void *stmt__;
    enum err rc;
};
enum err db_query(struct db *d, struct db_rows *q, struct err_info *info, const char *sql,
                  const struct db_value *args, size_t n_args);
bool db_next(struct db_rows *q);
bool db_is_null(const struct db_rows *q, int col);
int64_t db_int(const struct db_rows *q, int col); // null: 0
double db_real(const struct db_rows *q, int col); // null: 0
const char *db_text(struct db_rows *q, int col);  // NULL for null; until the next db_next
void db_copy(struct db_rows *q, int col, char *out, size_t cap); // text, cut to fit; null is empty
const void *db_blob(const struct db_rows *q, int col, size_t *n);
enum err db_rows_end(struct db_rows *q, struct err_info *info); // also after a failed db_query
