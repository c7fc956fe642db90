// SPDX-License-Identifier: Apache-2.0
// Building a tokenizer: from a GGUF file's arrays it equals the one from tokenizer.json, and what
// is malformed or not supported is refused with an error that names it.
#include "base/mem.h"
#include "model/source.h"
#include "tests/model/tokenizer_support.h"
#include "tests/support/cmocka_all.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- GGUF arrays made from a golden tokenizer.json

struct arrays {
    struct tokenizer_gguf g;
    json_t *root;
    struct tok_str *tokens, *merges;
    char *merge_text;
    int32_t *types;
};

static struct tok_str str(const char *s) {
    return (struct tok_str){s, strlen(s)};
}

static void arrays_free(struct arrays *a) {
    json_decref(a->root);
    free(a->tokens);
    free(a->merges);
    free(a->merge_text);
    free(a->types);
}

static struct arrays arrays_load(const char *name, const char *pre) {
    struct arrays a = {0};
    char file[64];
    size_t len;
    snprintf(file, sizeof(file), "%s.json", name);
    char *text = golden_file(file, &len);
    a.root = json_loadb(text, len, 0, NULL);
    free(text);
    json_t *model = json_object_get(a.root, "model"), *vocab = json_object_get(model, "vocab");
    json_t *added = json_object_get(a.root, "added_tokens"),
           *merges = json_object_get(model, "merges");
    size_t most = json_object_size(vocab) + json_array_size(added), n = 0, at = 0;
    a.tokens = calloc(most, sizeof(*a.tokens));
    a.types = calloc(most, sizeof(*a.types));
    a.merges = calloc(json_array_size(merges), sizeof(*a.merges));
    a.merge_text = malloc(len);
    assert_true(a.root && a.tokens && a.types && a.merges && a.merge_text);
    const char *key;
    json_t *v;
    json_object_foreach(vocab, key, v) {
        size_t id = (size_t)json_integer_value(v);
        a.tokens[id] = str(key);
        a.types[id] = 1;
        n = id >= n ? id + 1 : n;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        v = json_array_get(added, i);
        size_t id = (size_t)json_integer_value(json_object_get(v, "id"));
        a.tokens[id] = str(json_string_value(json_object_get(v, "content")));
        a.types[id] = json_is_true(json_object_get(v, "special")) ? 3 : 4;
        n = id >= n ? id + 1 : n;
    }
    for (size_t i = 0; i < json_array_size(merges); i++) {
        v = json_array_get(merges, i);
        int made =
            snprintf(a.merge_text + at, len - at, "%s %s", json_string_value(json_array_get(v, 0)),
                     json_string_value(json_array_get(v, 1)));
        a.merges[i] = (struct tok_str){a.merge_text + at, (size_t)made};
        at += (size_t)made;
    }
    a.g = (struct tokenizer_gguf){.model = str("gpt2"),
                                  .pre = str(pre),
                                  .tokens = a.tokens,
                                  .merges = a.merges,
                                  .n_tokens = n,
                                  .n_merges = json_array_size(merges),
                                  .token_type = a.types,
                                  .bos = -1,
                                  .eos = -1,
                                  .eot = -1};
    return a;
}

static void check_gguf(const char *name, const char *pre, const char *bos) {
    struct arrays a = arrays_load(name, pre);
    struct tokenizer *json = golden_tokenizer(name), *gguf = NULL;
    struct err_info info = {0};
    if (bos) {
        a.g.bos = tokenizer_find(json, bos, strlen(bos));
        a.g.add_bos = true;
    }
    if (tokenizer_from_gguf(&a.g, &gguf, &info) != ERR_OK)
        fail_msg("%s", info.message);
    assert_int_equal(tokenizer_vocab_size(gguf), tokenizer_vocab_size(json));
    golden_check(gguf, name);
    for (uint32_t id = 0; id < tokenizer_vocab_size(json); id++) {
        size_t n, m;
        const char *p = tokenizer_token_bytes(json, (int32_t)id, &n);
        const char *q = tokenizer_token_bytes(gguf, (int32_t)id, &m);
        assert_int_equal(n, m);
        assert_memory_equal(p, q, n);
    }
    tokenizer_destroy(json);
    tokenizer_destroy(gguf);
    arrays_free(&a);
}

