// SPDX-License-Identifier: Apache-2.0
// PEFT folders: what peft saved is read value by value, each thing that is wrong is refused by
// name, what is written is read back with the same bits, and each allocation may fail.
#include "base/hash.h"
#include "base/mem.h"
#include "model/adapter.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/disk.h"
#include "tests/support/temp_folder.h"
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ADAPTERS "tests/golden/adapters/"
#define CONFIG "adapter_config.json"
#define TENSORS "adapter_model.safetensors"

// tests/golden/models/hf-f32
static const struct mdl_config shape = {
    .n_layers = 2, .hidden = 32, .intermediate = 48, .n_heads = 2, .n_kv_heads = 1, .head_dim = 16};

static char dir[DISK_PATH]; // of the running test

static int teardown(void **state) {
    (void)state;
    if (*dir)
        temp_remove(dir);
    *dir = '\0';
    return 0;
}

static void begin(const char *name) {
    char from[DISK_PATH];
    snprintf(from, sizeof from, ADAPTERS "%s", name);
    teardown(NULL);
    temp_folder(dir, "model");
    disk_copy_folder(from, dir);
}

static const char *in_dir(const char *name) {
    static char path[DISK_PATH];
    return disk_join(path, dir, name);
}

static struct mdl_adapter *read_ok(const char *path) {
    struct mdl_adapter *a = NULL;
    struct err_info info = {.code = ERR_OK};
    enum err e = mdl_adapter_read(path, &shape, NULL, &a, &info);
    if (e)
        fail_msg("%s: %s: %s", path, err_name(e), info.message);
    return a;
}

static void fails_within(const struct mdl_adapter_limits *limits, enum err want, const char *says) {
    struct mdl_adapter *a = NULL;
    struct err_info info = {.code = ERR_OK};
    int64_t live = mem_live_blocks();
    enum err e = mdl_adapter_read(dir, &shape, limits, &a, &info);
    if (e != want || !strstr(info.message, says))
        fail_msg("wanted \"%s\", got %s: %s", says, err_name(e), info.message);
    assert_null(a);
    assert_int_equal(mem_live_blocks(), live);
}

static void fails(enum err want, const char *says) {
    fails_within(NULL, want, says);
}

// ---- reading

struct expected {
    enum mdl_target t;
    int32_t layer, r;
    double alpha, scale;
};

static void expect(const struct mdl_adapter *a, const struct expected *e, size_t n) {
    size_t modules = 0;
    for (int32_t i = 0; i < a->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++)
            modules += a->modules[i][t].r > 0;
    assert_int_equal(modules, n);
    for (size_t i = 0; i < n; i++) {
        const struct mdl_adapter_module *m = &a->modules[e[i].layer][e[i].t];
        assert_int_equal(m->r, e[i].r);
        assert_true(fabs((double)m->alpha - e[i].alpha) < 1e-6);
        assert_true(fabs((double)m->scale - e[i].scale) < 1e-6 * e[i].scale);
        assert_true(m->a && m->b);
    }
}

static void test_read(void **state) {
    (void)state;
    static const struct expected qv[] = {{MDL_TARGET_Q, 0, 4, 10, 2.5},
                                         {MDL_TARGET_V, 0, 4, 10, 2.5},
                                         {MDL_TARGET_Q, 1, 4, 10, 2.5},
                                         {MDL_TARGET_V, 1, 4, 10, 2.5}};
    static const struct expected rslora[] = {{MDL_TARGET_O, 1, 16, 7, 1.75},
                                             {MDL_TARGET_GATE, 1, 16, 7, 1.75},
                                             {MDL_TARGET_UP, 1, 16, 7, 1.75}};
    static const struct expected patterns[] = {
        {MDL_TARGET_Q, 0, 3, 12, 4},       {MDL_TARGET_K, 0, 1, 8, 8},
        {MDL_TARGET_DOWN, 0, 5, 8, 1.6},   {MDL_TARGET_Q, 1, 17, 12, 12.0 / 17},
        {MDL_TARGET_K, 1, 1, 8, 8},        {MDL_TARGET_UP, 1, 17, 8, 8.0 / 17},
        {MDL_TARGET_DOWN, 1, 5, 2.5, 0.5},
    };
    struct mdl_adapter *a = read_ok(ADAPTERS "qv");
    expect(a, qv, 4);
    assert_string_equal(a->base, "hf-f32");
    assert_int_equal(a->max_r, 4);
    assert_false(a->rslora);
    assert_int_equal(a->values, 2 * (4 * (32 + 32) + 4 * (32 + 16)));
    mdl_adapter_destroy(a);
    a = read_ok(ADAPTERS "rslora");
    expect(a, rslora, 3);
    assert_true(a->rslora);
    mdl_adapter_destroy(a);
    a = read_ok(ADAPTERS "patterns");
    expect(a, patterns, 7);
    assert_int_equal(a->max_r, 17);
    mdl_adapter_destroy(a);
    a = read_ok(ADAPTERS "all");
    assert_int_equal(a->modules[1][MDL_TARGET_DOWN].r, 8);
    assert_true(fabsf(a->dropout - 0.05f) < 1e-7f);
    mdl_adapter_destroy(a);
}

