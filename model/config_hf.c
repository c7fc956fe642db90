// SPDX-License-Identifier: Apache-2.0
// A Hugging Face folder's config.json and generation_config.json. Both spellings of RoPE are read:
// rope_theta + rope_scaling (transformers 4) and rope_parameters (transformers 5). What changes the
// computation and is not known here is refused by name.
#include "base/json_load.h"
#include "base/mem.h"
#include "model/config.h"
#include "model/shown.h"
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

// One JSON object and where it came from. Errors stick, so that reads can follow one another.
struct reader {
    const json_t *o;
    const char *file;
    enum err e;
    struct err_info *info;
};

// The field's value, or NULL if it is absent, null, or an earlier read failed.
static json_t *field(const struct reader *r, const char *name) {
    json_t *v = r->e ? NULL : json_object_get(r->o, name);
    return json_is_null(v) ? NULL : v;
}

static void fail(struct reader *r, const char *name, const char *why) {
    if (!r->e)
        r->e = err_set(r->info, ERR_FORMAT, NULL, "%s: %s %s", r->file, name, why);
}

static void read_int(struct reader *r, const char *name, int32_t *out) {
    json_t *v = field(r, name);
    if (!v)
        return;
    json_int_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < INT32_MIN || i > INT32_MAX)
        fail(r, name, "must be an integer of 32 bits");
    else
        *out = (int32_t)i;
}

static void need_int(struct reader *r, const char *name, int32_t *out) {
    if (!r->e && !field(r, name))
        fail(r, name, "is missing");
    read_int(r, name, out);
}

static void read_float(struct reader *r, const char *name, float *out) {
    json_t *v = field(r, name);
    if (!v)
        return;
    double d = json_number_value(v);
    if (!json_is_number(v) || !isfinite(d) || fabs(d) > (double)FLT_MAX)
        fail(r, name, "must be a finite number");
    else
        *out = (float)d;
}

static void need_float(struct reader *r, const char *name, float *out) {
    if (!r->e && !field(r, name))
        fail(r, name, "is missing");
    read_float(r, name, out);
}

static void read_bool(struct reader *r, const char *name, bool *out) {
    json_t *v = field(r, name);
    if (v && !json_is_boolean(v))
        fail(r, name, "must be true or false");
    else if (v)
        *out = json_is_true(v);
}

// NULL if absent.
static const char *read_string(struct reader *r, const char *name) {
    json_t *v = field(r, name);
    if (v && !json_is_string(v))
        fail(r, name, "must be a string");
    return json_string_value(v);
}

static void refuse(struct reader *r, const char *what, const char *value, const char *works) {
    struct mdl_shown s;
    if (!r->e)
        r->e = err_set(r->info, ERR_UNSUPPORTED, NULL, "%s: %s %s is not supported; %s", r->file,
                       what, mdl_shown(&s, value, strlen(value)), works);
}

static void read_eos(struct reader *r, struct mdl_config *c) {
    json_t *v = field(r, "eos_token_id");
    if (!v)
        return;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > MDL_MAX_EOS) {
        fail(r, "eos_token_id", "has more than 8 ids");
        return;
    }
    c->n_eos = 0;
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        json_int_t x = json_integer_value(id);
        if (!json_is_integer(id) || x < 0 || x > INT32_MAX) {
            fail(r, "eos_token_id", "must be an id or a list of ids");
            return;
        }
        c->eos[c->n_eos++] = (int32_t)x;
    }
}

static void read_architecture(struct reader *r, struct mdl_config *c) {
    static const char *const works = "LlamaForCausalLM (Llama 2, Llama 3.x, SmolLM2) is";
    json_t *list = field(r, "architectures");
    const char *type = read_string(r, "model_type");
    if (list && (!json_is_array(list) || json_array_size(list) != 1 ||
                 !json_is_string(json_array_get(list, 0))))
        fail(r, "architectures", "must be a list of one name");
    if (r->e)
        return;
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name && !type)
        fail(r, "architectures", "is missing");
    else if (name && strcmp(name, "LlamaForCausalLM") != 0)
        refuse(r, "architecture", name, works);
    else if (type && strcmp(type, "llama") != 0)
        refuse(r, "model_type", type, works);
    strcpy(c->architecture, "LlamaForCausalLM");
    c->family = MDL_LLAMA;
}

