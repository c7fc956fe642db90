// SPDX-License-Identifier: Apache-2.0
// A model in one GGUF file: mdl__open_gguf reads the header into memory, the config from its
// metadata, and gives the tensors their Hugging Face names. Only the architecture "llama" is known;
// metadata that would change its computation is refused by name.
#include "base/mem.h"
#include "model/shown.h"
#include "model/source_internal.h"
#include <stdio.h>
#include <string.h>

enum { FIRST_READ = 2 << 20, READ_GROWTH = 4 };

static bool equal(struct tok_str a, const char *b) {
    return a.n == strlen(b) && memcmp(a.p, b, a.n) == 0;
}

// The header's length is known only once it is parsed: it is read in growing pieces, so that at
// most a quarter of the bytes is parsed more than once.
static enum err read_header(struct mdl_source *s, struct err_info *info) {
    const struct mdl_file *f = &s->files[0];
    size_t have = 0, want = FIRST_READ;
    for (;;) {
        if (want > f->size)
            want = (size_t)f->size;
        uint8_t *p = mem_realloc(s->header, want);
        if (!p)
            return err_set(info, ERR_NOMEM, NULL, "out of memory for the header");
        s->header = p;
        enum err e = mdl_file_read(f, have, want - have, p + have, info);
        if (e)
            return e;
        have = want;
        e = gguf_parse(p, have, f->size, &s->gguf, info);
        if (e != ERR_AGAIN)
            return e;
        want = have > SIZE_MAX / READ_GROWTH ? SIZE_MAX : have * READ_GROWTH;
    }
}

static enum err check_architecture(const struct gguf *g, struct err_info *info) {
    struct tok_str arch = {NULL, 0};
    struct mdl_shown shown;
    int64_t splits = 1;
    enum err e = gguf_string(g, "general.architecture", &arch, info);
    if (e)
        return e;
    if (!arch.p)
        return err_set(info, ERR_FORMAT, NULL, "general.architecture: is missing");
    if (!equal(arch, "llama"))
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "architecture %s is not supported; llama (Llama 2, Llama 3.x, SmolLM2) is",
                       mdl_shown(&shown, arch.p, arch.n));
    e = gguf_int(g, "split.count", 0, INT32_MAX, &splits, info);
    if (!e && splits > 1)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "split.count: a model in %d GGUF files is not supported; one file is",
                       (int)splits);
    return e;
}

// Metadata that means another computation unless it has this value (or is absent).
static enum err check_usual(const struct gguf *g, struct err_info *info) {
    static const struct {
        const char *key;
        int64_t usual;
    } ints[] = {{"llama.expert_count", 0}, {"llama.attention.sliding_window", 0}};
    static const struct {
        const char *key;
        bool usual;
    } bools[] = {{"llama.attention.causal", true}, {"llama.use_parallel_residual", false}};
    enum err e = ERR_OK;
    for (size_t i = 0; !e && i < sizeof ints / sizeof *ints; i++) {
        int64_t v = ints[i].usual;
        e = gguf_int(g, ints[i].key, 0, INT64_MAX, &v, info);
        if (!e && v != ints[i].usual)
            e = err_set(info, ERR_UNSUPPORTED, NULL, "%s: %lld is not supported; %lld is",
                        ints[i].key, (long long)v, (long long)ints[i].usual);
    }
    for (size_t i = 0; !e && i < sizeof bools / sizeof *bools; i++) {
        bool v = bools[i].usual;
        e = gguf_bool(g, bools[i].key, &v, info);
        if (!e && v != bools[i].usual)
            e = err_set(info, ERR_UNSUPPORTED, NULL, "%s: %s is not supported", bools[i].key,
                        v ? "true" : "false");
    }
    return e;
}