static void gguf_arrays_give_the_same_ids(void **state) {
    (void)state;
    check_gguf("gpt2", "gpt-2", NULL);
    check_gguf("smollm", "smollm", NULL);
    check_gguf("llama3", "llama-bpe", "<|begin_of_text|>");
}

// GRAFT_TEST_MODEL: the path of SmolLM2-135M-Instruct's GGUF file.
static void smollm2_equals_the_library(void **state) {
    (void)state;
    const char *path = getenv("GRAFT_TEST_MODEL");
    if (!path || !*path) {
        print_message("GRAFT_TEST_MODEL is not set: the real tokenizer is not tested\n");
        skip();
    }
    struct mdl_source *source = NULL;
    struct tokenizer *t = NULL;
    struct err_info info = {0};
    if (mdl_source_open(path, &source, &info) != ERR_OK ||
        mdl_source_tokenizer(source, &t, &info) != ERR_OK)
        fail_msg("%s", info.message);
    mdl_source_close(source);
    assert_int_equal(tokenizer_vocab_size(t), 49152);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_false(tokenizer_adds_bos(t));
    golden_check(t, "smollm2");
    tokenizer_destroy(t);
}

static void check_few(const char *pre, const char *text, const int32_t *want, size_t n) {
    static const struct tok_str tokens[] = {{"1", 1}, {"2", 1}, {"12", 2},
                                            {"a", 1}, {"b", 1}, {"ab", 2}};
    static const struct tok_str merges[] = {{"1 2", 3}, {"a b", 3}};
    static const int32_t types[] = {1, 1, 1, 1, 1, 3};
    const struct tokenizer_gguf g = {.model = str("gpt2"),
                                     .pre = str(pre),
                                     .tokens = tokens,
                                     .merges = merges,
                                     .n_tokens = 6,
                                     .n_merges = 2,
                                     .token_type = types,
                                     .bos = -1,
                                     .eos = -1,
                                     .eot = -1};
    struct tokenizer *t = NULL;
    struct tok_ids ids = {0};
    const struct tok_encode_opts opts = {0};
    assert_int_equal(tokenizer_from_gguf(&g, &t, NULL), ERR_OK);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), &opts, &ids, NULL), ERR_OK);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, n * sizeof(*want));
    tok_ids_fini(&ids);
    tokenizer_destroy(t);
}

static void digits_stand_alone_where_the_split_says_so(void **state) {
    (void)state;
    check_few("smollm", "12", (const int32_t[]){0, 1}, 2);
    check_few("gpt-2", "12", (const int32_t[]){2}, 1);
}

// Token 5 is a control token that merges, or the whole word, would give.
static void plain_text_never_becomes_a_control_token(void **state) {
    (void)state;
    check_few("gpt-2", "ab", (const int32_t[]){3, 4}, 2);
    check_few("llama-bpe", "ab", (const int32_t[]){3, 4}, 2);
}

// --- malformed and unsupported GGUF arrays

enum { N = 5 }; // tokens of the good vocabulary

struct gguf_case {
    const char *what; // in the message
    enum err code;
    struct tokenizer_gguf g;
};

static void check_gguf_case(const struct gguf_case *c) {
    struct tokenizer *t = NULL;
    struct err_info info = {0};
    struct tokenizer_gguf g = c->g;
    g.model = g.model.p ? g.model : str("gpt2");
    g.pre = g.pre.p ? g.pre : str("gpt-2");
    enum err e = tokenizer_from_gguf(&g, &t, &info);
    if (e != c->code || info.code != c->code || !strstr(info.message, c->what))
        fail_msg("\"%s\": %s, \"%s\"", c->what, err_name(e), info.message);
    assert_null(t);
}

