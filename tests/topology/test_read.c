/* Files: real ones, small ones made here, and what is refused. */
#include "coterie/topology.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char path[64], hosts_path[80];

static void write_text(const char *to, const char *text)
{
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static cot_status read_text(cot_topology *t, const char *text, const char *hosts, cot_error *error)
{
    write_text(path, text);
    if (hosts) write_text(hosts_path, hosts);
    const cot_topology_options options = {.size = sizeof options, .hosts = hosts ? hosts_path : NULL};
    return cot_topology_read(t, path, &options, error);
}

static void demand(const char *text, const char *hosts, cot_metric metric, int32_t n, const double *want)
{
    cot_topology t;
    cot_error error;
    double d[64];
    memset(d, 0xa5, sizeof d);
    if (read_text(&t, text, hosts, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(t.n_ranks, n);
    if (cot_topology_distances(d, &t, metric, &error) != COT_OK) fail_msg("%s", error.message);
    for (int i = 0; i < n * n; i++)
        if (fabs(d[i] - want[i]) > 1e-9)
            fail_msg("%s: %d to %d is %g, expected %g", text, i / n, i % n, d[i], want[i]);
    cot_topology_free(&t);
}

static void refuse(const char *text, const char *hosts, const char *words)
{
    cot_topology t;
    cot_error error = {0};
    if (read_text(&t, text, hosts, &error) == COT_OK) fail_msg("accepted: %s", text);
    if (!strstr(error.message, words)) fail_msg("'%s' lacks '%s'", error.message, words);
    assert_null(t.owner);
}

static void test_json(void **state)
{
    (void)state;
    const cot_metric hops = {0}, cost = {true, 4000};
    demand("[[0, 1], [2.5, 0]]", NULL, hops, 2, (const double[]){0, 1, 2.5, 0}); // directions differ
    demand("{\"rank_cost_matrix\": [[0.0, 1.0, 5], [1, 0, 1], [5, 1, 0]]}", NULL, hops, 3,
           (const double[]){0, 1, 5, 1, 0, 1, 5, 1, 0}); // nothing is forwarded
    demand("{\"bandwidth\": [[0, 4], [2, 0]], \"latency\": [[0, 1], [3, 0]]}", NULL, cost, 2,
           (const double[]){0, 2, 5, 0});
    demand("{\"nodes\": [{\"id\": \"a\"}, {\"id\": \"b\"}, {\"id\": \"c\"}], \"edges\": [{\"source\": \"a\", "
           "\"target\": "
           "\"b\"}, {\"source\": \"b\", \"target\": \"c\", \"hops\": 3}]}",
           NULL, hops, 3, (const double[]){0, 1, 4, 1, 0, 3, 4, 3, 0});
    demand("{\"directed\": true, \"nodes\": [{\"id\": 0, \"ranks\": 2}, {\"id\": 1}, {\"id\": 2, \"ranks\": "
           "1}], "
           "\"links\": [{\"source\": 0, \"target\": 1}, {\"source\": 1, \"target\": 2}, {\"source\": 2, "
           "\"target\": 0}]}",
           NULL, hops, 3, (const double[]){0, 0, 2, 0, 0, 2, 1, 1, 0});
    // of two routes the wider one, though its latency is larger
    demand("{\"nodes\": [{\"id\": 0, \"ranks\": 1}, {\"id\": 1, \"ranks\": 1}, {\"id\": 2}], \"edges\": "
           "[{\"source\": 0, "
           "\"target\": 1, \"latency\": 1, \"bandwidth\": 1}, {\"source\": 0, \"target\": 2, \"latency\": 1, "
           "\"bandwidth\": 4}, {\"source\": 2, \"target\": 1, \"latency\": 1, \"bandwidth\": 8}]}",
           NULL, cost, 2, (const double[]){0, 3, 3, 0});
}

static void test_json_refusals(void **state)
{
    (void)state;
    cot_topology t;
    cot_error error;
    double d[4];
    refuse("[[0, 1], [1]]", NULL, "row 1 of the matrix of distances has 1 numbers, expected 2");
    refuse("[[0, -1], [1, 0]]", NULL, "row 0, column 1");
    refuse("[[1, 1], [1, 0]]", NULL, "rank 0 is 1 away from itself");
    refuse("[[0, null], [1, 0]]", NULL, "row 0, column 1");
    refuse("[1, 2]", NULL, "holds no topology");
    refuse("{\"nodes\": [], \"edges\": []}", NULL, "holds 0 ranks");
    refuse("{\"nodes\": [{\"id\": 1}, {\"id\": 1}], \"edges\": []}", NULL, "another node's id");
    refuse("{\"nodes\": [{\"id\": 1}], \"edges\": [{\"source\": 1, \"target\": 2}]}", NULL,
           "target that is no node's id");
    refuse("{\"nodes\": [{\"id\": 1, \"ranks\": -1}], \"edges\": []}", NULL, "\"ranks\" of node 0");
    refuse("[[0, 1", NULL, "is no JSON");
    refuse("hello", NULL, "is no topology");
    refuse("", NULL, "is no topology");
    assert_int_equal(read_text(&t, "{\"nodes\": [{\"id\": 0}, {\"id\": 1}], \"edges\": []}", NULL, &error),
                     COT_OK);
    assert_int_equal(cot_topology_distances(d, &t, (cot_metric){0}, &error), COT_MALFORMED);
    assert_non_null(strstr(error.message, "is not connected: no route from 'rank 0' to 'rank 1'"));
    cot_topology_free(&t);
}

static const char fabric[] =
    "vendid=0x2c9\nswitchguid=0x1(1)\nSwitch\t4 \"S-0001\"\t# \"leaf one\" enhanced port 0 lid 1\n"
    "[1]\t\"H-000a\"[1](a) \t# \"h1 mlx5_0\" lid 5 4xNDR\n"
    "[2]\t\"H-000b\"[1](b) \t# \"h2 mlx5_0\" lid 6 4xNDR\n"
    "[3]\t\"S-0002\"[1]\t# \"leaf two\" lid 2 4xNDR\n\n"
    "switchguid=0x2(2)\nSwitch\t4 \"S-0002\"\t# \"leaf two\" enhanced port 0 lid 2\n"
    "[1]\t\"S-0001\"[3]\t# \"leaf one\" lid 1 4xNDR\n"
    "[2]\t\"H-000c\"[1](c) \t# \"h1 mlx5_1\" lid 7 4xNDR\n"
    "[3]\t\"H-000d\"[1](d) \t# \"Mellanox Technologies Aggregation Node\" lid 7 4xNDR\n\n"
    "caguid=0xa\nCa\t1 \"H-000a\"\t# \"h1 mlx5_0\"\n[1](a) \t\"S-0001\"[1]\t# lid 5 4xNDR\n"
    "caguid=0xb\nCa\t1 \"H-000b\"\t# \"h2 mlx5_0\"\n[1](b) \t\"S-0001\"[2]\t# lid 6 4xNDR\n"
    "caguid=0xc\nCa\t1 \"H-000c\"\t# \"h1 mlx5_1\"\n[1](c) \t\"S-0002\"[2]\t# lid 7 4xNDR\n"
    "caguid=0xd\nCa\t1 \"H-000d\"\t# \"Mellanox Technologies Aggregation Node\"\n"
    "[1](d) \t\"S-0002\"[3]\t# lid 7 4xNDR\n";

static void test_ibnetdiscover(void **state)
{
    (void)state;
    const cot_metric hops = {0};
    demand(fabric, "host,gpu,adapter\nh1,0,mlx5_0\nh1,1,mlx5_1\nh2,0,mlx5_0\n", hops, 3,
           (const double[]){0, 0, 2, 0, 0, 3, 2, 3,
                            0}); // a host's ranks are together, each with its own adapter
    demand(fabric, "h1,0,0x0c\nh1,1,H-000c\nh2,0,h2 mlx5_0\n", hops, 3,
           (const double[]){0, 0, 3, 0, 0, 3, 3, 3, 0});
    refuse(fabric, NULL, "does not say which adapter is which rank");
    refuse(fabric, "h1,0,mlx5_7\n", "has no adapter 'mlx5_7' of host 'h1'");
    refuse(fabric, "h1;0;mlx5_0\n", "line 1 is no host,gpu,adapter");
    refuse(fabric, "\n", "seats no rank");
    refuse("[[0]]", "h1,0,mlx5_0\n", "is no ibnetdiscover output");
    refuse("Switch\t1 \"S-1\"\t# \"x\"\nswitchguid=0x1\n[1]\t\"H-9\"[1](9)\n", "h,0,a\n",
           "which is not listed");
    refuse("switchguid=0x1\n[1]\t\"H-9\"[1](9)\n", "h,0,a\n", "no port of a switch");
    refuse("Switch\t1 \"S-1\"\t# \"x\"\nSwitch\t1 \"S-1\"\t# \"x\"\nswitchguid=0x1\n", "h,0,a\n",
           "listed twice");
}

static void test_nccl(void **state)
{
    (void)state;
    const cot_metric hops = {0};
    demand("<system><cpu numaid=\"0\"><pci busid=\"0:1\" class=\"0x060400\"><pci busid=\"0:2\" "
           "class=\"0x030200\"/>"
           "<pci busid=\"0:3\" class=\"0x030200\"/></pci></cpu><cpu numaid=\"1\"><pci busid=\"0:4\" "
           "class=\"0x030200\"/>"
           "</cpu></system>",
           NULL, hops, 3, (const double[]){0, 2, 4, 2, 0, 4, 4, 4, 0});
    demand("<system><cpu><pci busid=\"A\" class=\"0x030200\"><gpu dev=\"1\"><nvlink target=\"b\" "
           "count=\"4\"/></gpu></pci>"
           "<pci busid=\"B\" class=\"0x030200\"><gpu dev=\"0\"><nvlink target=\"a\" "
           "count=\"4\"/></gpu></pci></cpu></system>",
           NULL, hops, 2, (const double[]){0, 0, 0, 0});
    refuse("<system></system>", NULL, "no GPU in it");
    refuse("<html/>", NULL, "no <system> in it");
    refuse("<system><cpu></system>", NULL, "mismatched tag");
    refuse("<!DOCTYPE a [<!ENTITY b \"c\">]><system>&b;</system>", NULL, "a document type");
    refuse("<system><pci class=\"0x03\"/></system>", NULL, "outside any CPU");
    refuse("<system><cpu><pci class=\"0x03\" busid=\"a\"><nvlink target=\"z\"/></pci></cpu></system>", NULL,
           "no GPU");
    char deep[2000] = "<system>";
    for (int i = 0; i < 100; i++) strcat(deep, "<cpu>");
    refuse(deep, NULL, "nested too deep");
}

static void test_samples(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int32_t ranks;
    } samples[] = {{"nccl/p4d-24xl-topo.xml", 8},
                   {"nccl/ndv4-topo.xml", 8},
                   {"mooncake/cluster-topology.json", 16},
                   {"topohub/sndlib_germany50.json", 50}};
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        char name[512];
        cot_topology t;
        cot_error error;
        snprintf(name, sizeof name, "%s/data/topologies/%s", COT_SHARED, samples[i].name);
        if (access(name, R_OK)) {
            print_message("SKIPPED: no %s\n", name);
            skip();
        }
        if (cot_topology_read(&t, name, NULL, &error) != COT_OK) fail_msg("%s", error.message);
        assert_int_equal(t.n_ranks, samples[i].ranks);
        double *d = malloc((size_t)t.n_ranks * (size_t)t.n_ranks * sizeof *d);
        if (cot_topology_distances(d, &t, (cot_metric){true, 1e6}, &error) != COT_OK)
            fail_msg("%s", error.message);
        if (i == 2)
            assert_true(d[7] == 0 && d[8] > 40 && d[8] < 60); // a host's own, and 1 MB at about 21 GB/s
        free(d);
        cot_topology_free(&t);
    }
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/cot_topology_%d", (int)getpid());
    snprintf(hosts_path, sizeof hosts_path, "%s.hosts", path);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_json), cmocka_unit_test(test_json_refusals),
                                       cmocka_unit_test(test_ibnetdiscover), cmocka_unit_test(test_nccl),
                                       cmocka_unit_test(test_samples)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    unlink(hosts_path);
    return failed;
}
