// SPDX-License-Identifier: Apache-2.0
// config.json and generation_config.json: what is read, what is refused by name; RoPE frequencies
// against transformers (tests/golden/rope/).
#include "model/config.h"
#include "tests/support/cmocka_all.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A whole config.json, with more fields in front (a field must not be there twice).
#define BASE                                                                                       \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"                         \
    "\"num_attention_heads\":4,\"vocab_size\":300,\"rms_norm_eps\":1e-5"
#define LLAMA "\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
#define CONFIG(more) "{" more LLAMA BASE "}"
#define LLAMA3                                                                                     \
    "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"                             \
    "\"original_max_position_embeddings\":8192"

static enum err read_both(const char *json, const char *gen, struct mdl_config *c,
                          struct err_info *info) {
    *info = (struct err_info){.code = ERR_OK};
    memset(c, 0xee, sizeof *c);
    return mdl_config_from_hf(json, strlen(json), gen, gen ? strlen(gen) : 0, c, info);
}

static void read_ok(const char *json, const char *gen, struct mdl_config *c) {
    struct err_info info;
    enum err e = read_both(json, gen, c, &info);
    if (e)
        fail_msg("%s: %s", err_name(e), info.message);
}

static void assert_close(double a, double b) {
    if (fabs(a - b) > 1e-6 * fabs(b))
        fail_msg("%.9g is not %.9g", a, b);
}

static void test_defaults(void **state) {
    (void)state;
    struct mdl_config c;
    read_ok(CONFIG(""), NULL, &c);
    assert_string_equal(c.architecture, "LlamaForCausalLM");
    assert_int_equal(c.family, MDL_LLAMA);
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.intermediate, 96);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.vocab, 300);
    assert_int_equal(c.context, 2048);
    assert_close((double)c.rms_eps, 1e-5);
    assert_false(c.tied || c.qkv_bias || c.qk_norm || c.attn_bias || c.mlp_bias);
    assert_int_equal(c.window, 0);
    assert_close((double)c.rope_theta, 10000);
    assert_int_equal(c.rope_kind, MDL_ROPE_DEFAULT);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.n_eos, 0);
    assert_true(c.gen_temperature < 0 && c.gen_top_p < 0 && c.gen_repetition_penalty < 0);
    assert_true(c.gen_top_k < 0 && c.gen_min_p < 0);
}

static void test_fields(void **state) {
    (void)state;
    struct mdl_config c;
    read_ok(CONFIG("\"num_key_value_heads\":2,\"head_dim\":24,\"tie_word_embeddings\":true,"
                   "\"max_position_embeddings\":131072,\"bos_token_id\":1,\"eos_token_id\":[2,7],"
                   "\"rope_theta\":500000.0,\"hidden_act\":\"silu\",\"sliding_window\":null,"
                   "\"rope_scaling\":null,\"torch_dtype\":\"bfloat16\",\"unknown_field\":[1],"),
            NULL, &c);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 24);
    assert_true(c.tied);
    assert_int_equal(c.context, 131072);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 2);
    assert_int_equal(c.eos[1], 7);
    assert_close((double)c.rope_theta, 500000);

    // generation_config.json comes first, field by field
    read_ok(CONFIG("\"bos_token_id\":1,\"eos_token_id\":2,"),
            "{\"eos_token_id\":[5,6,7],\"temperature\":0.6,\"top_p\":0.9,\"top_k\":null,"
            "\"repetition_penalty\":1.1,\"do_sample\":true,\"min_p\":0.25}",
            &c);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos[2], 7);
    assert_close((double)c.gen_temperature, 0.6);
    assert_close((double)c.gen_top_p, 0.9);
    assert_close((double)c.gen_min_p, 0.25);
    assert_close((double)c.gen_repetition_penalty, 1.1);
    assert_int_equal(c.gen_top_k, -1);
    read_ok(CONFIG("\"eos_token_id\":2,"), "{\"top_k\":0,\"temperature\":0}", &c);
    assert_int_equal(c.eos[0], 2);
    assert_int_equal(c.gen_top_k, 0);
    assert_true(c.gen_temperature >= 0);
}

static void test_rope_spellings(void **state) {
    (void)state;
    struct mdl_config c;
    static const char *const llama3[] = {
        CONFIG("\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3 "},"),
        CONFIG("\"rope_theta\":500000.0,\"rope_scaling\":{\"type\":\"llama3\"," LLAMA3 "},"),
        CONFIG("\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\"," LLAMA3
               "},"),
    };
    for (size_t i = 0; i < sizeof llama3 / sizeof *llama3; i++) {
        read_ok(llama3[i], NULL, &c);
        assert_int_equal(c.rope_kind, MDL_ROPE_LLAMA3);
        assert_close((double)c.rope_theta, 500000);
        assert_close((double)c.rope_factor, 8);
        assert_close((double)c.rope_low_freq, 1);
        assert_close((double)c.rope_high_freq, 4);
        assert_int_equal(c.rope_original_context, 8192);
    }
    static const char *const plain[] = {
        CONFIG("\"rope_theta\":77.0,\"rope_scaling\":{\"rope_type\":\"default\"},"),
        CONFIG("\"rope_parameters\":{\"rope_theta\":77.0,\"rope_type\":\"default\"},"),
        CONFIG("\"rope_parameters\":{\"rope_theta\":77},"),
        CONFIG("\"rope_parameters\":{\"rope_theta\":77.0,\"partial_rotary_factor\":1.0},"),
    };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        read_ok(plain[i], NULL, &c);
        assert_int_equal(c.rope_kind, MDL_ROPE_DEFAULT);
        assert_close((double)c.rope_theta, 77);
    }
}

