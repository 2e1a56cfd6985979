/* Graphs as they are kept: how many links and vertices, which ranks share a host; and texts in files that no NUL ends. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "coterie/topology.h"
#include "topology/ibnet.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char path[64], links_path[80];

static void write_text(const char *to, const char *text)
{
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void must_read(cot_topology *t, const char *text, const char *nvlink)
{
    cot_error error;
    const cot_topology_options options = {.size = sizeof options, .nvlink = nvlink};
    write_text(path, text);
    if (cot_topology_read(t, path, &options, &error) != COT_OK) fail_msg("%s", error.message);
}

/* Ranks, hosts and switches are vertices, once each; a cable is two links. */
static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        int32_t ranks, vertices;
        int64_t links;
    } built[] = {{"node", 8, 8 + 2, 2 * (8 + 1)},
                 {"node:domain=4", 8, 8 + 3, 2 * (8 + 2)},
                 {"complete:gpus=1", 5, 5 + 5, 2 * (5 + 10)}};
    cot_topology t;
    cot_error error;
    for (size_t i = 0; i < sizeof built / sizeof *built; i++) {
        if (cot_topology_build(&t, built[i].spec, built[i].ranks, &error) != COT_OK)
            fail_msg("%s", error.message);
        assert_int_equal(t.n_ranks, built[i].ranks);
        assert_int_equal(t.n_vertices, built[i].vertices);
        assert_int_equal(t.n_links, built[i].links);
        cot_topology_free(&t);
    }
    must_read(&t, "GPU0 X NV1 SYS\nGPU1 NV1 X SYS\nGPU2 SYS SYS X\n", NULL); // none to itself
    assert_int_equal(t.n_links, 3 * 2);
    cot_topology_free(&t);
#define PAIR(from, to)                                                                                       \
    "{\"src_host\":\"" from "\",\"dst_host\":\"" to "\",\"endpoints\":[{\"src_dev\":\"a\",\"dst_dev\":"      \
    "\"a\",\"bandwidth\":1000,\"latency\":1}]}"
    must_read(&t, "[" PAIR("x", "y") "," PAIR("z", "y") "]", NULL); // three adapters, each at its host
    assert_int_equal(t.n_vertices, 3 + 3);
    assert_int_equal(t.n_links, 2 * (2 + 3));
    cot_topology_free(&t);
}

/* Hosts count in the order of their ranks, whatever order the file has them in. */
static void test_hosts(void **state)
{
    (void)state;
    enum { HOSTS = 40 };
    char text[HOSTS * 160] = "<system>";
    size_t at = strlen(text);
    for (int h = 0; h < HOSTS; h++)
        at += (size_t)snprintf(
            text + at, sizeof text - at,
            "<cpu host_hash=\"0x%x\" numaid=\"0\"><pci busid=\"A\" class=\"0x030200\"><gpu rank=\"%d\"/>"
            "</pci></cpu>",
            h + 1, HOSTS - 1 - h);
    snprintf(text + at, sizeof text - at, "</system>");
    cot_topology t;
    must_read(&t, text, NULL);
    assert_int_equal(t.n_ranks, HOSTS);
    assert_int_equal(t.n_hosts, HOSTS);
    for (int32_t r = 0; r < HOSTS; r++) assert_int_equal(t.host[r], r);
    cot_topology_free(&t);
}

/* Links of one host's GPUs are every host's that has some. */
static void test_host_without_gpus(void **state)
{
    (void)state;
#define GPUS "<pci busid=\"A\" class=\"0x030200\"/><pci busid=\"B\" class=\"0x030200\"/>"
    cot_topology t;
    write_text(links_path, "GPU0 X NV1\nGPU1 NV1 X\n");
    must_read(&t,
              "<system><cpu host_hash=\"0x1\" numaid=\"0\"/><cpu host_hash=\"0x2\" numaid=\"0\">" GPUS
              "</cpu><cpu host_hash=\"0x3\" numaid=\"0\">" GPUS "</cpu></system>",
              links_path);
    int links = 0;
    for (int64_t i = 0; i < t.n_links; i++) links += t.links[i].from < 4 && t.links[i].to < 4;
    assert_int_equal(links, 2 * 2);
    cot_topology_free(&t);
}

static void test_no_such_rank(void **state)
{
    (void)state;
    cot_topology t;
    cot_error error;
    double d[4];
    assert_int_equal(cot_topology_build(&t, "complete:gpus=1", 4, &error), COT_OK);
    static const int32_t none[] = {-1, 4, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cot_topology_distances_of(d, &t, (cot_metric){0}, none[i], false, &error),
                         COT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "is none of the 4"));
    }
    assert_int_equal(cot_topology_distances_of(d, &t, (cot_metric){0}, 3, false, &error), COT_OK);
    cot_topology_free(&t);
}

static int sign(int x)
{
    return (x > 0) - (x < 0);
}

/* Texts that lie in others compare as if they were alone, whatever follows them. */
static void test_compare(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    for (uint64_t round = 0; round < 4000; round++) {
        char whole[2][12], alone[2][12];
        cot_ibnet_text part[2];
        for (uint64_t k = 0; k < 2; k++) {
            const uint64_t bits = cot_random_bits(seed, round, k);
            for (int i = 0; i < 12; i++) whole[k][i] = (char)('a' + (bits >> i) % 2);
            part[k] = (cot_ibnet_text){whole[k], (bits >> 12) % 6};
            snprintf(alone[k], sizeof alone[k], "%.*s", (int)part[k].length, whole[k]);
        }
        assert_int_equal(sign(cot_ibnet_compare(part[0], part[1])), sign(strcmp(alone[0], alone[1])));
    }
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/cot_graph_%d", (int)getpid());
    snprintf(links_path, sizeof links_path, "%s.links", path);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_hosts),
                                       cmocka_unit_test(test_host_without_gpus),
                                       cmocka_unit_test(test_no_such_rank), cmocka_unit_test(test_compare)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    unlink(links_path);
    return failed;
}