// The tensors of a file one after the other are the modules' in the order of names.
static void test_values(void **state) {
    (void)state;
    size_t len;
    char *file = disk_read(ADAPTERS "qv/" TENSORS, &len);
    uint64_t header;
    memcpy(&header, file, sizeof header);
    const char *at = file + 8 + header;
    struct mdl_adapter *a = read_ok(ADAPTERS "qv");
    for (int32_t i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            const struct mdl_adapter_module *m = &a->modules[i][j ? MDL_TARGET_V : MDL_TARGET_Q];
            size_t n_a = 4 * 32 * sizeof(float), n_b = (j ? 16u : 32u) * 4 * sizeof(float);
            assert_memory_equal(m->a, at, n_a);
            assert_memory_equal(m->b, at + n_a, n_b);
            at += n_a + n_b;
        }
    assert_true(at == file + len);
    mdl_adapter_destroy(a);
    free(file);
}

// ---- refusals

struct edit {
    const char *adapter, *file, *from, *to;
    enum err want;
    const char *says;
};

static void run_edits(const struct edit *edits, size_t n) {
    for (size_t i = 0; i < n; i++) {
        begin(edits[i].adapter);
        disk_edit(in_dir(edits[i].file), edits[i].from, edits[i].to);
        fails(edits[i].want, edits[i].says);
    }
}

