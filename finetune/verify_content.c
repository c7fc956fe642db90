// SPDX-License-Identifier: Apache-2.0
#include "finetune/checkpoint.h"
#include "finetune/dataset.h"
#include "finetune/verify_internal.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- adapters and checkpoints

// The file that a message speaks of.
static void blame(const struct err_info *why, enum err e, struct ft__flaw *out) {
    static const char *const files[] = {"adapter_config.json", "optimizer.safetensors",
                                        "trainer_state.json"};
    const char *file = "adapter_model.safetensors";
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strncmp(why->message, files[i], strlen(files[i])))
            file = files[i];
    out->e = e;
    snprintf(out->file, sizeof out->file, "%s", file);
    snprintf(out->what, sizeof out->what, "%.390s", why->message);
}

static enum err shape(const char *path, const struct mdl_config *base, struct mdl_config *out,
                      struct err_info *info) {
    if (base) {
        *out = *base;
        return ERR_OK;
    }
    return mdl_adapter_shape(path, out, info);
}

// Fields of adapter_config.json are named without the file.
static enum err read_adapter(const char *path, const struct mdl_config *c, struct ft__flaw *out) {
    struct mdl_adapter_limits limits = {0};
    struct mdl_adapter *a = NULL;
    struct err_info why = {0};
    enum err e = mdl_adapter_read(path, c, &limits, &a, &why);
    mdl_adapter_destroy(a);
    if (!e)
        return e;
    blame(&why, e, out);
    bool tensors = !strncmp(why.message, "tensor ", 7) ||
                   !strncmp(why.message, "adapter_model.safetensors", 25);
    if (!tensors)
        snprintf(out->file, sizeof out->file, "adapter_config.json");
    return e;
}

void ft__inspect_adapter(const char *path, const struct mdl_config *base, struct ft__flaw *out) {
    struct mdl_config c;
    struct err_info why = {0};
    *out = (struct ft__flaw){.e = ERR_OK};
    enum err e = shape(path, base, &c, &why);
    if (e)
        blame(&why, e, out);
    else
        (void)read_adapter(path, &c, out);
}

static bool finite_moments(const struct mdl_adapter *a, bool squares) {
    const float *v = a->memory;
    for (size_t i = 0; i < a->values; i++)
        if (!isfinite(v[i]) || (squares && v[i] < 0))
            return false;
    return true;
}

void ft__inspect_checkpoint(const char *path, const struct mdl_config *base, struct ft__flaw *out) {
    struct mdl_config c;
    struct ft_state s;
    struct ft_moments x = {0};
    struct err_info why = {0};
    *out = (struct ft__flaw){.e = ERR_OK};
    enum err e = shape(path, base, &c, &why);
    if (e) {
        blame(&why, e, out);
        return;
    }
    if (read_adapter(path, &c, out))
        return;
    e = ft_checkpoint_read(path, &c, &s, &x, &why);
    if (!e && (!finite_moments(x.m, false) || !finite_moments(x.v, true)))
        e = err_set(&why, ERR_FORMAT, NULL,
                    "optimizer.safetensors holds a value that is not finite, or a negative mean of "
                    "squares");
    if (e)
        blame(&why, e, out);
    ft_moments_fini(&x);
}

// ---- caches of tokens

enum err ft__inspect_tokens(const char *path, char digest[FT_SHA256_HEX], struct err_info *info) {
    struct ft_dataset *d;
    struct ft_sample s = {0};
    enum err e = ft_dataset_open(path, &d, info);
    if (e)
        return e;
    for (int64_t i = 0; i < ft_dataset_samples(d) && !e; i++)
        e = ft_dataset_read(d, i, &s, info);
    hex_encode(ft_dataset_report(d)->digest, SHA256_BYTES, digest);
    ft_sample_fini(&s);
    ft_dataset_close(d);
    return e;
}

// ---- the model

enum err ft__compare_base(const json_t *m, const struct ft_verify_base *base,
                          struct err_info *info) {
    const struct {
        const char *key, *is, *what;
    } all[] = {{"base_digest", base->base_digest, "the model"},
               {"tokenizer_digest", base->tokenizer_digest, "the model's tokenizer"},
               {"template_digest", base->template_digest, "the chat template"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *was = json_string_value(json_object_get(m, all[i].key));
        was = was ? was : "";
        if (strcmp(was, all[i].is) != 0)
            return err_set(info, ERR_INVALID, NULL, "%s is %.64s, and %s has %.64s", all[i].key,
                           *was ? was : "none", all[i].what, *all[i].is ? all[i].is : "none");
    }
    return ERR_OK;
}
