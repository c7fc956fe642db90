// SPDX-License-Identifier: Apache-2.0
// Whole models on disk: every tensor of the golden models against what the gguf and safetensors
// packages read; files that change while they are open; GGUF models that are no llama, or no sound
// one; mutations and allocation failures of whole files.
#include "base/hash.h"
#include "base/mem.h"
#include "model/source.h"
#include "tests/model/gguf_build.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/disk.h"
#include "tests/support/temp_folder.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODELS "tests/golden/models/"

static struct mdl_source *open_ok(const char *path) {
    struct mdl_source *s = NULL;
    struct err_info info = {.code = ERR_OK};
    enum err e = mdl_source_open(path, &s, &info);
    if (e)
        fail_msg("%s: %s: %s", path, err_name(e), info.message);
    return s;
}

static void open_fails(const char *path, enum err want, const char *says) {
    struct mdl_source *s = NULL;
    struct err_info info = {.code = ERR_OK};
    enum err e = mdl_source_open(path, &s, &info);
    if (e != want || !strstr(info.message, says))
        fail_msg("%s: %s: %s", path, err_name(e), info.message);
}

// Bytes of a tensor, read in two pieces that no block divides evenly.
static void *read_tensor(const struct mdl_source *s, const struct mdl_tensor *t) {
    struct err_info info;
    char *p = malloc(t->bytes);
    size_t cut = t->bytes / 3;
    assert_non_null(p);
    assert_int_equal(mdl_source_read(s, t, cut, t->bytes - cut, p + cut, &info), ERR_OK);
    assert_int_equal(mdl_source_read(s, t, 0, cut, p, &info), ERR_OK);
    return p;
}

static void check_tensor(const struct mdl_source *s, const char *line) {
    char name[128], type[16], dims[64], sha[40], hex[2 * SHA256_BYTES + 1], found[64];
    uint8_t sum[SHA256_BYTES];
    assert_int_equal(sscanf(line, "%127s %15s %63s %39s", name, type, dims, sha), 4);
    const struct mdl_tensor *t = mdl_source_tensor(s, name);
    if (!t)
        fail_msg("no tensor %s", name);
    assert_string_equal(t->name, name);
    assert_string_equal(kn_dtype_name(t->dtype), type);
    snprintf(found, sizeof found, t->n_dims == 2 ? "%lldx%lld" : "%lld", (long long)t->dims[0],
             (long long)t->dims[1]);
    assert_string_equal(found, dims);
    void *p = read_tensor(s, t);
    assert_int_equal(sha256(p, t->bytes, sum), ERR_OK);
    free(p);
    hex_encode(sum, sizeof sum, hex);
    hex[32] = '\0';
    assert_string_equal(hex, sha);
}

static void test_tensors(void **state) {
    (void)state;
    char line[256], name[64], path[DISK_PATH];
    struct mdl_source *s = NULL;
    size_t n_models = 0, n_tensors = 0, bytes = 0;
    FILE *f = fopen(MODELS "tensors.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "model ", 6) == 0) {
            assert_int_equal(sscanf(line + 6, "%63s", name), 1);
            if (s)
                assert_int_equal(n_tensors, mdl_source_tensor_count(s));
            mdl_source_close(s);
            s = open_ok(disk_join(path, MODELS, name));
            n_models++;
            n_tensors = bytes = 0;
            for (size_t i = 0; i < mdl_source_tensor_count(s); i++)
                bytes += mdl_source_tensor_at(s, i)->bytes;
            assert_int_equal(bytes, mdl_source_bytes(s));
            continue;
        }
        check_tensor(s, line);
        n_tensors++;
    }
    assert_int_equal(n_tensors, mdl_source_tensor_count(s));
    assert_null(mdl_source_tensor(s, "model.layers.2.input_layernorm.weight"));
    assert_null(mdl_source_tensor_at(s, n_tensors));
    mdl_source_close(s);
    fclose(f);
    assert_int_equal(n_models, 15);
}