static const struct {
    const char *json, *gen;
    enum err want;
    const char *says;
} refused[] = {
    {"{", NULL, ERR_FORMAT, "config.json: line 1"},
    {"[]", NULL, ERR_FORMAT, "config.json: must be an object"},
    {"{\"a\":1,\"a\":2}", NULL, ERR_FORMAT, "config.json: line 1: duplicate object key"},
    {"{" BASE "}", NULL, ERR_FORMAT, "architectures is missing"},
    {"{\"architectures\":[\"Qwen2ForCausalLM\"]," BASE "}", NULL, ERR_UNSUPPORTED,
     "architecture Qwen2ForCausalLM is not supported; LlamaForCausalLM"},
    {"{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"mistral\"," BASE "}", NULL,
     ERR_UNSUPPORTED, "model_type mistral is not supported"},
    {"{\"architectures\":[]," BASE "}", NULL, ERR_FORMAT, "architectures must be a list"},
    {"{\"architectures\":\"LlamaForCausalLM\"," BASE "}", NULL, ERR_FORMAT, "architectures must"},
    {"{" LLAMA "\"hidden_size\":64}", NULL, ERR_FORMAT, "num_hidden_layers is missing"},
    {CONFIG("\"head_dim\":\"16\","), NULL, ERR_FORMAT, "head_dim must be an integer"},
    {CONFIG("\"head_dim\":16.0,"), NULL, ERR_FORMAT, "head_dim must be an integer"},
    {CONFIG("\"head_dim\":0,"), NULL, ERR_FORMAT, "the head dimension is 0"},
    {CONFIG("\"head_dim\":15,"), NULL, ERR_FORMAT, "the head dimension, 15, is odd"},
    {CONFIG("\"head_dim\":512,"), NULL, ERR_FORMAT, "the head dimension is 512"},
    {CONFIG("\"head_dim\":4294967312,"), NULL, ERR_FORMAT, "head_dim must be an integer of 32"},
    {CONFIG("\"head_dim\":-16,"), NULL, ERR_FORMAT, "the head dimension is -16"},
    {CONFIG("\"num_key_value_heads\":3,"), NULL, ERR_FORMAT, "is no multiple of"},
    {CONFIG("\"num_key_value_heads\":8,"), NULL, ERR_FORMAT, "key-value heads is 8"},
    {CONFIG("\"num_key_value_heads\":0,"), NULL, ERR_FORMAT, "key-value heads is 0"},
    {CONFIG("\"max_position_embeddings\":0,"), NULL, ERR_FORMAT, "the context length is 0"},
    {CONFIG("\"hidden_act\":\"gelu\","), NULL, ERR_UNSUPPORTED, "hidden_act gelu is not supported"},
    {CONFIG("\"attention_bias\":true,"), NULL, ERR_UNSUPPORTED, "attention_bias true"},
    {CONFIG("\"mlp_bias\":true,"), NULL, ERR_UNSUPPORTED, "mlp_bias true"},
    {CONFIG("\"mlp_bias\":1,"), NULL, ERR_FORMAT, "mlp_bias must be true or false"},
    {CONFIG("\"sliding_window\":4096,"), NULL, ERR_UNSUPPORTED, "sliding_window is not supported"},
    {CONFIG("\"quantization_config\":{\"quant_method\":\"gptq\"},"), NULL, ERR_UNSUPPORTED,
     "quantization_config is not supported"},
    {CONFIG("\"rope_theta\":0,"), NULL, ERR_FORMAT, "the RoPE base is 0"},
    {CONFIG("\"rope_theta\":\"1\","), NULL, ERR_FORMAT, "rope_theta must be a finite number"},
    {CONFIG("\"rope_theta\":1e300,"), NULL, ERR_FORMAT, "rope_theta must be a finite number"},
    {CONFIG("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4},"), NULL, ERR_UNSUPPORTED,
     "RoPE type yarn is not supported; default and llama3 are"},
    {CONFIG("\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"), NULL, ERR_UNSUPPORTED,
     "RoPE type linear"},
    {CONFIG("\"rope_scaling\":{\"factor\":2},"), NULL, ERR_FORMAT, "rope_scaling has no rope_type"},
    {CONFIG("\"rope_scaling\":[],"), NULL, ERR_FORMAT, "rope_scaling must be an object"},
    {CONFIG("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8},"), NULL, ERR_FORMAT,
     "low_freq_factor is missing"},
    {CONFIG("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
            "\"high_freq_factor\":4,\"original_max_position_embeddings\":64},"),
     NULL, ERR_FORMAT, "high_freq_factor must be greater"},
    {CONFIG("\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}},"), NULL, ERR_FORMAT,
     "rope_parameters has no rope_theta"},
    {CONFIG("\"rope_parameters\":{\"rope_theta\":1e4,\"partial_rotary_factor\":0.5},"), NULL,
     ERR_FORMAT, "partial_rotary_factor other than 1"},
    {CONFIG("\"eos_token_id\":300,"), NULL, ERR_FORMAT, "an end-of-sequence id is 300"},
    {CONFIG("\"eos_token_id\":-1,"), NULL, ERR_FORMAT, "eos_token_id must be an id"},
    {CONFIG("\"eos_token_id\":[1,\"2\"],"), NULL, ERR_FORMAT, "eos_token_id must be an id"},
    {CONFIG("\"eos_token_id\":[1,2,3,4,5,6,7,8,9],"), NULL, ERR_FORMAT, "more than 8 ids"},
    {CONFIG("\"bos_token_id\":300,"), NULL, ERR_FORMAT, "the BOS id is 300"},
    {CONFIG(""), "{", ERR_FORMAT, "generation_config.json: line 1"},
    {CONFIG(""), "{\"eos_token_id\":\"x\"}", ERR_FORMAT, "generation_config.json: eos_token_id"},
    {CONFIG(""), "{\"temperature\":1000}", ERR_FORMAT, "temperature is 1000"},
    {CONFIG(""), "{\"top_p\":1.5}", ERR_FORMAT, "top_p is 1.5"},
    {CONFIG(""), "{\"top_k\":1.5}", ERR_FORMAT, "top_k must be an integer"},
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct mdl_config c;
        struct err_info info;
        enum err e = read_both(refused[i].json, refused[i].gen, &c, &info);
        if (e != refused[i].want || !strstr(info.message, refused[i].says))
            fail_msg("%s %s: %s: %s", refused[i].json, refused[i].gen ? refused[i].gen : "",
                     err_name(e), info.message);
    }
}

