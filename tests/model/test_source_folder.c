// SPDX-License-Identifier: Apache-2.0
// Hugging Face folders: which file says what, shards that do not fit their index, and folders with
// any of their files cut or changed.
#include "base/hash.h"
#include "base/mem.h"
#include "model/source.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/disk.h"
#include "tests/support/temp_folder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODELS "tests/golden/models/"
#define INDEX "model.safetensors.index.json"
#define SHARD(n) "model-0000" #n "-of-00003.safetensors"

static char dir[DISK_PATH]; // of the running test

static int setup(const char *model) {
    temp_folder(dir, "model");
    disk_copy_folder(model, dir);
    return 0;
}
static int setup_f32(void **state) {
    (void)state;
    return setup(MODELS "hf-f32");
}
static int setup_f16(void **state) {
    (void)state;
    return setup(MODELS "hf-f16");
}
static int setup_llama3(void **state) {
    (void)state;
    return setup(MODELS "hf-llama3");
}
static int teardown(void **state) {
    (void)state;
    temp_remove(dir);
    return 0;
}

static const char *in_dir(const char *name) {
    static char path[DISK_PATH];
    return disk_join(path, dir, name);
}
static void edit(const char *name, const char *from, const char *to) {
    disk_edit(in_dir(name), from, to);
}
static void drop(const char *name) {
    assert_int_equal(unlink(in_dir(name)), 0);
}

static struct mdl_source *open_ok(void) {
    struct mdl_source *s = NULL;
    struct err_info info = {.code = ERR_OK};
    enum err e = mdl_source_open(dir, &s, &info);
    if (e)
        fail_msg("%s: %s", err_name(e), info.message);
    assert_int_equal(info.message[0], '\0'); // optional files that are missing leave no trace
    return s;
}

static void open_fails(enum err want, const char *says) {
    struct mdl_source *s = NULL;
    struct err_info info = {.code = ERR_OK};
    enum err e = mdl_source_open(dir, &s, &info);
    if (e != want || !strstr(info.message, says))
        fail_msg("%s: %s", err_name(e), info.message);
    assert_non_null(strstr(info.message, dir));
}

static void expect_template(const char *begin) {
    const char *text;
    size_t len;
    struct mdl_source *s = open_ok();
    mdl_source_chat_template(s, &text, &len);
    if (begin) {
        assert_non_null(text);
        assert_true(len >= strlen(begin) && memcmp(text, begin, strlen(begin)) == 0);
    } else {
        assert_null(text);
    }
    mdl_source_close(s);
}

static void test_whole(void **state) {
    (void)state;
    struct mdl_source *s = open_ok();
    const struct mdl_config *c = mdl_source_config(s);
    assert_string_equal(c->architecture, "LlamaForCausalLM");
    assert_int_equal(c->rope_kind, MDL_ROPE_LLAMA3);
    assert_int_equal(c->rope_original_context, 32);
    assert_int_equal(c->n_eos, 2); // generation_config.json's list
    assert_int_equal(c->eos[0], 2);
    assert_int_equal(c->eos[1], 0);
    assert_true(c->gen_temperature > 0.59f && c->gen_temperature < 0.61f);
    assert_true(c->gen_top_p > 0.89f && c->gen_top_p < 0.91f);
    assert_false(mdl_source_rope_permuted(s));
    assert_string_equal(mdl_source_name(s), strrchr(dir, '/') + 1);
    assert_int_equal(mdl_source_file_count(s), 9);
    assert_non_null(strstr(mdl_source_file(s, 0), "/config.json"));
    assert_non_null(strstr(mdl_source_file(s, 6), "/" SHARD(1)));
    mdl_source_close(s);
    expect_template("{% for message in messages %}"); // chat_template.jinja, not the other
}

static void test_optional_files(void **state) {
    (void)state;
    struct err_info info;
    struct tokenizer *t;
    drop("generation_config.json");
    drop("chat_template.jinja");
    struct mdl_source *s = open_ok();
    assert_int_equal(mdl_source_config(s)->n_eos, 1);
    assert_true(mdl_source_config(s)->gen_temperature < 0);
    mdl_source_close(s);
    expect_template("{{ 'the file counts' }}");
    drop("tokenizer_config.json");
    expect_template(NULL);
    s = open_ok();
    assert_int_equal(mdl_source_tokenizer(s, &t, &info), ERR_OK);
    tokenizer_destroy(t);
    mdl_source_close(s);
    drop("tokenizer.json");
    s = open_ok();
    assert_int_equal(mdl_source_tokenizer(s, &t, &info), ERR_NOT_FOUND);
    assert_non_null(strstr(info.message, "no tokenizer.json"));
    mdl_source_close(s);
    drop("config.json");
    open_fails(ERR_NOT_FOUND, "no config.json");
}