static void bad_gguf_arrays_are_refused(void **state) {
    (void)state;
    static const struct tok_str tokens[N] = {{"a", 1}, {"b", 1}, {"c", 1}, {"ab", 2}, {"<s>", 3}};
    static const struct tok_str dup[] = {{"a", 1}, {"b", 1}, {"a", 1}};
    static const struct tok_str binary[] = {{"a", 1}, {"\xff", 1}};
    static const struct tok_str unknown_right[] = {{"a b", 3}, {"a d", 3}};
    static const struct tok_str unknown_left[] = {{"d a", 3}}, unknown_both[] = {{"a c", 3}};
    static const struct tok_str no_space[] = {{"ab", 2}}, two_spaces[] = {{"a b c", 5}},
                                empty[] = {{NULL, 0}};
    static const struct tok_str not_alphabet[] = {{"a \xe5\xad\x97", 5}};
    static const int32_t byte_type[N] = {1, 1, 6, 1, 1}, odd_type[N] = {1, 1, 1, 1, -7};
    static const int32_t control[N] = {1, 1, 1, 1, 3};
    static char long_text[2000];
    memset(long_text, 'x', sizeof(long_text));
    const struct tok_str long_control[N] = {
        {"a", 1}, {"b", 1}, {"c", 1}, {"ab", 2}, {long_text, sizeof(long_text)}};
#define G .tokens = tokens, .n_tokens = N
#define NONE .bos = -1, .eos = -1, .eot = -1
    const struct gguf_case cases[] = {
        {"tokenizer.ggml.model \"llama\"", ERR_UNSUPPORTED, {.model = str("llama"), G, NONE}},
        {"tokenizer.ggml.pre \"qwen35\"", ERR_UNSUPPORTED, {.pre = str("qwen35"), G, NONE}},
        {"tokenizer.ggml.pre", ERR_UNSUPPORTED, {.pre = {"", 0}, G, NONE}},
        {"tokens has 0 entries", ERR_LIMIT, {NONE}},
        {"tokens has 2097153 entries", ERR_LIMIT, {.tokens = tokens, .n_tokens = 2097153, NONE}},
        {"4194305 merges", ERR_LIMIT, {G, .merges = no_space, .n_merges = 4194305, NONE}},
        {"tokens 0 and 2 are both spelled \"a\"", ERR_FORMAT, {.tokens = dup, .n_tokens = 3, NONE}},
        {"tokens[1] is not UTF-8", ERR_FORMAT, {.tokens = binary, .n_tokens = 2, NONE}},
        {"token_type[2] is 6", ERR_FORMAT, {G, .token_type = byte_type, NONE}},
        {"token_type[4] is -7", ERR_FORMAT, {G, .token_type = odd_type, NONE}},
        {"tokens[4] is too long",
         ERR_LIMIT,
         {.tokens = long_control, .n_tokens = N, .token_type = control, NONE}},
        {"merges[1]: \"a\" + \"d\": the right side",
         ERR_FORMAT,
         {G, .merges = unknown_right, .n_merges = 2, NONE}},
        {"merges[0]: \"d\" + \"a\": the left side",
         ERR_FORMAT,
         {G, .merges = unknown_left, .n_merges = 1, NONE}},
        {"merges[0]: \"a\" + \"c\": the result",
         ERR_FORMAT,
         {G, .merges = unknown_both, .n_merges = 1, NONE}},
        {"merges[0]: \"ab\" is not two", ERR_FORMAT, {G, .merges = no_space, .n_merges = 1, NONE}},
        {"merges[0]: \"a b c\" is not two",
         ERR_FORMAT,
         {G, .merges = two_spaces, .n_merges = 1, NONE}},
        {"merges[0]: \"\" is not two", ERR_FORMAT, {G, .merges = empty, .n_merges = 1, NONE}},
        {"merges[0]: \"a\" + \"\xe5\xad\x97\" is not in",
         ERR_FORMAT,
         {G, .merges = not_alphabet, .n_merges = 1, NONE}},
        {"bos_token_id 5", ERR_FORMAT, {G, .bos = 5, .eos = -1, .eot = -1}},
        {"eos_token_id -2", ERR_FORMAT, {G, .bos = -1, .eos = -2, .eot = -1}},
        {"eot_token_id 99", ERR_FORMAT, {G, .bos = -1, .eos = -1, .eot = 99}},
        {"add_bos_token", ERR_FORMAT, {G, .bos = -1, .eos = -1, .eot = -1, .add_bos = true}},
        {"add_eos_token", ERR_FORMAT, {G, .bos = 0, .eos = -1, .eot = -1, .add_eos = true}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_gguf_case(&cases[i]);
}

// --- malformed and unsupported tokenizer.json

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xc3\xa9\":3}"
#define MODEL(rest) "\"model\":{\"type\":\"BPE\"," rest "}"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define PRE "\"pre_tokenizer\":" BYTE_LEVEL
#define GOOD_MODEL MODEL(VOCAB ",\"merges\":[]")
#define FILE_WITH(fields) "{" fields "," PRE "," GOOD_MODEL "}"
#define FILE_MODEL(rest) "{" PRE "," MODEL(rest) "}"
#define FILE_PRE(pre) "{\"pre_tokenizer\":" pre "," GOOD_MODEL "}"
#define ADDED(fields) FILE_WITH("\"added_tokens\":[{" fields "}]")
#define SPLIT(regex)                                                                               \
    FILE_PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"         \
             "\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL    \
             "]}")
#define POST(single, specials)                                                                     \
    FILE_WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":" single             \
              ",\"special_tokens\":" specials "}")

