// SPDX-License-Identifier: Apache-2.0
// The logits of a sequence are bit-identical whatever else is in the batch, however its prompt is
// chunked, whether a prefix came from another sequence's blocks, whether it was preempted and
// computed again, wherever the walk stopped at a deadline, and for 1, 2 and 4 threads. Random
// schedules are run and every row of logits is compared, by hash, with that of a plain run of its
// sequence alone.
//
// GRAFT_TEST_MODEL: SmolLM2's GGUF file; GRAFT_TEST_MODEL_DIR: a folder with smollm2-*.gguf in
// other weight types; GRAFT_SCHEDULES: how many schedules for each.
#include "base/hash.h"
#include "base/mem.h"
#include "tests/model/model_fixture.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOCS = 6, DOC_TOKENS = 44, DEVICES = 3, BLOCKS = 64, DOC_BLOCKS = 3 };

// Documents 0 to 2 share 32 tokens, 3 and 4 share 16.
static const int32_t doc_len[DOCS] = {41, 44, 35, 30, 21, 7};

struct doc {
    int32_t ids[DOC_TOKENS];
    uint64_t hash[DOC_TOKENS]; // of the plain run's logits
};

struct model {
    struct fx device[DEVICES]; // 1, 2, 4 threads
    struct doc docs[DOCS];
};

struct run { // one document in a schedule
    int32_t doc;
    struct fx_seq seq;
    int32_t n_blocks;
    bool active;
};

struct schedule {
    struct model *m;
    struct fx *x;
    uint64_t seed, drawn;
    struct run runs[DOCS];
    int32_t n_runs;
    uint8_t refs[BLOCKS];
};

static const int device_threads[DEVICES] = {1, 2, 4};

static uint32_t draw(struct schedule *s, uint32_t n) {
    return (uint32_t)(hash_mix64(s->seed * 1000003 + s->drawn++) % n);
}

static uint64_t row_hash(const float *logits, int32_t vocab) {
    const struct hash_key key = {1, 2};
    return hash_bytes(&key, logits, (size_t)vocab * sizeof *logits);
}

static void make_docs(struct model *m) {
    int32_t vocab = m->device[0].vocab;
    for (int32_t d = 0; d < DOCS; d++)
        for (int32_t i = 0; i < doc_len[d]; i++) {
            int32_t family = d < 3 ? (i < 32 ? 0 : d) : d < 5 ? (i < 16 ? 3 : d) : d;
            uint64_t h = hash_mix64((uint64_t)(family * 1000 + i));
            m->docs[d].ids[i] = (int32_t)(h % (uint64_t)vocab);
        }
}

static void plain_runs(struct model *m) {
    struct fx *x = &m->device[0];
    float *all = mem_alloc((size_t)DOC_TOKENS * (size_t)x->vocab * sizeof *all);
    assert_non_null(all);
    for (int32_t d = 0; d < DOCS; d++) {
        fx_run_plain(x, m->docs[d].ids, doc_len[d], doc_len[d], 0, all);
        for (int32_t i = 0; i < doc_len[d]; i++)
            m->docs[d].hash[i] = row_hash(all + (size_t)i * (size_t)x->vocab, x->vocab);
    }
    mem_free(all);
}

static int32_t take_block(struct schedule *s) {
    uint32_t at = draw(s, BLOCKS);
    for (int32_t i = 0; i < BLOCKS; i++) {
        int32_t b = (int32_t)((at + (uint32_t)i) % BLOCKS);
        if (!s->refs[b]) {
            s->refs[b] = 1;
            return b;
        }
    }
    fail_msg("out of blocks");
    return -1;
}

static void release(struct schedule *s, struct run *r) {
    for (int32_t i = 0; i < r->n_blocks; i++)
        s->refs[r->seq.blocks[i]]--;
    r->n_blocks = 0;
    r->seq.n_cached = 0;
}

// Whole blocks that r could take over from o; the last token is always computed.
static int32_t common_blocks(const struct schedule *s, const struct run *r, const struct run *o) {
    const int32_t *a = s->m->docs[r->doc].ids, *b = s->m->docs[o->doc].ids;
    int32_t n = 0, most = doc_len[r->doc] - 1;
    if (o->seq.n_cached < most)
        most = o->seq.n_cached;
    while (n < most && a[n] == b[n])
        n++;
    return n / KN_KV_BLOCK;
}

static void start(struct schedule *s, struct run *r) {
    r->active = true;
    r->seq.ids = s->m->docs[r->doc].ids;
    r->seq.n_cached = r->n_blocks = 0;
    if (draw(s, 4)) {
        const struct run *best = NULL;
        for (int32_t i = 0; i < s->n_runs; i++)
            if (&s->runs[i] != r && common_blocks(s, r, &s->runs[i]) > r->n_blocks) {
                best = &s->runs[i];
                r->n_blocks = common_blocks(s, r, best);
            }
        for (int32_t i = 0; i < r->n_blocks; i++) {
            r->seq.blocks[i] = best->seq.blocks[i];
            s->refs[r->seq.blocks[i]]++;
        }
        r->seq.n_cached = r->n_blocks * KN_KV_BLOCK;
    }
    while (r->n_blocks * KN_KV_BLOCK < doc_len[r->doc])
        r->seq.blocks[r->n_blocks++] = take_block(s);
}