static void test_config_refused(void **state) {
    (void)state;
#define TARGETS_QV "\"model\\\\.layers\\\\.\\\\d+\\\\.self_attn\\\\.[qv]_proj\""
    static const struct edit edits[] = {
        {"qv", CONFIG, "\"use_dora\": false", "\"use_dora\": true", ERR_UNSUPPORTED, "DoRA"},
        {"qv", CONFIG, "\"bias\": \"none\"", "\"bias\": \"all\"", ERR_UNSUPPORTED, "bias all"},
        {"qv", CONFIG, "\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]",
         ERR_UNSUPPORTED, "modules_to_save"},
        {"qv", CONFIG, "\"fan_in_fan_out\": false", "\"fan_in_fan_out\": true", ERR_UNSUPPORTED,
         "fan_in_fan_out"},
        {"qv", CONFIG, "\"lora_bias\": false", "\"lora_bias\": true", ERR_UNSUPPORTED, "lora_bias"},
        {"qv", CONFIG, "\"use_qalora\": false", "\"use_qalora\": true", ERR_UNSUPPORTED,
         "use_qalora"},
        {"qv", CONFIG, "\"kasa_config\": null", "\"kasa_config\": {\"a\": 1}", ERR_UNSUPPORTED,
         "kasa_config"},
        {"qv", CONFIG, "\"kasa_config\": null", "\"new_thing\": 3", ERR_UNSUPPORTED, "new_thing"},
        {"qv", CONFIG, "\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa_niter_4\"",
         ERR_UNSUPPORTED, "pissa"},
        {"qv", CONFIG, "\"LORA\"", "\"IA3\"", ERR_UNSUPPORTED, "peft_type IA3"},
        {"qv", CONFIG, "\"CAUSAL_LM\"", "\"SEQ_CLS\"", ERR_UNSUPPORTED, "SEQ_CLS"},
        {"qv", CONFIG, "\"r\": 4", "\"r\": 0", ERR_FORMAT, "r must be"},
        {"qv", CONFIG, "\"r\": 4", "\"r\": 4.5", ERR_FORMAT, "r must be"},
        {"qv", CONFIG, "\"r\": 4", "\"r\": 257", ERR_LIMIT, "rank 257 is over the limit of 256"},
        {"qv", CONFIG, "\"r\": 4", "\"R\": 4", ERR_UNSUPPORTED, "R is not supported"},
        {"qv", CONFIG, "\"lora_alpha\": 10", "\"lora_alpha\": \"x\"", ERR_FORMAT, "lora_alpha"},
        {"qv", CONFIG, "\"lora_alpha\": 10", "\"lora_alpha\": 1e300", ERR_FORMAT, "lora_alpha"},
        {"qv", CONFIG, "\"lora_dropout\": 0.0", "\"lora_dropout\": 2", ERR_FORMAT, "lora_dropout"},
        {"qv", CONFIG, TARGETS_QV, "null", ERR_FORMAT, "target_modules is missing"},
        {"qv", CONFIG, TARGETS_QV, "[]", ERR_FORMAT, "target_modules is missing"},
        {"qv", CONFIG, TARGETS_QV, "[\"q_proj\", \"c_attn\"]", ERR_UNSUPPORTED, "c_attn"},
        {"qv", CONFIG, TARGETS_QV, "[\"lm_head\"]", ERR_UNSUPPORTED, "lm_head"},
        {"qv", CONFIG, TARGETS_QV, "[3]", ERR_FORMAT, "target_modules"},
        {"qv", CONFIG, TARGETS_QV, "\"nothing\"", ERR_UNSUPPORTED, "no module of this model"},
        {"qv", CONFIG, TARGETS_QV, "\"q_proj\"", ERR_UNSUPPORTED, "no module of this model"},
        {"qv", CONFIG, TARGETS_QV, "\"(q\"", ERR_FORMAT, "regular expression"},
        {"qv", CONFIG, TARGETS_QV, "\"(?:(?:[a-z0-9._]+)+)+[A-Z]\"", ERR_LIMIT, "too long"},
        {"qv", CONFIG, TARGETS_QV, "\".*self_attn.*\"", ERR_FORMAT,
         "layers.0.self_attn.k_proj.lora_A.weight is missing; expected with shape [4, 32]"},
        {"qv", CONFIG, "[qv]_proj", "q_proj", ERR_FORMAT, "does not target this module"},
        {"qv", CONFIG, "\"layers_to_transform\": null", "\"layers_to_transform\": [1]", ERR_FORMAT,
         "cannot be used"},
        {"qv", CONFIG, "\"r\": 4", "\"r\": 4, \"r\": 4", ERR_FORMAT, "duplicate"},
        {"qv", CONFIG, "{", "[{", ERR_FORMAT, CONFIG ": line"},
        {"patterns", CONFIG, "\"k_proj\": 1", "\"k_proj\": 0", ERR_FORMAT, "rank_pattern"},
        {"patterns", CONFIG, "\"k_proj\": 1", "\"k_proj\": 300", ERR_LIMIT, "rank 300"},
        {"patterns", CONFIG, "\"k_proj\": 1", "\"k_proj\": 2", ERR_FORMAT,
         "layers.0.self_attn.k_proj.lora_B.weight: the shape is [16, 1], expected [16, 2]"},
        {"patterns", CONFIG, "\"1.mlp.down_proj\": 2.5", "\"1.mlp.down_proj\": []", ERR_FORMAT,
         "alpha_pattern"},
        {"patterns", CONFIG, "\"k_proj\": 1", "\"(k\": 1", ERR_FORMAT, "rank_pattern"},
        {"rslora", CONFIG, "\"layers_pattern\": \"layers\"", "\"layers_pattern\": \"h\"",
         ERR_UNSUPPORTED, "no module of this model"},
        {"rslora", CONFIG, "\"layers_pattern\": \"layers\"", "\"layers_pattern\": 3", ERR_FORMAT,
         "layers_pattern"},
    };
    run_edits(edits, sizeof edits / sizeof *edits);
}