struct json_case {
    const char *what; // in the message
    enum err code;
    const char *json;
};

static const struct json_case json_cases[] = {
    {"line 1", ERR_FORMAT, ""},
    {"line 2", ERR_FORMAT, "{\n\"model\": }"},
    {"tokenizer.json", ERR_FORMAT, "[]"},
    {"line 1", ERR_FORMAT, "{\"a\":\"\xff\"}"},
    {"model must be", ERR_FORMAT, "{}"},
    {"\"Unigram\"", ERR_UNSUPPORTED, "{\"model\":{\"type\":\"Unigram\"}}"},
    {"model.vocab must be", ERR_FORMAT, FILE_MODEL("\"vocab\":[]")},
    {"vocabulary is empty", ERR_FORMAT, FILE_MODEL("\"vocab\":{}")},
    {"duplicate object key", ERR_FORMAT, FILE_MODEL("\"vocab\":{\"a\":0,\"a\":1}")},
    {"model.vocab \"b\": id 0 has a token", ERR_FORMAT, FILE_MODEL("\"vocab\":{\"a\":0,\"b\":0}")},
    {"model.vocab \"b\": id -1", ERR_LIMIT, FILE_MODEL("\"vocab\":{\"a\":0,\"b\":-1}")},
    {"id 2097152", ERR_LIMIT, FILE_MODEL("\"vocab\":{\"a\":2097152}")},
    {"integer", ERR_FORMAT, FILE_MODEL("\"vocab\":{\"a\":\"0\"}")},
    {"model.merges must", ERR_FORMAT, FILE_MODEL(VOCAB)},
    {"model.merges[1]: \"b\" + \"a\": the result", ERR_FORMAT,
     FILE_MODEL(VOCAB ",\"merges\":[\"a b\",[\"b\",\"a\"]]")},
    {"model.merges[0]: \"x\" + \"a\": the left", ERR_FORMAT,
     FILE_MODEL(VOCAB ",\"merges\":[\"x a\"]")},
    {"model.merges[0]: must", ERR_FORMAT, FILE_MODEL(VOCAB ",\"merges\":[[\"a\"]]")},
    {"model.merges[0]", ERR_FORMAT, FILE_MODEL(VOCAB ",\"merges\":[7]")},
    {"model.merges[0]", ERR_FORMAT, FILE_MODEL(VOCAB ",\"merges\":[\"a b c\"]")},
    {"unk_token", ERR_FORMAT, FILE_MODEL(VOCAB ",\"merges\":[],\"unk_token\":\"zz\"")},
    {"byte_fallback", ERR_UNSUPPORTED, FILE_MODEL(VOCAB ",\"merges\":[],\"byte_fallback\":true")},
    {"dropout", ERR_UNSUPPORTED, FILE_MODEL(VOCAB ",\"merges\":[],\"dropout\":0.1")},
    {"end_of_word_suffix", ERR_UNSUPPORTED,
     FILE_MODEL(VOCAB ",\"merges\":[],\"end_of_word_suffix\":\"</w>\"")},
    {"ignore_merges must", ERR_FORMAT, FILE_MODEL(VOCAB ",\"merges\":[],\"ignore_merges\":1")},
    {"normalizer \"NFC\"", ERR_UNSUPPORTED, FILE_WITH("\"normalizer\":{\"type\":\"NFC\"}")},
    {"normalizer \"Lowercase\"", ERR_UNSUPPORTED,
     FILE_WITH(
         "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}")},
    {"normalizer must", ERR_FORMAT, FILE_WITH("\"normalizer\":7")},
    {"decoder \"Metaspace\"", ERR_UNSUPPORTED, FILE_WITH("\"decoder\":{\"type\":\"Metaspace\"}")},
    {"does not end in ByteLevel", ERR_UNSUPPORTED, "{" GOOD_MODEL "}"},
    {"pre_tokenizer \"Whitespace\"", ERR_UNSUPPORTED, FILE_PRE("{\"type\":\"Whitespace\"}")},
    {"a step after ByteLevel", ERR_UNSUPPORTED,
     FILE_PRE("{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "," BYTE_LEVEL "]}")},
    {"add_prefix_space", ERR_UNSUPPORTED,
     FILE_PRE("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}")},
    {"Split other than Isolated", ERR_UNSUPPORTED,
     FILE_PRE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\"}")},
    {"Split by something", ERR_UNSUPPORTED,
     FILE_PRE("{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Isolated\"}")},
    {"pretokenizers must be a list", ERR_FORMAT,
     FILE_PRE("{\"type\":\"Sequence\",\"pretokenizers\":3}")},
    {"does not compile", ERR_FORMAT, SPLIT("(a")},
    {"does not compile", ERR_FORMAT, SPLIT("a{5,2}")},
    {"the escape at byte 1", ERR_UNSUPPORTED, SPLIT("a\\\\1")},
    {"the escape", ERR_UNSUPPORTED, SPLIT("\\\\p{Lu}")},
    {"a class inside", ERR_UNSUPPORTED, SPLIT("[a[b]]")},
    {"a class inside", ERR_UNSUPPORTED, SPLIT("[a&&b]")},
    {"a class without", ERR_UNSUPPORTED, SPLIT("[ab")},
    {"an empty class", ERR_UNSUPPORTED, SPLIT("[]a]")},
    {"a negated set", ERR_UNSUPPORTED, SPLIT("[a\\\\S]")},
    {"a range from or to a set", ERR_UNSUPPORTED, SPLIT("[\\\\s-z]")},
    {"a range from or to a set", ERR_UNSUPPORTED, SPLIT("[a-\\\\s]")},
    {"this kind of group", ERR_UNSUPPORTED, SPLIT("(?<n>a)")},
    {"this kind of group", ERR_UNSUPPORTED, SPLIT("(*UCP)a")},
    {"a mark after a count", ERR_UNSUPPORTED, SPLIT("a{2}+")},
    {"opens no count", ERR_UNSUPPORTED, SPLIT("a{,2}")},
    {"the character at byte 1", ERR_UNSUPPORTED, SPLIT("a.")},
    {"1 to 4096 bytes", ERR_LIMIT, SPLIT("")},
    {"added_tokens must", ERR_FORMAT, FILE_WITH("\"added_tokens\":{}")},
    {"added_tokens[0]: the id", ERR_FORMAT, ADDED("\"content\":\"x\"")},
    {"added_tokens[0]: content", ERR_FORMAT, ADDED("\"id\":4")},
    {"added_tokens[1]: id 1 has a token", ERR_FORMAT,
     ADDED("\"id\":1,\"content\":\"x\"},{\"id\":1,\"content\":\"y\"")},
    {"added_tokens[0]: id 1, but 0 in", ERR_FORMAT, ADDED("\"id\":1,\"content\":\"a\"")},
    {"added_tokens[0]: lstrip must", ERR_FORMAT,
     ADDED("\"id\":4,\"content\":\"x\",\"lstrip\":\"yes\"")},
    {"added_tokens[0]: content is the", ERR_UNSUPPORTED,
     ADDED("\"id\":3,\"content\":\"\xc3\xa9\"")},
    {"post_processor \"BertProcessing\"", ERR_UNSUPPORTED,
     FILE_WITH("\"post_processor\":{\"type\":\"BertProcessing\"}")},
    {"one Sequence A", ERR_FORMAT, POST("[]", "{}")},
    {"one Sequence A", ERR_FORMAT, POST("[{\"Sequence\":{\"id\":\"B\"}}]", "{}")},
    {"special_tokens must", ERR_FORMAT,
     POST("[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}]", "{}")},
    {"id 9,", ERR_FORMAT,
     POST("[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}]",
          "{\"x\":{\"ids\":[9]}}")},
    {"more than 8", ERR_LIMIT,
     POST("[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}]",
          "{\"x\":{\"ids\":[0,0,0,0,0,0,0,0,0]}}")},
};

