// SPDX-License-Identifier: Apache-2.0
// Fuzzes training data in four ways, chosen by the first byte: the rest is a cache file; or one
// whose checksums are put right first, so that bounds are all that is left; or the lines of a file,
// for supervised training or for preferences, which is built and read back.
#include "base/mem.h"
#include "base/utf8.h"
#include "finetune/batcher.h"
#include "finetune/dataset_internal.h"
#include "model/bytes.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_alphabet.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char template_text[] =
    "{{ bos_token }}{% for m in messages %}{{ m.role + ':' + m.content }}{{ eos_token }}\n"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";

// All bytes, a few merges, two control tokens.
static struct tokenizer *make_tokenizer(void) {
    enum { MERGES = 4, ALL = 256 + MERGES + 2 };
    static const char *const more[MERGES] = {"as", "si", "t:", ":a"};
    static const char *const lines[MERGES] = {"a s", "s i", "t :", ": a"};
    struct tok_str tokens[ALL], merges[MERGES];
    int32_t types[ALL];
    char alphabet[256][3];
    fuzz_alphabet(tokens, types, alphabet);
    for (size_t i = 0; i < MERGES; i++) {
        tokens[256 + i] = (struct tok_str){more[i], 2};
        merges[i] = (struct tok_str){lines[i], 3};
        types[256 + i] = 1;
    }
    tokens[ALL - 2] = (struct tok_str){"<s>", 3};
    tokens[ALL - 1] = (struct tok_str){"</s>", 4};
    types[ALL - 2] = types[ALL - 1] = 3;
    struct tokenizer_gguf g = {
        .model = {"gpt2", 4},
        .pre = {"gpt-2", 5},
        .tokens = tokens,
        .merges = merges,
        .n_tokens = ALL,
        .n_merges = MERGES,
        .token_type = types,
        .bos = ALL - 2,
        .eos = ALL - 1,
        .eot = -1,
        .add_bos = true,
    };
    struct tokenizer *t = NULL;
    fuzz_require(tokenizer_from_gguf(&g, &t, NULL) == ERR_OK);
    return t;
}

static int memory_file(const uint8_t *p, size_t n, char path[64]) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    fuzz_require(fd >= 0 && write(fd, p, n) == (ssize_t)n);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

// Reads everything that a cache has.
static void use(struct ft_dataset *d) {
    struct ft_sample s = {0};
    struct err_info info = {0};
    int64_t n = ft_dataset_samples(d), tokens = 0, overlap;
    for (int64_t i = 0; i < n; i++) {
        enum err rc = ft_dataset_read(d, i, &s, &info);
        fuzz_require(rc == ERR_OK || (info.message[0] && info.code == rc));
        if (rc)
            continue;
        int32_t targets = 0;
        for (int32_t t = 0; t < s.n; t++)
            targets += s.mask[t];
        for (int32_t t = 0; t < s.n2; t++)
            targets += s.mask2[t];
        fuzz_require(targets == ft_dataset_supervised(d, i) &&
                     s.n + s.n2 == ft_dataset_length(d, i));
        tokens += s.n + s.n2;
    }
    fuzz_require(tokens <= ft_dataset_report(d)->tokens);
    fuzz_require(ft_dataset_overlap(d, d, &overlap) == ERR_OK && overlap == n);
    ft_sample_fini(&s);
}

static void fuzz_cache(const uint8_t *p, size_t n) {
    char path[64];
    int fd = memory_file(p, n, path);
    struct ft_dataset *d = NULL;
    struct err_info info = {0};
    enum err rc = ft_dataset_open(path, &d, &info);
    fuzz_require((rc == ERR_OK) == (d != NULL) && (d || info.message[0]));
    if (d)
        use(d);
    ft_dataset_close(d);
    close(fd);
}

// Head, trailer and sizes right, the samples' hashes where they are within bounds.
static void seal(uint8_t *p, size_t n) {
    uint8_t *trailer = p + n - FT__TRAILER, sum[SHA256_BYTES];
    size_t room = n - FT__HEAD - FT__TRAILER;
    size_t samples = (size_t)(trailer[8 + 24] % 8);
    if (samples * FT__ENTRY > room)
        samples = room / FT__ENTRY;
    size_t index = n - FT__TRAILER - samples * FT__ENTRY;
    for (size_t i = 0; i < samples; i++) {
        struct ft__entry e;
        ft__entry_get(p + index + i * FT__ENTRY, &e);
        uint64_t bytes = 8 + 4 * ((uint64_t)(uint32_t)e.n + (uint32_t)e.n2);
        if (e.offset >= index || bytes > index - e.offset)
            continue;
        fuzz_require(sha256(p + e.offset, (size_t)bytes, sum) == ERR_OK);
        memcpy(p + index + i * FT__ENTRY + FT__ENTRY - FT__HASH, sum, FT__HASH);
    }
    ft__head_put(p);
    memcpy(trailer, FT__MAGIC, 8);
    ft__put64(trailer + 8, FT__VERSION);
    ft__put64(trailer + 8 + 8 * 3, samples);
    ft__put64(trailer + 8 + 8 * 13, index);
    ft__put64(trailer + 8 + 8 * 14, n);
    fuzz_require(sha256(p + index, samples * FT__ENTRY, trailer + 256 + 64) == ERR_OK);
    fuzz_require(sha256(trailer, FT__TRAILER - 32, trailer + FT__TRAILER - 32) == ERR_OK);
}

