// SPDX-License-Identifier: Apache-2.0
// Everything that serving a model needs beside HTTP: source, devices, weights, tokenizer, template,
// engines. Made on the main thread while the server already answers probes.
#pragma once
#include "base/log.h"
#include "gateway/adapter_host.h"
#include "gateway/app.h"
#include "gateway/serve_options.h"
#include "model/digest.h"
#include "model/source.h"
#include "model/weights.h"

struct model_host {
    struct mdl_source *source;               // closed once everything is resident
    struct kn_device *device;                // that holds the weights
    struct kn_device *devices[REPLICAS_MAX]; // of the replicas; the same where there is one
    int threads;                             // of all replicas together
    struct mdl_weights *weights;
    struct tokenizer *tokenizer;
    struct chat_template *template;
    struct adapter_host adapters;
    struct eng_background background; // training; set by the caller
    int data_dir; // file descriptor of the data folder, -1: none; set by the caller
    struct replicas replicas;
    struct mdl_config config;
    char *name; // default served name
    const char **names;
    size_t kv_bytes;              // of each replica
    bool (*cancelled)(void *arg); // asked while the weights are loaded; set by the caller
    void *cancelled_arg;
};

enum err model_host_open(struct model_host *h, const char *path, const struct serve_options *o,
                         const struct log *log, struct metrics *metrics, struct app *app,
                         struct err_info *info);
// The replica that training runs beside, and its device.
struct eng *model_host_trainer(const struct model_host *h, struct kn_device **device);
void model_host_close(struct model_host *h);