static enum err read_rope(const struct gguf *g, struct mdl_config *c, struct err_info *info) {
    struct tok_str type = {"none", 4};
    struct mdl_shown shown;
    float factor = 1, linear = 1;
    int64_t dims = c->head_dim;
    c->rope_theta = 10000;
    enum err e = gguf_float(g, "llama.rope.freq_base", &c->rope_theta, info);
    if (!e)
        e = gguf_string(g, "llama.rope.scaling.type", &type, info);
    if (!e)
        e = gguf_float(g, "llama.rope.scaling.factor", &factor, info);
    if (!e)
        e = gguf_float(g, "llama.rope.scale_linear", &linear, info);
    if (!e)
        e = gguf_int(g, "llama.rope.dimension_count", 0, INT32_MAX, &dims, info);
    if (e)
        return e;
    bool stretched = factor < 1 || factor > 1 || linear < 1 || linear > 1;
    if ((!equal(type, "none") && !equal(type, "linear")) || stretched)
        return err_set(
            info, ERR_UNSUPPORTED, NULL,
            "llama.rope.scaling: type %s with a factor of %g is not supported; none, and "
            "llama3's as a rope_freqs tensor, are",
            mdl_shown(&shown, type.p, type.n), (double)(linear > 1 ? linear : factor));
    if (dims != c->head_dim)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "llama.rope.dimension_count: %d of %d dimensions is not supported; all are",
                       (int)dims, c->head_dim);
    return ERR_OK;
}

// A 32-bit integer; `missing` >= 0 stands in where the key is absent, else that is an error.
static enum err read_int(const struct gguf *g, const char *key, int64_t missing, int32_t *out,
                         struct err_info *info) {
    int64_t v = missing;
    enum err e = gguf_int(g, key, 0, INT32_MAX, &v, info);
    if (!e && v < 0)
        return err_set(info, ERR_FORMAT, NULL, "%s: is missing", key);
    *out = (int32_t)v;
    return e;
}

static enum err read_dims(const struct gguf *g, struct mdl_config *c, struct err_info *info) {
    enum err e = read_int(g, "llama.block_count", -1, &c->n_layers, info);
    if (!e)
        e = read_int(g, "llama.embedding_length", -1, &c->hidden, info);
    if (!e)
        e = read_int(g, "llama.feed_forward_length", -1, &c->intermediate, info);
    if (!e)
        e = read_int(g, "llama.attention.head_count", -1, &c->n_heads, info);
    if (!e)
        e = read_int(g, "llama.attention.head_count_kv", c->n_heads, &c->n_kv_heads, info);
    if (!e)
        e = read_int(g, "llama.context_length", -1, &c->context, info);
    if (e)
        return e;
    int32_t derived = c->n_heads > 0 && c->hidden % c->n_heads == 0 ? c->hidden / c->n_heads : -1;
    int32_t value_length = 0;
    if ((e = read_int(g, "llama.attention.key_length", derived, &c->head_dim, info)) ||
        (e = read_int(g, "llama.attention.value_length", c->head_dim, &value_length, info)))
        return e;
    if (value_length != c->head_dim)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "llama.attention.value_length: %d other than key_length, %d, is not "
                       "supported",
                       value_length, c->head_dim);
    if (!gguf_find(g, "llama.attention.layer_norm_rms_epsilon"))
        return err_set(info, ERR_FORMAT, NULL,
                       "llama.attention.layer_norm_rms_epsilon: is missing");
    return gguf_float(g, "llama.attention.layer_norm_rms_epsilon", &c->rms_eps, info);
}

static void add_eos(struct mdl_config *c, int64_t id) {
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return;
    if (id >= 0 && c->n_eos < MDL_MAX_EOS)
        c->eos[c->n_eos++] = (int32_t)id;
}

// Files name one end-of-sequence id, but a chat model's turn may end with others. Those that
// published families use are found by their text, if they are control tokens.
static enum err find_more_eos(const struct gguf *g, struct mdl_config *c, struct err_info *info) {
    static const char *const ends[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
                                       "<|endoftext|>"};
    const struct gguf_kv *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    int32_t *types = NULL;
    size_t n_types = 0;
    if (!tokens || tokens->type != GGUF_ARRAY || tokens->elem != GGUF_STRING)
        return ERR_OK; // refused when the tokenizer is made
    enum err e = gguf_int32s(g, "tokenizer.ggml.token_type", &types, &n_types, info);
    if (e)
        return e;
    const uint8_t *at = g->p + tokens->at;
    for (size_t i = 0; i < tokens->count; i++) {
        struct tok_str t = gguf_next_string(&at);
        if (i >= n_types || types[i] != 3 || t.n < 2 || t.p[0] != '<' || t.p[1] != '|')
            continue;
        for (size_t j = 0; j < sizeof ends / sizeof *ends; j++)
            if (equal(t, ends[j]))
                add_eos(c, (int64_t)i);
    }
    mem_free(types);
    return ERR_OK;
}

