/* Specs: FAMILY or FAMILY:KEY=VALUE,KEY=VALUE. */
#include "topology/family.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct parameter {
    const char *name;
    double least, most;
    bool whole;
} parameters[COT_PARAMETERS] = {
    [COT_P_RANKS] = {"ranks", 1, COT_TOPOLOGY_MAX_RANKS, true},
    [COT_P_GPUS] = {"gpus", 1, 1024, true},
    [COT_P_SERVERS] = {"servers", 1, 16384, true},
    [COT_P_LEAVES] = {"leaves", 1, 16384, true},
    [COT_P_SPINES] = {"spines", 1, 256, true},
    [COT_P_PODS] = {"pods", 1, 16384, true},
    [COT_P_ROUTERS] = {"routers", 1, 1024, true},
    [COT_P_Q] = {"q", 3, 89, true},
    [COT_P_DOMAIN] = {"domain", 1, 1024, true},
    [COT_P_PXN] = {"pxn", 0, 1, true},
    [COT_P_LATENCY] = {"latency", 0, 1e6, false},
    [COT_P_BANDWIDTH] = {"bandwidth", 1e-6, 1e6, false},
    [COT_P_NVLINK] = {"nvlink", 1e-6, 1e6, false},
};

#define LINKS "latency=1,bandwidth=50,nvlink=450"

enum {
    FATTREE,
    FATTREE_SPARSE,
    DRAGONFLY,
    DRAGONFLY_SPARSE,
    DRAGONFLY_PLUS,
    SLIMFLY,
    RAIL,
    COMPLETE,
    NODE,
    FAMILIES
};

const cot_topology_family cot_topology_families[FAMILIES + 1] = {
    [FATTREE] = {"fattree", "ranks,gpus=4,servers=4,leaves=4,spines=4," LINKS,
                 "three levels; hops 0 in a server of GPUs, 2 under a leaf of servers, 4 in a pod of leaves, "
                 "6 beyond"},
    [FATTREE_SPARSE] = {"fattree-sparse", "ranks,gpus=4,servers=4,leaves=4,spines=4," LINKS,
                        "the same with the pods in two halves: 6 within a half, 8 across"},
    [DRAGONFLY] = {"dragonfly", "ranks,gpus=4,servers=4,routers=4," LINKS,
                   "groups of routers, all connected; one router a group is the gateway to every other "
                   "group's: hops 2 at a router, 3 in a group, 3 to 5 beyond"},
    [DRAGONFLY_SPARSE] = {"dragonfly-sparse", "ranks,gpus=4,servers=4,routers=4," LINKS,
                          "the same with the gateways on a ring: one hop for each group on the way"},
    [DRAGONFLY_PLUS] = {"dragonfly+", "ranks,gpus=4,servers=4,leaves=4,spines=4," LINKS,
                        "groups of leaves and spines, spines of different groups connected: hops 2 at a "
                        "leaf, 4 in a group, 5 to 7 beyond"},
    [SLIMFLY] = {"slimfly", "ranks,gpus=4,q=5," LINKS,
                 "2 q^2 routers (q a prime above 3) of diameter 2, the servers spread evenly: hops 2 to 4 "
                 "between servers"},
    [RAIL] = {"rail", "ranks,gpus=8,servers=32,spines=8,pxn=0," LINKS,
              "GPU i of each of the servers of a unit on the unit's leaf i: hops 2 on a rail of a unit, 4 "
              "beyond; with pxn=1 messages change rails inside servers"},
    [COMPLETE] = {"complete", "ranks,gpus=1," LINKS, "every server connected with every other: 1 hop"},
    [NODE] = {"node", "ranks=8,domain=8," LINKS,
              "one server; hops 0 in an NVLink domain of GPUs, 2 through the host between domains"},
};

static cot_topology_family_build *const builders[FAMILIES] = {[FATTREE] = cot_build_fattree,
                                                              [FATTREE_SPARSE] = cot_build_fattree_sparse,
                                                              [DRAGONFLY] = cot_build_dragonfly,
                                                              [DRAGONFLY_SPARSE] = cot_build_dragonfly_sparse,
                                                              [DRAGONFLY_PLUS] = cot_build_dragonfly_plus,
                                                              [SLIMFLY] = cot_build_slimfly,
                                                              [RAIL] = cot_build_rail,
                                                              [COMPLETE] = cot_build_complete,
                                                              [NODE] = cot_build_node};

static int find_parameter(const char *name, size_t length)
{
    for (int p = 0; p < COT_PARAMETERS; p++)
        if (strlen(parameters[p].name) == length && !memcmp(parameters[p].name, name, length)) return p;
    return -1;
}