static void test_template_forms(void **state) {
    (void)state;
    expect_template("{% for message in messages %}"); // the "default" of a list
    edit("tokenizer_config.json", "\"name\": \"default\"", "\"name\": \"other\"");
    expect_template(NULL);
    edit("tokenizer_config.json", "\"chat_template\": [", "\"chat_template\": null, \"x\": [");
    expect_template(NULL);
    edit("tokenizer_config.json", "\"chat_template\": null", "\"chat_template\": \"\\u00e9\"");
    expect_template("\xc3\xa9");
    edit("tokenizer_config.json", "\"chat_template\": \"\\u00e9\"", "\"chat_template\": 7");
    open_fails(ERR_FORMAT, "chat_template must be a string");
    disk_write(in_dir("chat_template.jinja"), "a\xff", 2);
    open_fails(ERR_FORMAT, "the chat template is not UTF-8");
}

// Neither config names an end: the tokenizer's own counts, as a string or an object.
static void test_eos_of_tokenizer(void **state) {
    (void)state;
    edit("config.json", "\"eos_token_id\": 2,", "");
    struct mdl_source *s = open_ok();
    assert_int_equal(mdl_source_config(s)->n_eos, 1);
    assert_int_equal(mdl_source_config(s)->eos[0], 2);
    mdl_source_close(s);
    edit("tokenizer_config.json", "\"eos_token\": \"<|im_end|>\"",
         "\"eos_token\": {\"content\": \"<|endoftext|>\"}");
    s = open_ok();
    assert_int_equal(mdl_source_config(s)->eos[0], 0);
    mdl_source_close(s);
    edit("tokenizer_config.json", "\"<|endoftext|>\"}", "\"unknown\"}");
    s = open_ok();
    assert_int_equal(mdl_source_config(s)->n_eos, 0);
    mdl_source_close(s);
}

// A tied model may hold a copy of its head, an old one its RoPE frequencies: nothing reads them.
static void test_unused_tensors(void **state) {
    (void)state;
    struct mdl_source *s = open_ok();
    assert_non_null(mdl_source_tensor(s, "lm_head.weight"));
    assert_int_equal(mdl_source_tensor_count(s), 21);
    mdl_source_close(s);
    edit("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    s = open_ok();
    assert_null(mdl_source_tensor(s, "lm_head.weight"));
    assert_int_equal(mdl_source_tensor_count(s), 20);
    mdl_source_close(s);
}

static void test_shard_names(void **state) {
    (void)state;
    static const char *const names[] = {"../model.safetensors",
                                        "/etc/passwd.safetensors",
                                        "a/b.safetensors",
                                        ".hidden.safetensors",
                                        "model.bin",
                                        "a\\\\b.safetensors",
                                        ".safetensors",
                                        "a\\nb.safetensors",
                                        ""};
    size_t n;
    char *index = disk_read(in_dir(INDEX), &n);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        disk_write(in_dir(INDEX), index, n);
        edit(INDEX, SHARD(2), names[i]);
        open_fails(ERR_FORMAT, "must be a plain name that ends in .safetensors");
    }
    disk_write(in_dir(INDEX), index, n);
    edit(INDEX, "\"" SHARD(2) "\"", "17");
    open_fails(ERR_FORMAT, "must be a plain name");
    free(index);
}

static void test_index(void **state) {
    (void)state;
    size_t n;
    char *index = disk_read(in_dir(INDEX), &n);
    edit(INDEX, "\"weight_map\": {",
         "\"weight_map\": {\"model.x.weight\": \"model-00004-of-00003.safetensors\",");
    open_fails(ERR_NOT_FOUND,
               "model-00004-of-00003.safetensors, which weight_map names, is missing");

    disk_write(in_dir(INDEX), index, n); // a tensor is elsewhere
    edit(INDEX, "\"model.norm.weight\": \"" SHARD(1), "\"model.norm.weight\": \"" SHARD(3));
    open_fails(ERR_FORMAT, "holds tensor model.norm.weight, which weight_map does not place there");

    disk_write(in_dir(INDEX), index, n); // a tensor of a shard is not in the index
    edit(INDEX, "\"model.norm.weight\"", "\"model.other.weight\"");
    open_fails(ERR_FORMAT, "holds tensor model.norm.weight, which weight_map does not place there");

    disk_write(in_dir(INDEX), index, n); // a tensor of the index is in no shard
    edit(INDEX, "\"weight_map\": {", "\"weight_map\": {\"model.x.weight\": \"" SHARD(1) "\",");
    open_fails(ERR_FORMAT, SHARD(1) " holds no tensor model.x.weight");

    disk_write(in_dir(INDEX), index, n);
    edit(INDEX, "\"weight_map\": {", "\"weight_map\": 1, \"x\": {");
    open_fails(ERR_FORMAT, "weight_map must be an object");

    disk_write(in_dir(INDEX), "{\"weight_map\":{},\"weight_map\":{}}", 33);
    open_fails(ERR_FORMAT, "duplicate object key");
    drop(INDEX);
    open_fails(ERR_NOT_FOUND, "neither model.safetensors nor");
    free(index);
}