static enum err read_special(const struct gguf *g, struct mdl_config *c, struct err_info *info) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t bos = -1;
    enum err e = gguf_int(g, "tokenizer.ggml.bos_token_id", 0, c->vocab - 1, &bos, info);
    for (size_t i = 0; !e && i < sizeof keys / sizeof *keys; i++) {
        int64_t id = -1;
        e = gguf_int(g, keys[i], 0, c->vocab - 1, &id, info);
        add_eos(c, id);
    }
    c->bos = (int32_t)bos;
    return e ? e : find_more_eos(g, c, info);
}

static const struct gguf_tensor *find_tensor(const struct gguf *g, const char *name) {
    for (size_t i = 0; i < g->n_tensors; i++)
        if (equal(g->tensors[i].name, name))
            return &g->tensors[i];
    return NULL;
}

// The vocabulary has as many entries as the embedding has rows.
static enum err read_vocab(const struct gguf *g, struct mdl_config *c, struct err_info *info) {
    const struct gguf_tensor *embed = find_tensor(g, "token_embd.weight");
    if (!embed || embed->n_dims != 2 || embed->dims[0] > INT32_MAX)
        return err_set(info, ERR_FORMAT, NULL, "tensor token_embd.weight is missing or no matrix");
    c->vocab = (int32_t)embed->dims[0];
    int32_t stated = 0;
    enum err e = read_int(g, "llama.vocab_size", c->vocab, &stated, info);
    if (!e && stated != c->vocab)
        return err_set(info, ERR_FORMAT, NULL,
                       "llama.vocab_size: %d, but token_embd.weight has %d rows", stated, c->vocab);
    return e;
}

static enum err read_config(const struct gguf *g, struct mdl_config *c, struct err_info *info) {
    *c = (struct mdl_config){.architecture = "llama",
                             .family = MDL_LLAMA,
                             .bos = -1,
                             .gen_temperature = -1,
                             .gen_top_p = -1,
                             .gen_min_p = -1,
                             .gen_repetition_penalty = -1,
                             .gen_top_k = -1};
    enum err e = check_usual(g, info);
    if (!e)
        e = read_dims(g, c, info);
    if (!e)
        e = read_rope(g, c, info);
    if (!e)
        e = read_vocab(g, c, info);
    if (!e)
        e = read_special(g, c, info);
    c->tied = !find_tensor(g, "output.weight");
    return e;
}

// llama3 scaling as converters store it: what each frequency is to be divided by.
static enum err read_rope_factors(struct mdl_source *s, struct err_info *info) {
    const struct gguf_tensor *t = find_tensor(&s->gguf, "rope_freqs.weight");
    if (!t)
        return ERR_OK;
    if (t->dtype != KN_F32 || t->n_dims != 1 || t->dims[0] != s->config.head_dim / 2 ||
        t->bytes > sizeof s->config.rope_factors)
        return err_set(info, ERR_FORMAT, NULL,
                       "tensor rope_freqs.weight: must be F32 with one value for each of the %d "
                       "frequencies",
                       s->config.head_dim / 2);
    s->config.rope_kind = MDL_ROPE_FACTORS;
    return mdl_file_read(&s->files[0], t->offset, t->bytes, s->config.rope_factors, info);
}

static enum err list_tensors(struct mdl_source *s, struct err_info *info) {
    const struct gguf *g = &s->gguf;
    s->tensors = mem_calloc(g->n_tensors, sizeof *s->tensors);
    if (!s->tensors)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for %zu tensors", g->n_tensors);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *from = &g->tensors[i];
        struct mdl_shown shown;
        char name[96];
        if (equal(from->name, "rope_freqs.weight"))
            continue;
        if (!mdl__hf_name(from->name, name))
            return err_set(info, ERR_UNSUPPORTED, NULL,
                           "tensor %s is not part of a llama model (info at byte %zu)",
                           mdl_shown(&shown, from->name.p, from->name.n), from->at);
        struct mdl_tensor *t = &s->tensors[s->n_tensors++];
        *t = (struct mdl_tensor){.name = arena_strdup(&s->arena, name),
                                 .dtype = from->dtype,
                                 .n_dims = from->n_dims,
                                 .offset = from->offset,
                                 .bytes = from->bytes};
        memcpy(t->dims, from->dims, sizeof t->dims);
        if (!t->name)
            return err_set(info, ERR_NOMEM, NULL, "out of memory for %zu tensors", g->n_tensors);
    }
    return mdl__finish_tensors(s, info);
}