static void test_config(void **state) {
    (void)state;
    struct mdl_source *s = open_ok(MODELS "bf16.gguf");
    const struct mdl_config *c = mdl_source_config(s);
    assert_string_equal(c->architecture, "llama");
    assert_int_equal(c->n_layers, 2);
    assert_int_equal(c->hidden, 48);
    assert_int_equal(c->intermediate, 64);
    assert_int_equal(c->n_heads, 6);
    assert_int_equal(c->n_kv_heads, 2);
    assert_int_equal(c->head_dim, 16);
    assert_int_equal(c->vocab, 288);
    assert_int_equal(c->context, 256);
    assert_false(c->tied);
    assert_true(fabsf(c->rms_eps - 1e-5f) < 1e-9f);
    assert_true(fabsf(c->rope_theta - 10000) < 1e-3f);
    assert_int_equal(c->rope_kind, MDL_ROPE_DEFAULT);
    assert_int_equal(c->bos, 1);
    assert_int_equal(c->n_eos, 2); // the key's, and <|endoftext|> by its text
    assert_int_equal(c->eos[0], 2);
    assert_int_equal(c->eos[1], 0);
    assert_true(c->gen_temperature < 0);
    assert_true(mdl_source_rope_permuted(s));
    assert_string_equal(mdl_source_name(s), "bf16");
    assert_int_equal(mdl_source_file_count(s), 1);
    assert_string_equal(mdl_source_file(s, 0), MODELS "bf16.gguf");
    mdl_source_close(s);
    s = open_ok(MODELS "q8_0.gguf");
    assert_true(mdl_source_config(s)->tied);
    mdl_source_close(s);
}

// llama3's scaling, once as config.json has it and once as a GGUF file's tensor.
static void test_rope_factors(void **state) {
    (void)state;
    struct mdl_source *a = open_ok(MODELS "llama3.gguf"), *b = open_ok(MODELS "hf-llama3");
    float fa[MDL_MAX_HEAD_DIM / 2], fb[MDL_MAX_HEAD_DIM / 2];
    assert_int_equal(mdl_source_config(a)->rope_kind, MDL_ROPE_FACTORS);
    assert_int_equal(mdl_source_config(b)->rope_kind, MDL_ROPE_LLAMA3);
    assert_null(mdl_source_tensor(a, "rope_freqs.weight"));
    mdl_rope_inv_freq(mdl_source_config(a), fa);
    mdl_rope_inv_freq(mdl_source_config(b), fb);
    for (int i = 0; i < 8; i++)
        assert_true(fabsf(fa[i] - fb[i]) <= 1e-6f * fb[i]);
    mdl_source_close(a);
    mdl_source_close(b);
}

static void encode(const char *model, const char *text, struct tok_ids *ids, struct buf *back) {
    struct err_info info;
    struct tokenizer *t = NULL;
    struct tok_encode_opts opts = {.add_special = true, .parse_special = true};
    struct mdl_source *s = open_ok(model);
    enum err e = mdl_source_tokenizer(s, &t, &info);
    if (e)
        fail_msg("%s: %s", model, info.message);
    mdl_source_close(s); // the tokenizer stands on its own
    assert_int_equal(tokenizer_vocab_size(t), 288);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), &opts, ids, &info), ERR_OK);
    assert_int_equal(tokenizer_decode(t, ids->ids, ids->n, false, back), ERR_OK);
    tokenizer_destroy(t);
}

static void test_tokenizer(void **state) {
    (void)state;
    static const char text[] = "<|im_start|>the inner thing and 123 \xc3\xa9<|im_end|>";
    struct tok_ids a = {0}, b = {0};
    struct buf back;
    buf_init(&back, 0);
    encode(MODELS "q8_0.gguf", text, &a, &back);
    assert_string_equal(back.data, text);
    encode(MODELS "hf-llama3", text, &b, &back);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
    assert_int_equal(a.ids[0], 1);
    assert_int_equal(a.ids[a.n - 1], 2);
    assert_true(a.n < strlen(text) - 20 - 8); // merges were made
    tok_ids_fini(&a);
    tok_ids_fini(&b);
    buf_fini(&back);
}

static void test_no_model(void **state) {
    (void)state;
    char dir[DISK_PATH], path[DISK_PATH];
    temp_folder(dir, "model");
    open_fails(disk_join(path, dir, "absent"), ERR_NOT_FOUND, "cannot open: No such file");
    open_fails(dir, ERR_NOT_FOUND, "no config.json");
    open_fails("/dev/null", ERR_FORMAT, "not a regular file");
    assert_int_equal(mkfifo(disk_join(path, dir, "fifo"), 0600), 0);
    open_fails(path, ERR_FORMAT, "not a regular file"); // and does not wait for a writer
    disk_write(disk_join(path, dir, "empty.gguf"), "", 0);
    open_fails(path, ERR_UNSUPPORTED, "not a GGUF file");
    open_fails(MODELS "hf-f32/model.safetensors", ERR_UNSUPPORTED, "not a GGUF file; a model is");
    disk_write(disk_join(path, dir, "short.gguf"), "GGUF", 4);
    open_fails(path, ERR_FORMAT, "runs past the end of the file (byte 4)");
    temp_remove(dir);
}