static void test_weights(void **state) {
    (void)state;
    edit("model.safetensors", "\"F32\"", "\"I32\"");
    open_fails(ERR_UNSUPPORTED, "dtype I32 is not supported; F32, F16 and BF16 are");
    edit("model.safetensors", "\"I32\"", "\"F16\"");
    open_fails(ERR_FORMAT, "model.safetensors: tensor model.embed_tokens.weight: shape and dtype");
    disk_write(in_dir("model.safetensors"), "x", 1);
    open_fails(ERR_FORMAT, "model.safetensors: the safetensors header");
}

// The way a Hugging Face cache lays out a snapshot: links into a folder of blobs.
static void test_links(void **state) {
    (void)state;
    char blobs[DISK_PATH], blob[DISK_PATH];
    temp_folder(blobs, "model");
    disk_copy(in_dir("model.safetensors"), disk_join(blob, blobs, "1234abcd"));
    drop("model.safetensors");
    assert_int_equal(symlink(blob, in_dir("model.safetensors")), 0);
    mdl_source_close(open_ok());
    temp_remove(blobs);
    open_fails(ERR_NOT_FOUND, "neither model.safetensors");
}

static void open_and_use(void) {
    struct mdl_source *s = NULL;
    struct tokenizer *t = NULL;
    struct err_info info = {.code = ERR_OK};
    int64_t live = mem_live_blocks();
    enum err e = mdl_source_open(dir, &s, &info);
    assert_true(e == ERR_OK || info.message[0]);
    if (!e && mdl_source_tokenizer(s, &t, &info) == ERR_OK)
        tokenizer_destroy(t);
    mdl_source_close(s);
    assert_int_equal(mem_live_blocks(), live);
}

// Each file cut at many places, then with changed bytes.
static void test_damaged_files(void **state) {
    (void)state;
    static const char *const names[] = {
        "config.json",           "generation_config.json",       "tokenizer.json",
        "tokenizer_config.json", "model.safetensors.index.json", (SHARD(1))};
    uint64_t x = 7;
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        size_t n;
        char *p = disk_read(in_dir(names[f]), &n);
        size_t head = n < 6000 ? n : 1200; // of a shard: its header
        assert_true(head > 0);
        for (size_t cut = 0; cut < head; cut += head < 700 ? 1 : 7) {
            disk_write(in_dir(names[f]), p, cut);
            open_and_use();
        }
        for (int i = 0; i < 300; i++) {
            x += 0x9e3779b97f4a7c15;
            uint64_t r = hash_mix64(x);
            size_t at = r % head;
            char keep = p[at];
            p[at] = (char)(r >> 32 & 1 ? p[at] ^ (1 << (r >> 40) % 8)
                                       : "\"{}[]:,0-9\\"[(r >> 40) % 11]);
            disk_write(in_dir(names[f]), p, n);
            open_and_use();
            p[at] = keep;
        }
        disk_write(in_dir(names[f]), p, n);
        free(p);
    }
    mdl_source_close(open_ok());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole, setup_llama3, teardown),
        cmocka_unit_test_setup_teardown(test_optional_files, setup_llama3, teardown),
        cmocka_unit_test_setup_teardown(test_template_forms, setup_f16, teardown),
        cmocka_unit_test_setup_teardown(test_eos_of_tokenizer, setup_f32, teardown),
        cmocka_unit_test_setup_teardown(test_unused_tensors, setup_llama3, teardown),
        cmocka_unit_test_setup_teardown(test_shard_names, setup_llama3, teardown),
        cmocka_unit_test_setup_teardown(test_index, setup_llama3, teardown),
        cmocka_unit_test_setup_teardown(test_weights, setup_f32, teardown),
        cmocka_unit_test_setup_teardown(test_links, setup_f32, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_files, setup_llama3, teardown),
    };
    return cmocka_run_group_tests_name("source folder", tests, NULL, NULL);
}
