// SPDX-License-Identifier: Apache-2.0
// Whether an adapter version computes on an engine what its trainer computed: the digest of its
// content, and the losses of the probe set by ENG_SCORE requests, token by token: the same bits
// where trainer and engine are one kernel set, within 1e-4 of the sum where not. The requests make
// the version resident and run it, so that its first client pays for neither. Blocks; not for an
// event loop.
#pragma once
#include "finetune/probe.h"
#include "gateway/engine_ask.h"

struct adapter_verify {
    const struct ft_probe *trained; // with the trainer's losses
    const struct ft_probe *served;  // the same lines as serving reads them (ft_probe_again)
    const char *digest;             // of what was trained (mdl_adapter_digest); NULL: not looked at
    bool same_kernels;              // trainer and engine are one kernel set
    uint64_t tenant;
    const _Atomic bool *stop; // may be NULL
};
// ERR_FORMAT says what differs; other errors are the engine's. May be called again, for another
// engine.
enum err adapter_verify(const struct adapter_verify *a, struct eng *engine, struct adp_version *v,
                        struct err_info *info);