// A file that shrinks while a model is loaded from it is an error, not a signal.
static void test_truncated_while_open(void **state) {
    (void)state;
    char dir[DISK_PATH], path[DISK_PATH];
    struct err_info info;
    size_t n_short = 0;
    temp_folder(dir, "model");
    disk_copy(MODELS "f32.gguf", disk_join(path, dir, "m.gguf"));
    struct mdl_source *s = open_ok(path);
    assert_int_equal(mdl_source_check_unchanged(s, &info), ERR_OK);
    assert_int_equal(truncate(path, 50000), 0);
    for (size_t i = 0; i < mdl_source_tensor_count(s); i++) {
        const struct mdl_tensor *t = mdl_source_tensor_at(s, i);
        char *p = malloc(t->bytes);
        assert_non_null(p);
        enum err e = mdl_source_read(s, t, 0, t->bytes, p, &info);
        assert_int_equal(e, t->offset + t->bytes > 50000 ? ERR_IO : ERR_OK);
        if (e) {
            n_short++;
            assert_non_null(strstr(info.message, t->name));
            assert_non_null(strstr(info.message, "has become shorter"));
        }
        free(p);
    }
    assert_true(n_short > 5);
    assert_int_equal(mdl_source_check_unchanged(s, &info), ERR_IO);
    assert_non_null(strstr(info.message, "m.gguf: the file changed"));
    mdl_source_close(s);

    // Shorter, with the old time put back.
    struct stat st;
    disk_copy(MODELS "f32.gguf", path);
    s = open_ok(path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, 49999), 0);
    const struct timespec times[2] = {{0, UTIME_OMIT}, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(mdl_source_check_unchanged(s, &info), ERR_IO);
    mdl_source_close(s);
    temp_remove(dir);
}

// A file that is replaced as one should (aside, then rename) is read as it was.
static void test_replaced_while_open(void **state) {
    (void)state;
    char dir[DISK_PATH], path[DISK_PATH], aside[DISK_PATH];
    struct err_info info;
    temp_folder(dir, "model");
    disk_copy(MODELS "f32.gguf", disk_join(path, dir, "m.gguf"));
    struct mdl_source *s = open_ok(path);
    disk_write(disk_join(aside, dir, "aside"), "x", 1);
    assert_int_equal(rename(aside, path), 0);
    const struct mdl_tensor *t = mdl_source_tensor(s, "model.norm.weight");
    free(read_tensor(s, t));
    assert_int_equal(mdl_source_check_unchanged(s, &info), ERR_OK);
    assert_int_equal(mdl_source_read(s, t, t->bytes, 1, &info, &info), ERR_INTERNAL);
    mdl_source_close(s);
    temp_remove(dir);
}