// The object that describes RoPE, in either spelling; rope_type was called type once.
static void read_rope(struct reader *r, struct mdl_config *c) {
    json_t *v5 = field(r, "rope_parameters"), *v4 = field(r, "rope_scaling");
    json_t *o = v5 ? v5 : v4;
    c->rope_theta = 10000;
    read_float(r, "rope_theta", &c->rope_theta);
    if (r->e || !o)
        return;
    struct reader in = {.o = o, .file = r->file, .info = r->info};
    if (!json_is_object(o))
        fail(r, v5 ? "rope_parameters" : "rope_scaling", "must be an object");
    if (r->e)
        return;
    const char *type = read_string(&in, "rope_type");
    if (!type)
        type = read_string(&in, "type");
    float partial = 1;
    read_float(&in, "rope_theta", &c->rope_theta);
    read_float(&in, "partial_rotary_factor", &partial);
    if (partial < 1 || partial > 1)
        fail(&in, "partial_rotary_factor", "other than 1 is not supported");
    if (type && strcmp(type, "llama3") == 0) {
        c->rope_kind = MDL_ROPE_LLAMA3;
        need_float(&in, "factor", &c->rope_factor);
        need_float(&in, "low_freq_factor", &c->rope_low_freq);
        need_float(&in, "high_freq_factor", &c->rope_high_freq);
        need_int(&in, "original_max_position_embeddings", &c->rope_original_context);
    } else if (type && strcmp(type, "default") != 0) {
        refuse(&in, "RoPE type", type, "default and llama3 are");
    } else if (!type && !v5) {
        fail(&in, "rope_scaling", "has no rope_type");
    } else if (!type && json_object_size(o) && !field(&in, "rope_theta")) {
        fail(&in, "rope_parameters", "has no rope_theta; one set for all layers is supported");
    }
    r->e = in.e;
}

// Fields that would change the computation, at any value but the usual one.
static void refuse_unknown_parts(struct reader *r, struct mdl_config *c) {
    const char *act = read_string(r, "hidden_act");
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        refuse(r, "hidden_act", act, "silu is");
    read_bool(r, "attention_bias", &c->attn_bias);
    read_bool(r, "mlp_bias", &c->mlp_bias);
    if (c->attn_bias)
        refuse(r, "attention_bias", "true", "false is");
    if (c->mlp_bias)
        refuse(r, "mlp_bias", "true", "false is");
    if (field(r, "sliding_window"))
        refuse(r, "a", "sliding_window", "null is");
    if (field(r, "quantization_config"))
        refuse(r, "a", "quantization_config",
               "weights in F32, F16 or BF16 are, and quantised GGUF files");
}

static void read_model(struct reader *r, struct mdl_config *c) {
    read_architecture(r, c);
    need_int(r, "num_hidden_layers", &c->n_layers);
    need_int(r, "hidden_size", &c->hidden);
    need_int(r, "intermediate_size", &c->intermediate);
    need_int(r, "num_attention_heads", &c->n_heads);
    need_int(r, "vocab_size", &c->vocab);
    c->n_kv_heads = c->n_heads;
    read_int(r, "num_key_value_heads", &c->n_kv_heads);
    read_int(r, "head_dim", &c->head_dim);
    if (!r->e && !field(r, "head_dim")) {
        if (c->n_heads < 1 || c->hidden % c->n_heads)
            fail(r, "hidden_size", "must be a multiple of num_attention_heads");
        else
            c->head_dim = c->hidden / c->n_heads;
    }
    c->context = 2048;
    read_int(r, "max_position_embeddings", &c->context);
    c->rms_eps = 1e-6f;
    read_float(r, "rms_norm_eps", &c->rms_eps);
    read_bool(r, "tie_word_embeddings", &c->tied);
    read_int(r, "bos_token_id", &c->bos);
    read_eos(r, c);
    read_rope(r, c);
    refuse_unknown_parts(r, c);
}

static void read_generation(struct reader *r, struct mdl_config *c) {
    read_int(r, "bos_token_id", &c->bos);
    read_eos(r, c);
    read_float(r, "temperature", &c->gen_temperature);
    read_float(r, "top_p", &c->gen_top_p);
    read_float(r, "min_p", &c->gen_min_p);
    read_float(r, "repetition_penalty", &c->gen_repetition_penalty);
    read_int(r, "top_k", &c->gen_top_k);
}

static json_t *parse(const char *file, const char *json, size_t len, enum err *e,
                     struct err_info *info) {
    json_error_t je;
    struct mdl_shown s;
    json_t *o = json_load_text(json, len, JSON_REJECT_DUPLICATES, &je);
    if (!o)
        *e = err_set(info, json_load_err(&je), NULL, "%s: line %d: %s", file, je.line,
                     mdl_shown(&s, je.text, strlen(je.text)));
    else if (!json_is_object(o))
        *e = err_set(info, ERR_FORMAT, NULL, "%s: must be an object", file);
    return o;
}

enum err mdl_config_from_hf(const char *json, size_t len, const char *gen_json, size_t gen_len,
                            struct mdl_config *out, struct err_info *info) {
    struct mdl_config c = {.bos = -1,
                           .gen_temperature = -1,
                           .gen_top_p = -1,
                           .gen_min_p = -1,
                           .gen_repetition_penalty = -1,
                           .gen_top_k = -1};
    enum err e = ERR_OK;
    json_t *gen = NULL;
    json_t *o = parse("config.json", json, len, &e, info);
    if (!e && gen_json)
        gen = parse("generation_config.json", gen_json, gen_len, &e, info);
    if (e)
        goto out;
    struct reader r = {.o = o, .file = "config.json", .info = info};
    read_model(&r, &c);
    if (gen && !r.e) {
        r.o = gen;
        r.file = "generation_config.json";
        read_generation(&r, &c);
    }
    e = r.e;
    if (!e && (e = mdl_config_check(&c, info)))
        err_prefix(info, "config.json");
    if (!e)
        *out = c;
out:
    json_decref(gen);
    json_decref(o);
    return e;
}