static void test_tensors_refused(void **state) {
    (void)state;
#define Q0A "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
#define V1B "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    static const struct edit edits[] = {
        {"qv", TENSORS, "\"shape\":[4,32]", "\"shape\":[32,4]", ERR_FORMAT,
         Q0A ": the shape is [32, 4], expected [4, 32]"},
        {"qv", TENSORS, "\"shape\":[4,32]", "\"shape\":[128] ", ERR_FORMAT, "the shape is [128]"},
        {"qv", TENSORS, Q0A "\":{\"dtype\":\"F32\"", Q0A "\":{\"dtype\":\"I32\"", ERR_UNSUPPORTED,
         Q0A ": dtype I32 is not supported"},
        {"qv", TENSORS, "layers.0.self_attn.q_proj.lora_A", "layers.7.self_attn.q_proj.lora_A",
         ERR_FORMAT, "the model has 2 layers"},
        {"qv", TENSORS, "layers.0.self_attn.q_proj.lora_A", "layers.1.self_attn.k_proj.lora_A",
         ERR_FORMAT, "k_proj.lora_A.weight: adapter_config.json does not target"},
        {"qv", TENSORS, "layers.0.self_attn.q_proj.lora_A", "layers.0.self_attn.q_pr0j.lora_A",
         ERR_FORMAT, "q_pr0j.lora_A.weight: is no lora_A or lora_B weight"},
        {"qv", TENSORS, "layers.0.self_attn.q_proj.lora_A", "layers.0.self_attn.q_proj.lora_C",
         ERR_FORMAT, "is no lora_A or lora_B weight"},
        {"qv", TENSORS, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
         "base_model.model.model.embed_tokens.lora_embedding_A.weight   ", ERR_FORMAT, "embedding"},
        {"qv", TENSORS, "[0,512]", "[8,520]", ERR_FORMAT, TENSORS},
        {"qv", TENSORS, "__metadata__", "__metadatb__", ERR_FORMAT, TENSORS},
    };
    run_edits(edits, sizeof edits / sizeof *edits);
}

static void cut(const char *name, long bytes) {
    size_t len;
    char *text = disk_read(in_dir(name), &len);
    disk_write(in_dir(name), text, bytes < 0 ? len + (size_t)bytes : (size_t)bytes);
    free(text);
}

static void poke(size_t from_end, const void *p, size_t n) {
    size_t len;
    char *text = disk_read(in_dir(TENSORS), &len);
    memcpy(text + len - from_end, p, n);
    disk_write(in_dir(TENSORS), text, len);
    free(text);
}

static void test_files_refused(void **state) {
    (void)state;
    static const float values[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        begin("qv");
        poke(4, &values[i], 4);
        fails(ERR_FORMAT, V1B ": holds a value that is not finite");
    }
    begin("patterns");
    poke(2, "\x80\x7f", 2); // a bf16 infinity
    fails(ERR_FORMAT, "not finite");
    begin("qv");
    cut(TENSORS, -1);
    fails(ERR_FORMAT, TENSORS);
    cut(TENSORS, 5);
    fails(ERR_FORMAT, TENSORS);
    unlink(in_dir(TENSORS));
    fails(ERR_NOT_FOUND, TENSORS " is missing");
    disk_write(in_dir("adapter_model.bin"), "x", 1);
    fails(ERR_UNSUPPORTED, "adapter_model.bin");
    begin("qv");
    cut(CONFIG, 20);
    fails(ERR_FORMAT, CONFIG);
    unlink(in_dir(CONFIG));
    fails(ERR_NOT_FOUND, CONFIG " is missing");
    begin("qv");
    fails_within(&(struct mdl_adapter_limits){.max_rank = 3}, ERR_LIMIT, "the limit of 3");
    fails_within(&(struct mdl_adapter_limits){.max_bytes = 1000}, ERR_LIMIT, "more than 1000");
    teardown(NULL);
    strcpy(dir, "/nowhere/at/all");
    fails(ERR_NOT_FOUND, "cannot be opened");
    *dir = '\0';
}

// Cuts at every length and a flipped byte at every place: an error or an adapter, never harm.
static void test_damaged(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        begin("qv");
        const char *name = f ? TENSORS : CONFIG;
        size_t len, step = f ? 7 : 3;
        char *text = disk_read(in_dir(name), &len);
        for (size_t i = 0; i < len; i += step) {
            struct mdl_adapter *a = NULL;
            disk_write(in_dir(name), text, i);
            assert_int_not_equal(mdl_adapter_read(dir, &shape, NULL, &a, NULL), ERR_OK);
            text[i] ^= 0x41;
            disk_write(in_dir(name), text, len);
            if (mdl_adapter_read(dir, &shape, NULL, &a, NULL) == ERR_OK)
                mdl_adapter_destroy(a);
            text[i] ^= 0x41;
        }
        free(text);
    }
}

// ---- matching as peft does it

static void accepts(const char *adapter, const char *from, const char *to) {
    begin(adapter);
    disk_edit(in_dir(CONFIG), from, to);
    mdl_adapter_destroy(read_ok(dir));
}