// The metadata of a small llama; `skip` leaves that key out, so that a test can set another value.
static void build_llama(struct gguf_build *b, const char *skip) {
    static const struct {
        const char *key;
        uint32_t v;
    } ints[] = {{"llama.block_count", 1},          {"llama.embedding_length", 32},
                {"llama.feed_forward_length", 32}, {"llama.attention.head_count", 2},
                {"llama.context_length", 64},      {"llama.vocab_size", 4},
                {"tokenizer.ggml.eos_token_id", 2}};
    static const float eps = 1e-5f;
    const uint64_t embed[] = {32, 4};
    gb_init(b);
    if (strcmp(skip, "general.architecture") != 0)
        gb_str(b, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        if (strcmp(skip, ints[i].key) != 0)
            gb_u32(b, ints[i].key, ints[i].v);
    if (strcmp(skip, "llama.attention.layer_norm_rms_epsilon") != 0) {
        gb_key(b, "llama.attention.layer_norm_rms_epsilon", 6);
        gb_raw(b, &eps, 4);
    }
    if (strcmp(skip, "token_embd.weight") != 0)
        gb_tensor(b, "token_embd.weight", 2, embed, 0, 0);
    b->data_bytes = 1024;
}

// Opens what was built; want ERR_OK returns the source.
static struct mdl_source *finish(struct gguf_build *b, enum err want, const char *says) {
    struct mdl_source *s = NULL;
    struct disk_memory m;
    size_t n;
    uint8_t *p = gb_finish(b, &n);
    disk_memory_open(&m, p, n);
    free(p);
    if (want == ERR_OK)
        s = open_ok(m.path);
    else
        open_fails(m.path, want, says);
    disk_memory_close(&m);
    return s;
}

// As the path was given: links are not followed, since caches call files by digests.
static void test_names(void **state) {
    (void)state;
    char dir[TEMP_PATH], path[TEMP_PATH + 32], model[4096];
    temp_folder(dir, "model");
    assert_non_null(realpath(MODELS "bf16.gguf", model));
    static const struct {
        const char *file, *name;
    } all[] = {{"Some-Model.Q4_1.gguf", "Some-Model.Q4_1"}, {"plain", "plain"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, all[i].file);
        assert_int_equal(symlink(model, path), 0);
        struct mdl_source *s = open_ok(path);
        assert_string_equal(mdl_source_name(s), all[i].name);
        mdl_source_close(s);
    }
    temp_remove(dir);
}

static void test_minimal(void **state) {
    (void)state;
    struct gguf_build b;
    struct tokenizer *t;
    struct err_info info;
    const char *text;
    size_t len;
    build_llama(&b, "llama.vocab_size");
    gb_str(&b, "general.name", "a\nb"); // no name for a log line
    struct mdl_source *s = finish(&b, ERR_OK, NULL);
    const struct mdl_config *c = mdl_source_config(s);
    assert_int_equal(c->vocab, 4);
    assert_int_equal(c->n_kv_heads, 2);
    assert_int_equal(c->head_dim, 16);
    assert_int_equal(c->n_eos, 1);
    assert_int_equal(c->bos, -1);
    assert_null(strstr(mdl_source_name(s), "a\nb"));
    mdl_source_chat_template(s, &text, &len);
    assert_null(text);
    assert_int_equal(mdl_source_tokenizer(s, &t, &info), ERR_FORMAT);
    assert_non_null(strstr(info.message, "tokenizer.ggml.tokens: is missing"));
    mdl_source_close(s);
}

static void test_missing_keys(void **state) {
    (void)state;
    static const char *const keys[] = {"general.architecture",
                                       "llama.block_count",
                                       "llama.embedding_length",
                                       "llama.feed_forward_length",
                                       "llama.attention.head_count",
                                       "llama.context_length",
                                       "llama.attention.layer_norm_rms_epsilon",
                                       "token_embd.weight"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct gguf_build b;
        build_llama(&b, keys[i]);
        finish(&b, ERR_FORMAT, keys[i]);
    }
}

static const struct {
    const char *key;
    const char *text; // NULL: v is the value
    uint32_t v;
    enum err want;
    const char *says;
} other_values[] = {
    {"general.architecture", "qwen3moe", 0, ERR_UNSUPPORTED,
     "architecture qwen3moe is not supported; llama (Llama 2, Llama 3.x, SmolLM2) is"},
    {"general.architecture", NULL, 1, ERR_FORMAT, "general.architecture: must be a string"},
    {"split.count", NULL, 3, ERR_UNSUPPORTED, "split.count: a model in 3 GGUF files"},
    {"llama.block_count", NULL, 0, ERR_FORMAT, "layers is 0"},
    {"llama.block_count", NULL, 100000, ERR_FORMAT, "layers is 100000"},
    {"llama.block_count", "2", 0, ERR_FORMAT, "llama.block_count: must be an integer"},
    {"llama.embedding_length", NULL, 33, ERR_FORMAT, "llama.attention.key_length: is missing"},
    {"llama.attention.head_count", NULL, 0, ERR_FORMAT, "key_length: is missing"},
    {"llama.attention.head_count_kv", NULL, 3, ERR_FORMAT, "key-value heads is 3"},
    {"llama.attention.key_length", NULL, 24, ERR_OK, NULL},
    {"llama.attention.key_length", NULL, 15, ERR_FORMAT, "head dimension, 15, is odd"},
    {"llama.attention.value_length", NULL, 8, ERR_UNSUPPORTED, "value_length: 8 other than"},
    {"llama.rope.dimension_count", NULL, 8, ERR_UNSUPPORTED, "dimension_count: 8 of 16"},
    {"llama.rope.scaling.type", "none", 0, ERR_OK, NULL},
    {"llama.rope.scaling.type", "yarn", 0, ERR_UNSUPPORTED, "type yarn"},
    {"llama.expert_count", NULL, 8, ERR_UNSUPPORTED, "llama.expert_count: 8 is not supported"},
    {"llama.attention.sliding_window", NULL, 4096, ERR_UNSUPPORTED, "sliding_window: 4096"},
    {"llama.vocab_size", NULL, 5, ERR_FORMAT, "llama.vocab_size: 5, but token_embd.weight has 4"},
    {"llama.vocab_size", NULL, 0x80000000u, ERR_FORMAT, "llama.vocab_size: must be between"},
    {"llama.context_length", NULL, 0, ERR_FORMAT, "the context length is 0"},
    {"tokenizer.ggml.eos_token_id", NULL, 4, ERR_FORMAT, "eos_token_id: must be between 0 and 3"},
    {"tokenizer.ggml.bos_token_id", NULL, 4, ERR_FORMAT, "bos_token_id: must be between 0 and 3"},
    {"tokenizer.chat_template", "{{ \xff }}", 0, ERR_FORMAT, "the chat template is not UTF-8"},
};

static void test_other_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof other_values / sizeof *other_values; i++) {
        struct gguf_build b;
        build_llama(&b, other_values[i].key);
        if (other_values[i].text)
            gb_str(&b, other_values[i].key, other_values[i].text);
        else
            gb_u32(&b, other_values[i].key, other_values[i].v);
        if (strcmp(other_values[i].key, "llama.attention.key_length") == 0)
            gb_u32(&b, "llama.attention.value_length", other_values[i].v);
        mdl_source_close(finish(&b, other_values[i].want, other_values[i].says));
    }
}