static const struct {
    const char *field, *value, *says;
} bounds[] = {
    {"num_hidden_layers", "1025", "layers is 1025"},  {"num_hidden_layers", "0", "layers is 0"},
    {"hidden_size", "65540", "hidden size is 65540"}, {"intermediate_size", "0", "intermediate"},
    {"vocab_size", "1048577", "vocabulary size"},     {"vocab_size", "0", "vocabulary size is 0"},
    {"rms_norm_eps", "-1", "epsilon is -1"},          {"rms_norm_eps", "2", "epsilon is 2"},
};

// Each dimension replaced in turn.
static void test_bounds(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        char json[1024];
        struct mdl_config c;
        struct err_info info;
        const char *at = strstr(CONFIG(""), bounds[i].field), *end = at + strcspn(at, ",}");
        snprintf(json, sizeof json, "%.*s%s\":%s%s", (int)(at - CONFIG("")), CONFIG(""),
                 bounds[i].field, bounds[i].value, end);
        enum err e = read_both(json, NULL, &c, &info);
        if (e != ERR_FORMAT || !strstr(info.message, bounds[i].says))
            fail_msg("%s: %s: %s", json, err_name(e), info.message);
    }
}

static void test_inv_freq(void **state) {
    (void)state;
    FILE *f = fopen("tests/golden/rope/inv_freq.txt", "r");
    assert_non_null(f);
    struct mdl_config c;
    float freq[MDL_MAX_HEAD_DIM / 2], plain[MDL_MAX_HEAD_DIM / 2];
    int n_cases = 0;
    for (;; n_cases++) {
        c = (struct mdl_config){.rope_kind = MDL_ROPE_DEFAULT};
        if (fscanf(f, "%d %f %f %f %f %d :", &c.head_dim, &c.rope_theta, &c.rope_factor,
                   &c.rope_low_freq, &c.rope_high_freq, &c.rope_original_context) != 6)
            break;
        assert_in_range(c.head_dim, 2, MDL_MAX_HEAD_DIM);
        mdl_rope_inv_freq(&c, plain);
        if (c.rope_factor > 0)
            c.rope_kind = MDL_ROPE_LLAMA3;
        mdl_rope_inv_freq(&c, freq);
        for (int i = 0; i < c.head_dim / 2; i++) {
            double want;
            assert_int_equal(fscanf(f, "%lf", &want), 1);
            if (fabs((double)freq[i] - want) > 3e-7 * want)
                fail_msg("case %d: %d: %.9g is not %.9g", n_cases, i, (double)freq[i], want);
            c.rope_factors[i] = (float)((double)plain[i] / want);
        }
        // the same scaling as factors, as GGUF files have it
        c.rope_kind = MDL_ROPE_FACTORS;
        mdl_rope_inv_freq(&c, plain);
        for (int i = 0; i < c.head_dim / 2; i++)
            assert_true(fabsf(plain[i] - freq[i]) <= 5e-7f * freq[i]);
    }
    fclose(f);
    assert_int_equal(n_cases, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_fields),
        cmocka_unit_test(test_rope_spellings), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bounds),         cmocka_unit_test(test_inv_freq),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