/* Reads "key=value,key=value" into `size`; `known` (NULL: all) is marked or asked. A key without a value is 0. */
static cot_status read_values(cot_topology_size *size, bool *known, bool define, const char *text,
                              const char *spec, const cot_topology_family *family, cot_error *error)
{
    bool given[COT_PARAMETERS] = {false};
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, "=,");
        int p = find_parameter(at, length);
        if (p < 0 || (!define && !known[p]))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "topology '%s': '%.*s' is no parameter of %s, which takes %s", spec, (int)length,
                            at, family->name, family->parameters);
        if (given[p])
            return cot_fail(error, COT_INVALID_ARGUMENT, "topology '%s' says %s twice", spec,
                            parameters[p].name);
        known[p] = given[p] = true;
        size->value[p] = 0;
        at += length;
        if (*at == '=') {
            char *end;
            double value = strtod(at + 1, &end);
            if (end == at + 1 || (*end && *end != ',') || !(value >= parameters[p].least) ||
                value > parameters[p].most || (parameters[p].whole && value != floor(value)))
                return cot_fail(error, COT_INVALID_ARGUMENT,
                                "topology '%s': %s takes a %snumber from %.10g to %.10g", spec,
                                parameters[p].name, parameters[p].whole ? "whole " : "", parameters[p].least,
                                parameters[p].most);
            size->value[p] = value;
            at = end;
        } else if (!define)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "topology '%s': '%s' has no value, expected %s=NUMBER", spec, parameters[p].name,
                            parameters[p].name);
        at += *at == ',';
    }
    return COT_OK;
}

static bool prime(int32_t q)
{
    for (int32_t d = 2; d * d <= q; d++)
        if (q % d == 0) return false;
    return q > 1;
}

static cot_status read_spec(cot_topology_size *size, const cot_topology_family **family, int *index,
                            const char *spec, int32_t ranks, cot_error *error)
{
    bool known[COT_PARAMETERS] = {false};
    size_t length = strcspn(spec, ":");
    for (*index = 0; cot_topology_families[*index].name; ++*index)
        if (strlen(cot_topology_families[*index].name) == length &&
            !memcmp(cot_topology_families[*index].name, spec, length))
            break;
    *family = &cot_topology_families[*index];
    if (!(*family)->name) {
        char names[160] = "";
        for (const cot_topology_family *f = cot_topology_families; f->name; f++)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? ", " : "",
                     f->name);
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%.*s' is neither a file nor a topology (%s)",
                        (int)length, spec, names);
    }
    cot_status status = read_values(size, known, true, (*family)->parameters, spec, *family, error);
    double initial = size->value[COT_P_RANKS];
    size->value[COT_P_RANKS] = 0;
    if (status == COT_OK && spec[length])
        status = read_values(size, known, false, spec + length + 1, spec, *family, error);
    if (status != COT_OK) return status;
    size->ranks = cot_topology_parameter(size, COT_P_RANKS);
    if (ranks > 0 && size->ranks > 0 && ranks != size->ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT, "topology '%s' has %d ranks, expected %d", spec,
                        size->ranks, ranks);
    if (!size->ranks) size->ranks = ranks > 0 ? ranks : (int32_t)initial;
    if (!size->ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT, "topology '%s' does not say how many ranks: %s:ranks=N",
                        spec, (*family)->name);
    size->gpus = known[COT_P_GPUS] ? cot_topology_parameter(size, COT_P_GPUS) : size->ranks;
    if (known[COT_P_DOMAIN] && size->ranks % cot_topology_parameter(size, COT_P_DOMAIN))
        return cot_fail(error, COT_INVALID_ARGUMENT, "topology '%s': %d ranks are no multiple of domain=%d",
                        spec, size->ranks, cot_topology_parameter(size, COT_P_DOMAIN));
    if (size->ranks % size->gpus)
        return cot_fail(error, COT_INVALID_ARGUMENT, "topology '%s': %d ranks are no multiple of gpus=%d",
                        spec, size->ranks, size->gpus);
    if (known[COT_P_Q] &&
        (!prime(cot_topology_parameter(size, COT_P_Q)) || cot_topology_parameter(size, COT_P_Q) < 5))
        return cot_fail(error, COT_INVALID_ARGUMENT, "topology '%s': q=%d is no prime above 3", spec,
                        cot_topology_parameter(size, COT_P_Q));
    size->n_servers = size->ranks / size->gpus;
    return COT_OK;
}

cot_status cot_topology_build(cot_topology *topology, const char *spec, int32_t ranks, cot_error *error)
{
    cot_topology_size size = {0};
    const cot_topology_family *family;
    int index;
    *topology = (cot_topology){0};
    cot_status status = read_spec(&size, &family, &index, spec, ranks, error);
    if (status != COT_OK) return status;
    int32_t *scratch = malloc(3 * ((size_t)size.ranks + 2) * sizeof *scratch);
    if (!scratch) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the topology '%s'", spec);
    status = cot_graph_start(topology, spec, error);
    if (status == COT_OK)
        status = cot_graph_finish(topology, builders[index](topology, &size, scratch), error);
    topology->has_costs = true;
    free(scratch);
    if (status != COT_OK) cot_topology_free(topology);
    return status;
}