static void bad_tokenizer_json_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(json_cases) / sizeof(json_cases[0]); i++) {
        const struct json_case *c = &json_cases[i];
        struct tokenizer *t = NULL;
        struct err_info info = {0};
        enum err e = tokenizer_from_hf(c->json, strlen(c->json), NULL, 0, &t, &info);
        if (e != c->code || info.code != c->code || !strstr(info.message, c->what) ||
            !strstr(info.message, "tokenizer.json"))
            fail_msg("\"%s\": %s, \"%s\"", c->what, err_name(e), info.message);
        assert_null(t);
    }
}

// A pattern that compiles and backtracks without end is an error too, soon, at whatever place.
static void a_slow_pattern_is_an_error(void **state) {
    (void)state;
    static const char *const files[] = {
        SPLIT("(?:a?){12}b|a"), SPLIT("(?:a+)+[bc]|a"), SPLIT("(?:a|aa)+b|a"),
        SPLIT("a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?b|a")};
    enum { BYTES = 100000 };
    char *text = malloc(BYTES);
    assert_non_null(text);
    memset(text, 'a', BYTES);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct tokenizer *t = NULL;
        struct tok_ids ids = {0};
        struct tok_encode_opts opts = {.parse_special = true};
        struct err_info info = {0};
        assert_int_equal(tokenizer_from_hf(files[i], strlen(files[i]), NULL, 0, &t, &info), ERR_OK);
        assert_int_equal(tokenizer_encode(t, text, BYTES, &opts, &ids, &info), ERR_LIMIT);
        assert_non_null(strstr(info.message, "split pattern takes too long"));
        assert_int_equal(ids.n, 0);
        tok_ids_fini(&ids);
        tokenizer_destroy(t);
    }
    free(text);
}

