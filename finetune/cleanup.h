// SPDX-License-Identifier: Apache-2.0
// What the data folder holds, its bound, and what of it goes by itself. Any thread; calls block on
// the disk.
#pragma once
#include "finetune/home.h"

// Bytes of files/, jobs/ and adapters/, looked at anew; uploads and deletes are counted in between.
// At start, and from time to time.
void ft_usage_measure(struct ft_home *h);
// These and those of the database with its log.
uint64_t ft_usage(const struct ft_home *h);
// ERR_LIMIT (param "file"): `more` bytes would be beyond --max-data-bytes.
enum err ft_usage_check(const struct ft_home *h, uint64_t more, struct err_info *info);
static inline void ft__usage_add(struct ft_home *h, int64_t bytes) {
    atomic_fetch_add_explicit(&h->used, bytes, memory_order_relaxed);
}

// Of jobs that have ended: token caches, which can be made again, and what crashes have left. With
// keep_jobs_s, all that a job keeps that long after its end, but its record, events and result
// files; the rows of its checkpoints go first. Never of a job whose retention_class is "keep".
enum err ft_jobs_clean(struct ft_home *h, struct err_info *info);
