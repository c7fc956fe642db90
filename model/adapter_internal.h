// SPDX-License-Identifier: Apache-2.0
// Inside the adapter files:
//
//   adapter.c          shapes, names, memory; a folder
//   adapter_config.c   adapter_config.json -> which module has which rank and alpha
//   adapter_match.c    how PEFT matches module names: lists, regular expressions, patterns
//   adapter_tensors.c  adapter_model.safetensors -> the matrices
//   adapter_write.c    the way back
//   adapter_shape.c    what base an adapter fits, from its tensors alone
#pragma once
#include "model/adapter.h"
#include "model/file.h"
#include "model/safetensors.h"
#include <jansson.h>

enum {
    MDL__ADAPTER_NAME = 96, // bytes of a tensor's or module's name, NUL included
    MDL__ADAPTER_CONFIG = 1 << 20,
    MDL__ADAPTER_PATTERN = 4096, // bytes of one regular expression
    MDL__ADAPTER_REGEXES = 64,   // regular expressions of one file; plain names are not counted
    MDL__ADAPTER_ENTRIES = 4096, // of a list or a pattern object
    MDL__ADAPTER_LAYER_PATTERNS = 8,
};
#define MDL__ADAPTER_CONFIG_NAME "adapter_config.json"
#define MDL__ADAPTER_TENSORS_NAME "adapter_model.safetensors"

// An adapter without any target and without matrices. NULL: out of memory.
struct mdl_adapter *mdl__adapter_new(const struct mdl_config *c);
// Sets a module's rank, alpha and scale.
void mdl__adapter_target(struct mdl_adapter *a, int32_t layer, enum mdl_target t, int32_t r,
                         double alpha);
// Allocates the matrices, to be filled, for the ranks that are set.
enum err mdl__adapter_lay_out(struct mdl_adapter *a, const struct mdl_config *c,
                              struct err_info *info);
// "model.layers.3.self_attn.q_proj"
void mdl__adapter_module_name(char out[MDL__ADAPTER_NAME], int32_t layer, enum mdl_target t);
// "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"
void mdl__adapter_tensor_name(char out[MDL__ADAPTER_NAME], int32_t layer, enum mdl_target t,
                              bool is_b);
// The way back; PEFT's own adapter name "default" may stand before ".weight". False: no such name.
// A layer may be one that the base does not have.
bool mdl__adapter_parse_name(const char *name, int32_t *layer, enum mdl_target *t, bool *is_b);

// The two halves of reading a folder; `json` need not be terminated.
enum err mdl__adapter_read_config(const char *json, size_t n, const struct mdl_config *c,
                                  const struct mdl_adapter_limits *limits, struct mdl_adapter **out,
                                  struct err_info *info);
// *out is freed with st_fini.
enum err mdl__adapter_read_header(const struct mdl_file *f, struct st_header *out,
                                  struct err_info *info);
enum err mdl__adapter_read_tensors(const struct mdl_file *f, const struct mdl_config *c,
                                   struct mdl_adapter *a, struct pace *pace, struct err_info *info);

// ---- matching of module names

// What a field of adapter_config.json says about names: a list of names or suffixes, one regular
// expression, or nothing. Borrows the JSON.
struct mdl__names {
    json_t *list;
    struct mdl__regex *regex;
};
struct mdl__matcher { // counts what was compiled for one file
    int n_regexes;
    struct err_info *info;
};
// `field` is for errors. Absent and null: nothing.
enum err mdl__names_init(struct mdl__matcher *m, json_t *v, const char *field,
                         struct mdl__names *out);
void mdl__names_fini(struct mdl__names *n);
enum err mdl__names_match(const struct mdl__matcher *m, const struct mdl__names *n,
                          const char *name, bool *found);
bool mdl__name_or_suffix(const char *entry, const char *name);

// rank_pattern, alpha_pattern: the first key that matches (.*\.)?(key)$ at the name's begin.
struct mdl__pattern {
    json_t *object;
    struct mdl__regex **regex; // for each entry, in order; NULL where the key is a plain name
    size_t n;
};
enum err mdl__pattern_init(struct mdl__matcher *m, json_t *v, const char *field,
                           struct mdl__pattern *out);
void mdl__pattern_fini(struct mdl__pattern *p);
// *value NULL: no key matches.
enum err mdl__pattern_find(const struct mdl__matcher *m, const struct mdl__pattern *p,
                           const char *name, json_t **value);

// layers_pattern, which is there: the layer's number as PEFT finds it in a name, -1: it finds none.
enum err mdl__layer_number(struct mdl__matcher *m, const json_t *layers_pattern, const char *name,
                           int32_t *layer);