static void config_names_bos_and_eos(void **state) {
    (void)state;
    static const char file[] =
        FILE_WITH("\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"special\":true}]");
    static const char good[] =
        "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"ab\",\"lstrip\":false}}";
    static const char bad[] = "{\"bos_token\":null,\"eos_token\":\"</s>\"}";
    struct tokenizer *t = NULL;
    struct err_info info = {0};
    assert_int_equal(tokenizer_from_hf(file, strlen(file), good, strlen(good), &t, &info), ERR_OK);
    assert_int_equal(tokenizer_bos(t), 9);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_int_equal(tokenizer_vocab_size(t), 10); // ids 4 to 8 have no token
    assert_false(tokenizer_adds_bos(t));
    tokenizer_destroy(t);
    assert_int_equal(tokenizer_from_hf(file, strlen(file), bad, strlen(bad), &t, &info),
                     ERR_FORMAT);
    assert_non_null(strstr(info.message, "tokenizer_config.json: eos_token \"</s>\""));
    assert_null(t);
    assert_int_equal(tokenizer_from_hf(file, strlen(file), "{", 1, &t, &info), ERR_FORMAT);
    assert_non_null(strstr(info.message, "tokenizer_config.json, line 1"));
}

static void every_failed_allocation_is_an_error(void **state) {
    (void)state;
    struct arrays a = arrays_load("smollm", "smollm");
    size_t len;
    char *json = golden_file("flags.json", &len);
    static const char config[] = "{\"bos_token\":\"<pad>\"}";
    for (int which = 0; which < 2; which++) {
        enum err e = ERR_NOMEM;
        int64_t live = mem_live_blocks();
        for (uint64_t n = 1; e == ERR_NOMEM; n++) {
            struct tokenizer *t = NULL;
            struct err_info info = {0};
            mem_fail_after(n, false);
            e = which ? tokenizer_from_gguf(&a.g, &t, &info)
                      : tokenizer_from_hf(json, len, config, strlen(config), &t, &info);
            mem_fail_after(0, false);
            assert_int_equal(info.code, e);
            assert_true(e != ERR_OK || n > 6);
            tokenizer_destroy(t);
            assert_int_equal(mem_live_blocks(), live);
        }
        assert_int_equal(e, ERR_OK);
    }
    free(json);
    arrays_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_arrays_give_the_same_ids),
        cmocka_unit_test(smollm2_equals_the_library),
        cmocka_unit_test(digits_stand_alone_where_the_split_says_so),
        cmocka_unit_test(plain_text_never_becomes_a_control_token),
        cmocka_unit_test(bad_gguf_arrays_are_refused),
        cmocka_unit_test(bad_tokenizer_json_is_refused),
        cmocka_unit_test(a_slow_pattern_is_an_error),
        cmocka_unit_test(config_names_bos_and_eos),
        cmocka_unit_test(every_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