// Runs the batch, at times in slices.
static void run_batch(struct schedule *s, struct fx_batch *b) {
    if (draw(s, 8)) {
        fx_run(s->x, b, NULL, NULL);
        return;
    }
    struct fx *x = s->x;
    struct err_info info;
    bool done = false;
    if (mdl_forward_begin(x->forward, &b->b, &x->kv, NULL, NULL, &info))
        fail_msg("begin: %s", info.message);
    while (!done)
        if (mdl_forward_run(x->forward, 1 + draw(s, 2), &done, &info)) // passed long ago
            fail_msg("run: %s", info.message);
}

// One step: some of the active runs in any order, each with a chunk. True if any was left.
static bool step(struct schedule *s) {
    struct fx_batch b;
    struct run *in[DOCS];
    int32_t chunk[DOCS], n = 0, first = (int32_t)draw(s, DOCS), alive = 0;
    fx_batch_init(&b);
    for (int32_t i = 0; i < s->n_runs; i++) {
        struct run *r = &s->runs[(first + i) % s->n_runs];
        if (!r->active)
            continue;
        alive++;
        if (!draw(s, 4) && (n || i < s->n_runs - 1))
            continue;
        int32_t rest = doc_len[r->doc] - r->seq.n_cached;
        int32_t m = 1 + (int32_t)draw(s, draw(s, 3) ? 24 : 3);
        chunk[n] = m < rest ? m : rest;
        static const enum fx_wants wants[] = {FX_LAST, FX_LAST, FX_LAST, FX_NONE, FX_ALL};
        fx_batch_add(&b, &r->seq, chunk[n], wants[draw(s, 5)], false);
        in[n++] = r;
    }
    if (!n)
        return alive > 0;
    run_batch(s, &b);
    for (int32_t i = 0; i < b.b.n_want; i++) {
        int32_t row = b.want[i].row, q = 0;
        while (row >= b.seq_start[q + 1])
            q++;
        const struct fx *x = s->x;
        if (row_hash(x->logits + (size_t)i * (size_t)x->vocab, x->vocab) !=
            s->m->docs[in[q]->doc].hash[b.pos[row]])
            fail_msg("schedule %llu: document %d, position %d differs", (unsigned long long)s->seed,
                     in[q]->doc, b.pos[row]);
    }
    for (int32_t i = 0; i < n; i++) {
        in[i]->seq.n_cached += chunk[i];
        if (in[i]->seq.n_cached == doc_len[in[i]->doc])
            in[i]->active = false; // its blocks stay for others to share
    }
    return true;
}

static void run_schedule(struct model *m, uint64_t seed) {
    struct schedule s = {.m = m, .seed = seed};
    uint32_t which = draw(&s, 10);
    s.x = &m->device[which < 3 ? 0 : which < 9 ? 1 : 2];
    int32_t waiting = 2 + (int32_t)draw(&s, 3);
    int32_t preemptions = (int32_t)draw(&s, 2);
    for (;;) {
        if (waiting && (!s.n_runs || !draw(&s, 2))) {
            struct run *r = &s.runs[s.n_runs];
            r->doc = (int32_t)draw(&s, DOCS);
            start(&s, r);
            s.n_runs++;
            waiting--;
        }
        bool more = step(&s);
        struct run *victim = &s.runs[draw(&s, (uint32_t)s.n_runs)];
        if (preemptions && victim->active && victim->seq.n_cached) {
            preemptions--;
            release(&s, victim);
            start(&s, victim);
        }
        if (!more && !waiting)
            return;
    }
}

static int schedules(int dflt) {
    const char *n = getenv("GRAFT_SCHEDULES");
    return n ? atoi(n) : fx_slow_build() ? (dflt + 39) / 40 : dflt;
}

static void check_model(const char *path, int n) {
    struct model *m = mem_zalloc(sizeof *m);
    assert_non_null(m);
    for (int i = 0; i < DEVICES; i++) {
        struct fx_options o = {.threads = device_threads[i], .n_blocks = BLOCKS};
        fx_open(&m->device[i], path, &o);
    }
    make_docs(m);
    plain_runs(m);
    for (int i = 0; i < n; i++)
        run_schedule(m, (uint64_t)i);
    for (int i = 0; i < DEVICES; i++)
        fx_close(&m->device[i]);
    mem_free(m);
    print_message("%s: %d schedules\n", path, n);
}

static void test_smollm2(void **state) {
    (void)state;
    const char *path = getenv("GRAFT_TEST_MODEL");
    if (!path) {
        print_message("GRAFT_TEST_MODEL is not set\n");
        skip();
    }
    check_model(path, schedules(200));
}

static void test_smollm2_types(void **state) {
    (void)state;
    const char *dir = getenv("GRAFT_TEST_MODEL_DIR");
    if (!dir) {
        print_message("GRAFT_TEST_MODEL_DIR is not set\n");
        skip();
    }
    static const char *const names[] = {"bf16", "q8_0", "q4_0"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/smollm2-%s.gguf", dir, names[i]);
        check_model(path, schedules(200));
    }
}

static void test_tiny_models(void **state) {
    (void)state;
    static const char *const names[] = {"f32",  "f16",  "bf16",  "q8_0",
                                        "q4_0", "q4_1", "mixed", "llama3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/golden/models/%s.gguf", names[i]);
        check_model(path, schedules(200));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny_models),
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_smollm2_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