static void test_matching(void **state) {
    (void)state;
    accepts("qv", TARGETS_QV, "[\"q_proj\", \"v_proj\"]");
    accepts("qv", TARGETS_QV,
            "[\"self_attn.q_proj\", \"model.layers.0.self_attn.v_proj\", "
            "\"1.self_attn.v_proj\"]");
    accepts("qv", TARGETS_QV, "\"(?:.*?)(?P<x>q|v)_proj\"");
    begin("qv");
    disk_edit(in_dir(CONFIG), TARGETS_QV, "\"ALL-linear\"");
    disk_edit(in_dir(CONFIG), "\"exclude_modules\": null",
              "\"exclude_modules\": [\"k_proj\", \"o_proj\", \"gate_proj\", \"mlp.up_proj\", "
              "\"down_proj\"]");
    mdl_adapter_destroy(read_ok(dir));
    accepts("all", "\"exclude_modules\": null", "\"exclude_modules\": \"\"");
    accepts("all", "\"layers_to_transform\": null", "\"layers_to_transform\": [0, 1]");
    accepts("all", "\"layers_to_transform\": null", "\"layers_to_transform\": []");
    accepts("rslora", "\"layers_pattern\": \"layers\"", "\"layers_pattern\": [\"h\", \"layers\"]");
    accepts("rslora", "\"layers_pattern\": \"layers\"", "\"layers_pattern\": null");
    accepts("rslora", "\"layers_pattern\": \"layers\"", "\"layers_pattern\": \"model.l[a-z]+\"");
    // A whole name counts whatever the layers say.
    begin("rslora");
    disk_edit(in_dir(CONFIG), "\"o_proj\"", "\"o_proj\", \"model.layers.0.self_attn.q_proj\"");
    fails(ERR_FORMAT, "layers.0.self_attn.q_proj.lora_A.weight is missing");
    // The spelling with peft's own adapter name; both spellings at once are one tensor twice.
    begin("qv");
    disk_edit(in_dir(TENSORS), "q_proj.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[4,32],",
              "q_proj.lora_A.default.weight\":{\"dtype\":\"F32\",\"shape\":[4,32],");
    size_t len;
    char *text = disk_read(in_dir(TENSORS), &len);
    uint64_t header;
    memcpy(&header, text, sizeof header);
    header += strlen(".default");
    memcpy(text, &header, sizeof header);
    disk_write(in_dir(TENSORS), text, len);
    free(text);
    mdl_adapter_destroy(read_ok(dir));
}

// ---- writing

static void same(const struct mdl_adapter *a, const struct mdl_adapter *b) {
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->values, b->values);
    assert_int_equal(a->max_r, b->max_r);
    assert_int_equal(a->rslora, b->rslora);
    assert_memory_equal(&a->dropout, &b->dropout, sizeof a->dropout);
    assert_string_equal(a->base, b->base);
    for (int32_t i = 0; i < a->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            const struct mdl_adapter_module *x = &a->modules[i][t], *y = &b->modules[i][t];
            int32_t n, k;
            mdl_target_shape(&shape, (enum mdl_target)t, &n, &k);
            assert_int_equal(x->r, y->r);
            assert_memory_equal(&x->alpha, &y->alpha, sizeof x->alpha);
            assert_memory_equal(&x->scale, &y->scale, sizeof x->scale);
            assert_memory_equal(x->a, y->a, (size_t)(x->r * k) * sizeof(float));
            assert_memory_equal(x->b, y->b, (size_t)(x->r * n) * sizeof(float));
        }
}

static void check_digest(const char *digest) {
    size_t len;
    char *text = disk_read(in_dir(TENSORS), &len), hex[65];
    uint8_t sum[SHA256_BYTES];
    assert_int_equal(sha256(text, len, sum), ERR_OK);
    hex_encode(sum, sizeof sum, hex);
    assert_string_equal(digest, hex);
    free(text);
}

static void test_round_trip(void **state) {
    (void)state;
    static const char *const names[] = {"all", "qv", "rslora", "patterns"};
    for (int i = 0; i < 4; i++) {
        char path[DISK_PATH], digest[65], again[65];
        struct err_info info = {.code = ERR_OK};
        snprintf(path, sizeof path, ADAPTERS "%s", names[i]);
        struct mdl_adapter *a = read_ok(path);
        teardown(NULL);
        temp_folder(dir, "model");
        enum err e = mdl_adapter_write(dir, &shape, a, "hf-f32", digest, &info);
        if (e)
            fail_msg("%s: %s", err_name(e), info.message);
        check_digest(digest);
        struct mdl_adapter *b = read_ok(dir);
        same(a, b);
        // Over what is there, and the same bytes.
        assert_int_equal(mdl_adapter_write(dir, &shape, b, "hf-f32", again, &info), ERR_OK);
        assert_string_equal(again, digest);
        mdl_adapter_destroy(b);
        mdl_adapter_destroy(a);
    }
}