static void put_float(struct gguf_build *b, const char *key, float v) {
    gb_key(b, key, 6);
    gb_raw(b, &v, 4);
}

static void test_rope_values(void **state) {
    (void)state;
    static const struct {
        const char *key;
        float v;
        enum err want;
        const char *says;
    } rows[] = {
        {"llama.rope.freq_base", 0, ERR_FORMAT, "the RoPE base is 0"},
        {"llama.rope.freq_base", INFINITY, ERR_FORMAT, "freq_base: must be a finite number"},
        {"llama.rope.scaling.factor", 4, ERR_UNSUPPORTED, "a factor of 4 is not supported"},
        {"llama.rope.scaling.factor", 1, ERR_OK, NULL},
        {"llama.rope.scale_linear", 2, ERR_UNSUPPORTED, "a factor of 2 is not supported"},
        {"llama.attention.layer_norm_rms_epsilon", NAN, ERR_FORMAT, "epsilon: must be a finite"},
        {"llama.attention.layer_norm_rms_epsilon", -1, ERR_FORMAT, "epsilon is -1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gguf_build b;
        build_llama(&b, rows[i].key);
        put_float(&b, rows[i].key, rows[i].v);
        mdl_source_close(finish(&b, rows[i].want, rows[i].says));
    }
}

static void test_other_tensors(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t dims[2];
        uint32_t type; // F32 or F16
        enum err want;
        const char *says;
    } rows[] = {
        {"blk.0.attn_q.weight", {32, 4}, 0, ERR_OK, NULL},
        {"blk.0.attn_q.bias", {4, 1}, 0, ERR_OK, NULL}, // the loader knows that it is not wanted
        {"blk.00.attn_q.weight", {32, 4}, 0, ERR_UNSUPPORTED, "blk.00.attn_q.weight is not part"},
        {"blk.0.ffn_gate_exps.weight", {32, 4}, 0, ERR_UNSUPPORTED, "ffn_gate_exps.weight is not"},
        {"blk.99999999.attn_q.weight", {32, 4}, 0, ERR_UNSUPPORTED, "is not part"},
        {"blk..attn_q.weight", {32, 4}, 0, ERR_UNSUPPORTED, "is not part"},
        {"blk.0", {32, 4}, 0, ERR_UNSUPPORTED, "is not part"},
        {"model.norm.weight", {32, 1}, 0, ERR_UNSUPPORTED, "is not part"},
        {"rope_freqs.weight", {8, 2}, 0, ERR_FORMAT, "rope_freqs.weight: must be F32"},
        {"rope_freqs.weight", {8, 1}, 1, ERR_FORMAT, "rope_freqs.weight: must be F32"},
        {"rope_freqs.weight", {8, 1}, 0, ERR_FORMAT, "a RoPE frequency factor is 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gguf_build b;
        build_llama(&b, "");
        gb_tensor(&b, rows[i].name, rows[i].dims[1] == 1 ? 1 : 2, rows[i].dims, rows[i].type, 512);
        mdl_source_close(finish(&b, rows[i].want, rows[i].says));
    }
}

// Opens the file as it is now and uses it like a loader would; errors are fine, anything else not.
static bool survives(const char *path) {
    struct mdl_source *s = NULL;
    struct tokenizer *t = NULL;
    struct err_info info = {.code = ERR_OK};
    char bytes[64];
    int64_t live = mem_live_blocks();
    enum err e = mdl_source_open(path, &s, &info);
    assert_true(e == ERR_OK || info.message[0]);
    if (!e) {
        for (size_t i = 0; i < mdl_source_tensor_count(s); i++) {
            const struct mdl_tensor *x = mdl_source_tensor_at(s, i);
            size_t n = x->bytes < sizeof bytes ? x->bytes : sizeof bytes;
            assert_int_equal(mdl_source_read(s, x, x->bytes - n, n, bytes, &info), ERR_OK);
        }
        if (mdl_source_tokenizer(s, &t, &info) == ERR_OK)
            tokenizer_destroy(t);
        mdl_source_close(s);
    }
    assert_int_equal(mem_live_blocks(), live);
    return e == ERR_OK;
}

static void test_gguf_cut_everywhere(void **state) {
    (void)state;
    struct disk_memory m;
    size_t n;
    char *p = disk_read(MODELS "q8_0.gguf", &n);
    disk_memory_open(&m, p, n);
    assert_true(survives(m.path));
    assert_int_equal(n % 32, 0);
    for (size_t cut = n; cut-- > 0;) {
        if (cut > 8000 && cut % 997)
            continue; // each offset of the header, some of the data
        disk_memory_cut(&m, cut);
        assert_false(survives(m.path));
    }
    disk_memory_close(&m);
    free(p);
}

// A fixed pseudo-random sequence (SplitMix64).
static uint64_t next_random(uint64_t *x) {
    *x += 0x9e3779b97f4a7c15;
    return hash_mix64(*x);
}

static void test_gguf_flipped_bits(void **state) {
    (void)state;
    struct disk_memory m;
    uint64_t seed = 1;
    size_t n, taken = 0;
    char *p = disk_read(MODELS "q8_0.gguf", &n);
    disk_memory_open(&m, p, n);
    for (int i = 0; i < 4000; i++) {
        size_t at = next_random(&seed) % 7000; // the header
        char c = (char)(p[at] ^ (1 << next_random(&seed) % 8));
        disk_memory_write(&m, at, &c, 1);
        taken += survives(m.path);
        disk_memory_write(&m, at, &p[at], 1);
    }
    assert_in_range(taken, 400, 3600); // a flip inside a token's text is none of our business
    disk_memory_close(&m);
    free(p);
}

static void check_allocation_failures(const char *path) {
    int64_t live = mem_live_blocks();
    enum err e = ERR_NOMEM;
    uint64_t nth = 1;
    for (; e; nth++) {
        struct mdl_source *s = NULL;
        struct tokenizer *t = NULL;
        struct err_info info = {.code = ERR_OK};
        mem_fail_after(nth, false);
        e = mdl_source_open(path, &s, &info);
        if (!e)
            e = mdl_source_tokenizer(s, &t, &info);
        mem_fail_after(0, false);
        if (e != ERR_OK && e != ERR_NOMEM)
            fail_msg("%s: allocation %llu: %s", path, (unsigned long long)nth, info.message);
        tokenizer_destroy(t);
        mdl_source_close(s);
        assert_int_equal(mem_live_blocks(), live);
    }
    assert_in_range(nth, 10, 100000);
}

static void test_allocation_failures(void **state) {
    (void)state;
    check_allocation_failures(MODELS "q8_0.gguf");
    check_allocation_failures(MODELS "hf-llama3");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_rope_factors),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_no_model),
        cmocka_unit_test(test_truncated_while_open),
        cmocka_unit_test(test_replaced_while_open),
        cmocka_unit_test(test_minimal),
        cmocka_unit_test(test_missing_keys),
        cmocka_unit_test(test_other_values),
        cmocka_unit_test(test_rope_values),
        cmocka_unit_test(test_other_tensors),
        cmocka_unit_test(test_gguf_cut_everywhere),
        cmocka_unit_test(test_gguf_flipped_bits),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests_name("source", tests, NULL, NULL);
}