static enum err make_tokenizer(const struct mdl_source *s, struct tokenizer **out,
                               struct err_info *info) {
    const struct gguf *g = &s->gguf;
    struct tok_str *tokens = NULL, *merges = NULL;
    int32_t *types = NULL;
    size_t n_types = 0;
    int64_t eos = -1, eot = -1;
    struct tokenizer_gguf t = {.model = {"", 0}, .pre = {"", 0}, .bos = s->config.bos};
    enum err e = gguf_string(g, "tokenizer.ggml.model", &t.model, info);
    if (!e)
        e = gguf_string(g, "tokenizer.ggml.pre", &t.pre, info);
    if (!e)
        e = gguf_strings(g, "tokenizer.ggml.tokens", &tokens, &t.n_tokens, info);
    if (!e)
        e = gguf_strings(g, "tokenizer.ggml.merges", &merges, &t.n_merges, info);
    if (!e)
        e = gguf_int32s(g, "tokenizer.ggml.token_type", &types, &n_types, info);
    // Llama 3's files leave the key out although its prompts begin with BOS; so do SentencePiece's.
    t.add_bos = equal(t.model, "llama") || equal(t.pre, "llama-bpe") || equal(t.pre, "llama3") ||
                equal(t.pre, "llama-v3");
    if (!e)
        e = gguf_bool(g, "tokenizer.ggml.add_bos_token", &t.add_bos, info);
    if (!e)
        e = gguf_bool(g, "tokenizer.ggml.add_eos_token", &t.add_eos, info);
    if (!e)
        e = gguf_int(g, "tokenizer.ggml.eos_token_id", 0, INT32_MAX, &eos, info);
    if (!e)
        e = gguf_int(g, "tokenizer.ggml.eot_token_id", 0, INT32_MAX, &eot, info);
    if (!e && !tokens)
        e = err_set(info, ERR_FORMAT, NULL, "tokenizer.ggml.tokens: is missing");
    if (!e && t.n_tokens != (size_t)s->config.vocab)
        e = err_set(info, ERR_FORMAT, NULL,
                    "tokenizer.ggml.tokens: %zu tokens for a vocabulary of %d", t.n_tokens,
                    s->config.vocab);
    if (!e && types && n_types != t.n_tokens)
        e = err_set(info, ERR_FORMAT, NULL, "tokenizer.ggml.token_type: %zu types for %zu tokens",
                    n_types, t.n_tokens);
    t.tokens = tokens;
    t.merges = merges;
    t.token_type = types;
    t.eos = (int32_t)eos;
    t.eot = (int32_t)eot;
    if (!e)
        e = tokenizer_from_gguf(&t, out, info);
    mem_free(tokens);
    mem_free(merges);
    mem_free(types);
    return e;
}

// The default template; a file that has only named ones has its "default" or, if that is missing,
// none.
static enum err read_template(struct mdl_source *s, struct err_info *info) {
    struct tok_str text = {NULL, 0};
    enum err e = gguf_string(&s->gguf, "tokenizer.chat_template", &text, info);
    if (!e && !text.p)
        e = gguf_string(&s->gguf, "tokenizer.chat_template.default", &text, info);
    if (!e && text.p)
        e = mdl__set_template(s, text.p, text.n, info);
    return e;
}

enum err mdl__open_gguf(struct mdl_source *s, struct err_info *info) {
    s->make_tokenizer = make_tokenizer;
    s->rope_permuted = true;
    enum err e = read_header(s, info);
    if (!e)
        e = check_architecture(&s->gguf, info);
    if (!e)
        e = read_config(&s->gguf, &s->config, info);
    if (!e)
        e = read_rope_factors(s, info);
    if (!e)
        e = mdl_config_check(&s->config, info);
    if (!e)
        e = list_tensors(s, info);
    if (!e)
        e = read_template(s, info);
    return e;
}