static void test_create(void **state) {
    (void)state;
    struct mdl_adapter *a = NULL;
    struct err_info info;
    unsigned qd = 1u << MDL_TARGET_Q | 1u << MDL_TARGET_DOWN;
    assert_int_equal(mdl_adapter_create(&shape, 0, 8, 16, false, &a, &info), ERR_INVALID);
    assert_int_equal(mdl_adapter_create(&shape, 1u << MDL_TARGETS, 8, 16, false, &a, &info),
                     ERR_INVALID);
    assert_int_equal(mdl_adapter_create(&shape, qd, 0, 16, false, &a, &info), ERR_INVALID);
    assert_int_equal(mdl_adapter_create(&shape, qd, 257, 16, false, &a, &info), ERR_INVALID);
    assert_int_equal(mdl_adapter_create(&shape, qd, 8, NAN, false, &a, &info), ERR_INVALID);
    assert_int_equal(mdl_adapter_create(&shape, qd, 16, 8, true, &a, &info), ERR_OK);
    static const struct expected want[] = {{MDL_TARGET_Q, 0, 16, 8, 2},
                                           {MDL_TARGET_DOWN, 0, 16, 8, 2},
                                           {MDL_TARGET_Q, 1, 16, 8, 2},
                                           {MDL_TARGET_DOWN, 1, 16, 8, 2}};
    expect(a, want, 4);
    for (int i = 0; i < 16 * 48; i++) { // zero, and all of it ours
        assert_true(a->modules[1][MDL_TARGET_DOWN].a[i] == 0);
        a->modules[1][MDL_TARGET_DOWN].a[i] = (float)i;
    }
    temp_folder(dir, "model");
    assert_int_equal(mdl_adapter_write("/nowhere", &shape, a, NULL, NULL, &info), ERR_NOT_FOUND);
    assert_int_equal(mdl_adapter_write(dir, &shape, a, NULL, NULL, &info), ERR_OK);
    struct mdl_adapter *b = read_ok(dir);
    same(a, b);
    mdl_adapter_destroy(b);
    mdl_adapter_destroy(a);
    mdl_adapter_destroy(NULL);
}

// ---- out of memory

static enum err read_once(void) {
    struct mdl_adapter *a = NULL;
    enum err e = mdl_adapter_read(dir, &shape, NULL, &a, NULL);
    if (!e)
        mdl_adapter_destroy(a);
    return e;
}

static enum err write_once(void) {
    char digest[65];
    struct mdl_adapter *a = NULL;
    enum err e = mdl_adapter_create(&shape, 3, 4, 8, false, &a, NULL);
    if (!e)
        e = mdl_adapter_write(dir, &shape, a, "base", digest, NULL);
    mdl_adapter_destroy(a);
    return e;
}

static void each_failing(enum err (*fn)(void)) {
    int64_t live = mem_live_blocks();
    mem_fail_after(0, false);
    assert_int_equal(fn(), ERR_OK);
    uint64_t n = mem_fail_count();
    assert_true(n > 4);
    for (uint64_t i = 1; i <= n; i++)
        for (int all = 0; all < 2; all++) {
            mem_fail_after(i, all == 1);
            enum err e = fn();
            mem_fail_after(0, false);
            if (e != ERR_NOMEM)
                fail_msg("allocation %llu of %llu: %s", (unsigned long long)i,
                         (unsigned long long)n, err_name(e));
            assert_int_equal(mem_live_blocks(), live);
        }
    assert_int_equal(fn(), ERR_OK);
}

static void test_nomem(void **state) {
    (void)state;
    static const char *const names[] = {"qv", "rslora", "patterns"};
    json_set_alloc_funcs(mem_alloc, mem_free);
    for (int i = 0; i < 3; i++) {
        begin(names[i]);
        each_failing(read_once);
    }
    each_failing(write_once);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_read, teardown),
        cmocka_unit_test_teardown(test_values, teardown),
        cmocka_unit_test_teardown(test_config_refused, teardown),
        cmocka_unit_test_teardown(test_tensors_refused, teardown),
        cmocka_unit_test_teardown(test_files_refused, teardown),
        cmocka_unit_test_teardown(test_damaged, teardown),
        cmocka_unit_test_teardown(test_matching, teardown),
        cmocka_unit_test_teardown(test_round_trip, teardown),
        cmocka_unit_test_teardown(test_create, teardown),
        cmocka_unit_test_teardown(test_nomem, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