static void fuzz_sealed(const uint8_t *p, size_t n) {
    if (n < FT__HEAD + FT__TRAILER)
        return;
    uint8_t *copy = malloc(n);
    fuzz_require(copy != NULL);
    memcpy(copy, p, n);
    seal(copy, n);
    fuzz_cache(copy, n);
    free(copy);
}

static void check_report(const struct ft_dataset_report *r, enum err rc,
                         const struct err_info *info) {
    fuzz_require(rc == ERR_OK || info->message[0]);
    fuzz_require(rc != ERR_OK || (r->n_errors == 0 && r->samples > 0));
    fuzz_require(r->n_told <= FT_MAX_ERRORS && r->n_told <= r->n_errors &&
                 !r->n_told == !r->n_errors);
    for (int64_t i = 0; i < r->n_told; i++) {
        const struct ft_line_error *e = &r->errors[i];
        fuzz_require(e->code && e->text[0] && utf8_valid(e->text, strlen(e->text)) &&
                     e->line >= 0 && e->last >= e->line && e->last <= r->lines);
        fuzz_require(!i || e->line > e[-1].last);
    }
    fuzz_require(r->supervised >= r->samples && r->tokens >= r->supervised + r->samples &&
                 r->duplicates <= r->samples);
}

static void plan(struct ft_dataset *d) {
    struct ft_plan_config cfg = {
        .data = ft_dataset_lengths(d),
        .epochs = 1,
        .batch_size = 3,
        .row_tokens = 2 * (int32_t)ft_dataset_report(d)->longest,
        .packing = true,
        .shuffle = true,
    };
    struct ft_plan *p;
    struct ft_row row = {0};
    int64_t targets = 0;
    fuzz_require(ft_plan_create(&cfg, &p, NULL) == ERR_OK);
    for (int64_t i = 0; i < ft_plan_steps(p); i++) {
        struct ft_plan_step s;
        fuzz_require(ft_plan_at(p, i, &s, NULL) == ERR_OK);
        for (int32_t j = 0; j < s.n_rows; j++) {
            fuzz_require(ft_row_read(d, &s, j, 1, &row, NULL) == ERR_OK);
            targets += row.targets;
        }
    }
    fuzz_require(targets == ft_dataset_report(d)->supervised);
    ft_row_fini(&row);
    ft_plan_destroy(p);
}

static void fuzz_lines(const uint8_t *p, size_t n, int how, bool preference) {
    char path[64], folder[] = "/dev/shm/graft-fuzz-XXXXXX", cache[64];
    struct ft_dataset_report report;
    struct err_info info = {0};
    struct chat_template *t = NULL;
    struct tokenizer *tokenizer = make_tokenizer();
    fuzz_require(chat_template_parse(template_text, strlen(template_text), &t, NULL) == ERR_OK);
    fuzz_require(mkdtemp(folder) != NULL);
    snprintf(cache, sizeof cache, "%s/cache", folder);
    int fd = memory_file(p, n, path);
    struct ft_dataset_opts opts = {
        .tokenizer = tokenizer,
        .chat_template = t,
        .eos = -1,
        .max_seq_len = how & 8 ? 4096 : 40,
        .truncation = (enum ft_truncation)(how % 3),
        .preference = preference,
        .max_line = 1 << 14,
    };
    enum err rc = ft_dataset_build(path, cache, &opts, &report, &info);
    check_report(&report, rc, &info);
    struct ft_dataset *d = NULL;
    enum err opened = ft_dataset_open(cache, &d, &info);
    fuzz_require(opened == (rc ? ERR_NOT_FOUND : ERR_OK));
    if (d) {
        fuzz_require(!memcmp(ft_dataset_report(d), &report, sizeof report));
        use(d);
        plan(d);
        unlink(cache);
    }
    fuzz_require(rmdir(folder) == 0); // nothing else was left
    ft_dataset_close(d);
    close(fd);
    chat_template_destroy(t);
    tokenizer_destroy(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    int64_t live = mem_live_blocks();
    int how = data[0];
    if (how % 4 == 0)
        fuzz_cache(data + 1, size - 1);
    else if (how % 4 == 1)
        fuzz_sealed(data + 1, size - 1);
    else
        fuzz_lines(data + 1, size - 1, how >> 2, how % 4 == 3);
    fuzz_require(mem_live_blocks() == live);
    return 0;
}
