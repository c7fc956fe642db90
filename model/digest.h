// SPDX-License-Identifier: Apache-2.0
// The content digest of a model: what identifies its weights in manifests and fingerprints. It
// reads every byte, so it runs in steps beside other work, on any one thread, and what it found is
// remembered per file in a cache folder under (device, inode, size, modification and change time).
//
//   one file:  SHA-256 of its bytes, as sha256sum prints it
//   a folder:  SHA-256 of the lines "<hex of the file>  <base name>\n", in the source's order
//
// A digest keeps its own handles of the source's open files: the source may be closed meanwhile,
// and a file replaced by rename is hashed as it was loaded.
#pragma once
#include "base/clock.h"
#include "base/err.h"
#include "model/source.h"

struct mdl_digest;

// cache_dir may be NULL (no cache); it must exist, and only its owner should be able to write
// there. A cache that cannot be read or written is as good as none. What the cache knows is done
// already.
enum err mdl_digest_create(const struct mdl_source *s, const char *cache_dir,
                           struct mdl_digest **out, struct err_info *info);
void mdl_digest_destroy(struct mdl_digest *d);
// A file that changed within the last two seconds of this clock's wall time is not remembered,
// since it could change again within the same time stamp. The system's clock unless set.
void mdl_digest_set_clock(struct mdl_digest *d, const struct clock *clock);
// Hashes up to max_bytes more (at least one chunk of 256 KiB); *done tells whether that was the
// last. ERR_IO if a file changed since the source was opened.
enum err mdl_digest_step(struct mdl_digest *d, size_t max_bytes, bool *done, struct err_info *info);
void mdl_digest_progress(const struct mdl_digest *d, uint64_t *done_bytes, uint64_t *total_bytes);
// 64 hex digits, valid once a step said done.
const char *mdl_digest_hex(const struct mdl_digest *d);
