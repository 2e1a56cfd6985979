#include "topology/ibnet.h"

#include "base/error.h"
#include "base/file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

bool cot_ibnet_is(const char *text)
{
    return strstr(text, "\nSwitch\t") || strstr(text, "\nCa\t") || strstr(text, "switchguid=") ||
           strstr(text, "caguid=") || cot_ibnet_lists_ports(text);
}

static cot_status read_text(cot_topology *graph, const cot_topology_text *file, cot_error *error)
{
    const char *at = file->text;
    while (isspace((unsigned char)*at)) at++;
    cot_status status = cot_graph_start(graph, file->path, error);
    if (status != COT_OK) return status;
    if (cot_ibnet_lists_nodes(file->text)) return cot_ibnet_refuse_nodes(file->path, error);
    const bool ibnet = cot_ibnet_is(file->text);
    if (file->options->nvlink && (ibnet || *at != '<'))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' is no NCCL topology, which alone takes more NVLinks", file->path);
    if (ibnet) return cot_read_topology_ibnet(graph, file, error);
    if (file->options->hosts)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' is no ibnetdiscover output: it has no adapters to seat ranks on", file->path);
    if (*at == '{' || *at == '[') return cot_read_topology_json(graph, file, error);
    if (*at == '<') return cot_read_topology_nccl(graph, file, error);
    if (cot_nvlinks_is(file->text)) return cot_read_topology_nvlinks(graph, file, error);
    return cot_fail(
        error, COT_UNSUPPORTED,
        "'%s' is no topology: expected ibnetdiscover output, an NCCL topology (XML), what nvidia-smi topo -m "
        "prints, or JSON (a matrix, or nodes and edges)",
        file->path);
}

cot_status cot_topology_read(cot_topology *topology, const char *path, const cot_topology_options *options,
                             cot_error *error)
{
    static const cot_topology_options none = {.size = sizeof none};
    cot_topology_text file = {.path = path, .options = options ? options : &none};
    char *text;
    *topology = (cot_topology){0};
    if (options && options->size != sizeof *options)
        return cot_fail(error, COT_INVALID_ARGUMENT, "topology options of %zu bytes, expected %zu",
                        options->size, sizeof *options);
    cot_status status = cot_file_read(&text, &file.bytes, path, COT_TOPOLOGY_LARGEST_FILE, error);
    if (status != COT_OK) return status;
    file.text = text;
    status = read_text(topology, &file, error);
    if (status == COT_OK && file.options->ranks > 0 && file.options->ranks != topology->n_ranks)
        status = cot_fail(error, COT_MALFORMED, "topology '%s' has %d ranks, expected %d", path,
                          topology->n_ranks, file.options->ranks);
    free(text);
    if (status != COT_OK) cot_topology_free(topology);
    return status;
}
