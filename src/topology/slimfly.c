/* Slim Fly: the graphs of McKay, Miller and Siran, 2 q^2 routers of diameter 2 (Besta and Hoefler 2014, section II-B).
 * Router (0, x, y) meets (0, x, y') where y - y' is in X; (1, m, c) meets (1, m, c') where c - c' is in X'; (0, x, y)
 * meets (1, m, c) where y = m x + c; all modulo q. */
#include "topology/family.h"

static int32_t power(int32_t base, int32_t exponent, int32_t q)
{
    int32_t result = 1;
    for (; exponent; exponent--) result = result * base % q;
    return result;
}

static int32_t primitive_root(int32_t q)
{
    for (int32_t g = 2;; g++) {
        int32_t order = 1;
        for (int32_t x = g; x != 1; x = x * g % q) order++;
        if (order == q - 1) return g;
    }
}

/* Marks the two generator sets. q = 4w + 1: the even and the odd powers of the root. q = 4w - 1: even powers below 2w
 * and odd ones from 2w - 1 on, and those times the root. */
static void generators(bool in[2][89], int32_t q)
{
    int32_t root = primitive_root(q), w = (q + 1) / 4;
    for (int32_t i = 0; i < q - 1; i++) {
        bool member = q % 4 == 1 ? i % 2 == 0 : i < 2 * w - 1 ? i % 2 == 0 : i % 2 == 1;
        if (!member) continue;
        in[0][power(root, i, q)] = true;
        in[1][power(root, i + 1, q)] = true;
    }
}

bool cot_build_slimfly(cot_topology *graph, const cot_topology_size *size, int32_t *servers)
{
    int32_t q = cot_topology_parameter(size, COT_P_Q), n = 2 * q * q;
    bool in[2][89] = {{false}};
    generators(in, q);
    if (!cot_topology_servers(graph, size, servers)) return false;
    int32_t first = graph->n_vertices; // router (side, x, y) is first + (side * q + x) * q + y
    for (int32_t i = 0; i < n; i++)
        if (cot_graph_vertex(graph, "router %d.%d.%d", i / (q * q), i / q % q, i % q) < 0) return false;
    for (int32_t i = 0; i < size->n_servers; i++) {
        int32_t router = first + (int32_t)((int64_t)i * n / size->n_servers) % n;
        if (!cot_graph_cable(graph, cot_topology_size_link(size, servers[i], router))) return false;
    }
    for (int32_t side = 0; side < 2; side++)
        for (int32_t x = 0; x < q; x++)
            for (int32_t a = 0; a < q; a++)
                for (int32_t b = a + 1; b < q; b++)
                    if (in[side][b - a] || in[side][q - b + a]) {
                        int32_t row = first + (side * q + x) * q;
                        if (!cot_graph_cable(graph, cot_topology_size_link(size, row + a, row + b)))
                            return false;
                    }
    for (int32_t x = 0; x < q; x++)
        for (int32_t m = 0; m < q; m++)
            for (int32_t c = 0; c < q; c++)
                if (!cot_graph_cable(graph, cot_topology_size_link(size, first + x * q + (m * x + c) % q,
                                                                   first + (q + m) * q + c)))
                    return false;
    return true;
}
