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

static char path[64], hosts_path[80], links_path[80];
static const char *nvlink; // what the next files are read with
static char notes[1000];   // what the last one was told

static void hear(void *context, const char *line)
{
    (void)context;
    snprintf(notes, sizeof notes, "%s", line);
}

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
    const cot_topology_options options = {
        .size = sizeof options, .hosts = hosts ? hosts_path : NULL, .nvlink = nvlink, .say = hear};
    *notes = 0;
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
    refuse(fabric, "h1;0;mlx5_0\n", "line 1 is no host,gpu,adapter[,domain]");
    refuse(fabric, "h1,0,mlx5_0,rack,x\n", "line 1 is no host,gpu,adapter[,domain]");
    demand(fabric, "\"h1\",\"0\", \"mlx5_0\" \nh2,0,mlx5_0\n", hops, 2, (const double[]){0, 2, 2, 0});
    refuse(fabric, "\"h1,0,mlx5_0\n", "of host '\"h1'"); // half a pair of quotes is part of a name
    refuse(fabric, "h1,0,leaf one\n", "has no adapter 'leaf one'");
    refuse("Ex : 0x1\n", NULL, "is no topology");
    refuse(fabric, "\n", "seats no rank");
    refuse("[[0]]", "h1,0,mlx5_0\n", "is no ibnetdiscover output");
    refuse("Switch\t1 \"S-1\"\t# \"x\"\nswitchguid=0x1\n[1]\t\"H-9\"[1](9)\n", "h,0,a\n",
           "which is not listed");
    refuse("switchguid=0x1\n[1]\t\"H-9\"[1](9)\n", "h,0,a\n", "no port of a switch");
    refuse("Switch\t1 \"S-1\"\t# \"x\"\nSwitch\t1 \"S-1\"\t# \"x\"\nswitchguid=0x1\n", "h,0,a\n",
           "listed twice");
    refuse("Switch\t1 \"S-1\"\t# \"x\"\nSwitch\t1 \"S-2\"\t# \"x\"\nSwitch\t1 \"S-2\"\t# \"x\"\n"
           "switchguid=0x1\n",
           "h,0,a\n", "node 'S-2' is listed twice");
}

/* `text` with every `old` replaced by `new`, of the same length. */
static const char *renamed(const char *text, const char *old, const char *new)
{
    static char copy[sizeof fabric];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *at = copy; (at = strstr(at, old)); at += strlen(new)) memcpy(at, new, strlen(new));
    return copy;
}

/* An adapter goes by three names, any of which may be another's, too. */
static void test_names_of_adapters(void **state)
{
    (void)state;
    const double apart[] = {0, 3, 3, 0};
    const char *twice = renamed(fabric, "h1 mlx5_1", "h2 mlx5_0");
    refuse(twice, "h1,0,mlx5_0\nh2,0,mlx5_0\n",
           "line 2: several adapters are called 'mlx5_0', give the GUID");
    refuse(twice, "h2,0,h2 mlx5_0\n", "several adapters are called 'h2 mlx5_0'");
    demand(twice, "h1,0,mlx5_0\nh2,0,0xC\n", (cot_metric){0}, 2, apart);
    // Its description and its GUID are the same word: still one adapter.
    demand(renamed(fabric, "h1 mlx5_1", "00000000c"), "h1,0,mlx5_0\nh2,0,00000000c\n", (cot_metric){0}, 2,
           apart);
    // One's description is another's GUID.
    refuse(renamed(fabric, "h1 mlx5_1", "00000000b"), "h2,0,00000000b\n", "several adapters are called");
}

/* The same fabric as -p lists it. */
static const char ports[] =
    "SW     1  1 0x0000000000000001 4x NDR - CA     5  1 0x000000000000000a ( 'leaf one' - 'h1 mlx5_0' )\n"
    "SW     1  2 0x0000000000000001 4x NDR - CA     6  1 0x000000000000000b ( 'leaf one' - 'h2 mlx5_0' )\n"
    "SW     1  3 0x0000000000000001 4x NDR - SW     2  1 0x0000000000000002 ( 'leaf one' - 'leaf two' )\n"
    "SW     1  4 0x0000000000000001 4x SDR                                    'leaf one'\n"
    "CA     5  1 0x000000000000000a 4x NDR - SW     1  1 0x0000000000000001 ( 'h1 mlx5_0' - 'leaf one' )\n"
    "CA     6  1 0x000000000000000b 4x NDR - SW     1  2 0x0000000000000001 ( 'h2 mlx5_0' - 'leaf one' )\n"
    "CA     7  1 0x000000000000000c 4x NDR - SW     2  2 0x0000000000000002 ( 'h1 mlx5_1' - 'leaf two' )\n"
    "SW     2  3 0x0000000000000002 ?? ??  - CA     8  1 0x000000000000000d ( 'leaf two' - 'Mellanox "
    "Aggregation Node' "
    ")\n"
    "SW     2  2 0x0000000000000002 4x NDR - CA     7  1 0x000000000000000c ( 'leaf two' - 'h1 mlx5_1' )\n"
    "SW     2  1 0x0000000000000002 4x NDR - SW     1  3 0x0000000000000001 ( 'leaf two' - 'leaf one' )\n"
    "CA     8  1 0x000000000000000d ?? ??  - SW     2  3 0x0000000000000002 ( 'Mellanox Aggregation Node' - "
    "'leaf two' )\n";

/* Both listings of a fabric are the same graph. */
static void test_ibnetdiscover_ports(void **state)
{
    (void)state;
    static const char seats[] = "host,gpu,adapter\nh1,0,mlx5_0\nh1,1,mlx5_1\nh2,0,0xb\n";
    const cot_metric metrics[] = {{0}, {true, 1e6}};
    static char commented[sizeof ports + 40];
    snprintf(commented, sizeof commented, "# of today\n\n \t\r\n%s", ports);
    double want[9], got[9];
    for (int m = 0; m < 2; m++) {
        cot_topology t;
        cot_error error;
        for (int i = 0; i < 3; i++) {
            if (read_text(&t, i == 0 ? fabric : i == 1 ? ports : commented, seats, &error) != COT_OK)
                fail_msg("%s", error.message);
            assert_int_equal(t.n_ranks, 3);
            assert_int_equal(t.n_vertices, 3 + 2 + 2 + 3); // hosts, switches, a port of each seated adapter
            assert_int_equal(t.n_hosts, 2);
            assert_int_equal(cot_topology_distances(i ? got : want, &t, metrics[m], NULL), COT_OK);
            cot_topology_free(&t);
        }
        assert_memory_equal(got, want, sizeof want);
        assert_true(m == 0 ? got[2] == 2 : got[2] > 20 && got[2] < 23); // 1 MB at 50 GB/s and two links
    }
    refuse(ports, NULL, "does not say which adapter is which rank");
    refuse(ports, "h1,0,mlx5_7\n", "has no adapter 'mlx5_7' of host 'h1'");
    refuse("SW     1  1 0x0000000000000001 4x NDR - CA     5\n", "h,0,a\n", "line 1 is no port");
    refuse("SW     1  1 0x0000000000000001 4x NDR - CA     5  1 0x0a ( 'a' - b )\n", "h,0,a\n",
           "line 1 is no port");
    refuse("SW     1  1 0x0000000000000001 4x NDR\n", "h,0,a\n", "line 1 is no port");
}

/* Ranks of a domain are together, though their hosts are not. */
static void test_domains(void **state)
{
    (void)state;
    demand(fabric, "host,gpu,adapter,domain\nh1,0,mlx5_0,rack 1\nh1,1,mlx5_1\nh2,0,mlx5_0,rack 1\n",
           (cot_metric){0}, 3, (const double[]){0, 0, 0, 0, 0, 3, 0, 3, 0});
    demand(fabric, "h1,0,mlx5_0,a\nh1,1,mlx5_1,\nh2,0,mlx5_0,b\n", (cot_metric){0}, 3,
           (const double[]){0, 0, 2, 0, 0, 3, 2, 3, 0});
    demand(fabric, "h1,0,mlx5_0,a\nh2,0,mlx5_0,a\n", (cot_metric){true, 4.5e6}, 2,
           (const double[]){0, 11, 11, 0}); // 450 GB/s, and half a microsecond there and back
}

static void demand_template(const char *text, const char *want)
{
    cot_error error;
    char *got;
    write_text(path, text);
    if (cot_topology_host_template(&got, path, &error) != COT_OK) fail_msg("%s", error.message);
    assert_string_equal(got, want);
    free(got);
}

/* A switch with an adapter at each port, of GUIDs c1, c2, ...; `leaf` is the switch's description. */
static const char *star(const char *const *names, int n, const char *leaf)
{
    static char text[4096];
    size_t at = (size_t)snprintf(text, sizeof text,
                                 "Switch\t65 \"S-1\"\t# \"%s\" enhanced port 0 lid 1 lmc 0\n", leaf);
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "[%d]\t\"H-00c%x\"[1](c%x) \t# \"%s\" lid 5 4xNDR\n", i + 1, i + 1, i + 1,
                               names[i]);
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(
            text + at, sizeof text - at,
            "\ncaguid=0xc%x\nCa\t1 \"H-00c%x\"\t# \"%s\"\n[1](c%x) \t\"S-1\"[%d]\t# lid 5 lmc 0 "
            "\"%s\" lid 1 4xNDR\n",
            i + 1, i + 1, names[i], i + 1, i + 1, leaf);
    return text;
}

/* Every template seats all its adapters. */
static void test_template_seats_all(void **state)
{
    (void)state;
    static const char *const names[] = {"h1 mlx5_0",  "maker",     "x \"y\" z", "h1 mlx5_0",
                                        "h1, mlx5_0", "h2 mlx5_0", "",          "node-1 HCA-1",
                                        "HCA-1",      "h2 0xC1",   "h2 c2"};
    enum { N = sizeof names / sizeof *names };
    char *hosts;
    cot_topology t;
    cot_error error;
    write_text(path, star(names, N, "leaf"));
    if (cot_topology_host_template(&hosts, path, &error) != COT_OK) fail_msg("%s", error.message);
    if (read_text(&t, star(names, N, "leaf"), hosts, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(t.n_ranks, N);
    assert_int_equal(t.n_hosts, N - 3);
    cot_topology_free(&t);
    free(hosts);
}

/* What was cut off at the end of any line is refused, whichever the listing, also for a template. */
static void test_cut_off(void **state)
{
    (void)state;
    const char *const texts[] = {fabric, ports};
    for (int i = 0; i < 2; i++) {
        const char *last = texts[i] + strlen(texts[i]) - 1;
        for (const char *at = texts[i]; (at = strchr(at, '\n')) && at < last; at++) {
            cot_topology t;
            cot_error error;
            char *copy = strndup(texts[i], (size_t)(at + 1 - texts[i])), *got;
            if (read_text(&t, copy, "h1,0,mlx5_0\n", &error) == COT_OK) fail_msg("accepted: %s", copy);
            if (cot_topology_host_template(&got, path, &error) == COT_OK) fail_msg("accepted: %s", copy);
            free(copy);
        }
    }
    refuse("caguid=0xa\nCa\t1 \"H-1\"\t# \"h1 mlx5_0\"\n", "h1,0,mlx5_0\n",
           "no cable is listed of 'h1 mlx5_0'");
    refuse("SW     1  1 0x1 4x NDR - CA     5  1 0xa ( 'leaf' - 'h1 mlx5_0' )\n", "h1,0,mlx5_0\n",
           "seems to be cut off");
    static const char list[] =
        "Ca\t: 0x0a ports 2 \"h1 HCA-1\"\nSwitch\t: 0x0b ports 36 \"SW\" base port 0 lid 2 lmc 0\n";
    char *got;
    cot_error error;
    refuse(list, NULL, "lists nodes without their cables");
    refuse("Switch\t : 0x0b ports 36 devid 0xd2f2 vendid 0x2c9 \"SW\"\n", NULL,
           "lists nodes without their cables");
    write_text(path, list);
    assert_int_equal(cot_topology_host_template(&got, path, &error), COT_UNSUPPORTED);
    assert_non_null(strstr(error.message, "lists nodes without their cables"));
}

static void test_host_template(void **state)
{
    (void)state;
    char *got;
    cot_error error;
    demand_template(fabric, "host,gpu,adapter\nh1,0,mlx5_0\nh1,1,mlx5_1\nh2,0,mlx5_0\n0xd,0,0xd\n");
    demand_template(ports, "host,gpu,adapter\nh1,0,mlx5_0\nh1,1,mlx5_1\nh2,0,mlx5_0\n0xd,0,0xd\n");
    static const char *const names[] = {"dgx-10 mlx5_0", "dgx-2 mlx5_10",  "dgx-2 mlx5_9",
                                        "nameless",      "a \"b\" mlx5_0", "a,b mlx5_0",
                                        "twice mlx5_0",  "twice mlx5_0",   "MT4129 ConnectX7   Maker",
                                        "\"h mlx5_1\""};
    demand_template(star(names, sizeof names / sizeof *names, "' mlx5_0"),
                    "host,gpu,adapter\ndgx-2,0,mlx5_9\ndgx-2,1,mlx5_10\ndgx-10,0,mlx5_0\n"
                    "twice,0,0xc7\ntwice,1,0xc8\n0xc4,0,0xc4\n0xc5,0,0xc5\n0xc6,0,0xc6\n0xc9,0,0xc9\n"
                    "0xca,0,0xca\n");
    write_text(path, "switchguid=0x1\nSwitch\t4 \"S-1\"\t# \"a\"\n[1]\t\"S-2\"[1]\t# \"b\" lid 1 4xNDR\n"
                     "Switch\t4 \"S-2\"\t# \"b\"\n[1]\t\"S-1\"[1]\t# \"a\" lid 1 4xNDR\n");
    assert_int_equal(cot_topology_host_template(&got, path, &error), COT_MALFORMED);
    assert_non_null(strstr(error.message, "has no adapter"));
    assert_null(got);
    write_text(path, "[[0]]");
    assert_int_equal(cot_topology_host_template(&got, path, &error), COT_UNSUPPORTED);
    assert_int_equal(cot_topology_host_template(&got, "/nonexistent", &error), COT_NOT_FOUND);
}

#define GPU(busid, class, inside) "<pci busid=\"" busid "\" class=\"" class "\">" inside "</pci>"

/* AMD's links and classes, GPUs in parts, other devices of the class beside GPUs that are named. */
static void test_nccl_gpus(void **state)
{
    (void)state;
    const cot_metric hops = {0};
    demand("<system><cpu>" GPU("A", "0x120000", "<gpu dev=\"0\"><xgmi target=\"b\"/></gpu>")
               GPU("B", "0x120000", "<gpu dev=\"1\"><xgmi target=\"a\" tclass=\"0x038000\"/></gpu>")
                   GPU("C", "0x038000", "<gpu dev=\"2\"/>") GPU("V", "0x030000", "") "</cpu></system>",
           NULL, hops, 3, (const double[]){0, 0, 2, 0, 0, 2, 2, 2, 0});
    assert_string_equal(notes, "");
    // two ranks of one device, listed last first
    demand("<system><cpu>" GPU("A", "0x120000", "<gpu rank=\"2\"><xgmi target=\"b\"/></gpu><gpu rank=\"1\"/>")
               GPU("B", "0x120000", "<gpu rank=\"0\"/>") "</cpu></system>",
           NULL, hops, 3, (const double[]){0, 2, 2, 2, 0, 0, 0, 0, 0});
    refuse("<system><cpu>" GPU("A", "0x120000", "<xgmi target=\"a\"/>") "</cpu></system>", NULL,
           "a link outside any GPU");
    refuse("<topology version=\"2.0\"><object type=\"Machine\"/></topology>", NULL, "is hwloc's");
    refuse("<!DOCTYPE topology SYSTEM \"hwloc.dtd\"><topology><object type=\"Machine\"/></topology>", NULL,
           "is hwloc's");
    refuse("<!DOCTYPE html><html/>", NULL, "no <system> in it");
    refuse("<system><cpu><pci busid=\"A\"/><pci busid=\"B\"><pci busid=\"C\"/></pci></cpu></system>", NULL,
           "does not say which of its 3 PCI devices are GPUs");
    // a link to the device itself is none: to no other rank of it either
    demand("<system><cpu>" GPU("A", "0x120000", "<gpu rank=\"0\"><xgmi target=\"a\"/></gpu><gpu rank=\"1\"/>")
               GPU("B", "0x120000", "<gpu rank=\"2\"><xgmi target=\"b\"/></gpu>") "</cpu></system>",
           NULL, hops, 3, (const double[]){0, 0, 2, 0, 0, 2, 2, 2, 0});
    assert_non_null(strstr(notes, "--nvlink"));
}

/* A GPU behind the CPU of a host, and what else is there; an adapter that carries `mbps`. */
#define HOST(hash, busid, inside, net)                                                                       \
    "<cpu host_hash=\"" hash "\" numaid=\"0\">" GPU(busid, "0x030200", inside) net "</cpu>"
#define NET(mbps) GPU("N", "0x020700", "<nic><net speed=\"" mbps "\"/></nic>")

/* Hosts that their CPUs' hashes tell apart, with bus ids of their own. */
static void test_nccl_hosts(void **state)
{
    (void)state;
    cot_topology t;
    cot_error error;
    const cot_metric hops = {0}, cost = {true, 1e6};
    // the same bus ids on both; a host's link stays there
    static const char pairs[] =
        "<system>" HOST("0x1", "A", "<gpu rank=\"0\"><nvlink target=\"b\"/></gpu>",
                        GPU("B", "0x0302", "<gpu rank=\"1\"><nvlink target=\"A\"/></gpu>") NET("100000"))
            HOST("0x2", "A", "<gpu rank=\"2\"/>",
                 GPU("B", "0x0302", "<gpu rank=\"3\"/>") NET("200000")) "</system>";
    demand(pairs, NULL, hops, 4, (const double[]){0, 0, 6, 6, 0, 0, 6, 6, 6, 6, 0, 2, 6, 6, 2, 0});
    assert_string_equal(notes, "");
    const double wire = 3 + 1e6 / 12.5 * 1e-3; // six links of half a microsecond, the narrower adapter's rate
    demand(pairs, NULL, cost, 4,
           (const double[]){0, 1, wire, wire, 1, 0, wire, wire, wire, wire, 0, 1, wire, wire, 1, 0});
    if (read_text(&t, pairs, NULL, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(t.n_hosts, 2);
    assert_memory_equal(t.host, ((const int32_t[]){0, 0, 1, 1}), 4 * sizeof *t.host);
    cot_topology_free(&t);
    // device numbers begin anew on each host; a host without adapters is reached through its CPU
    demand("<system>" HOST("0x2", "A", "<gpu dev=\"1\"/>", GPU("B", "0x0302", "<gpu dev=\"0\"/>"))
               HOST("0x1", "A", "<gpu dev=\"0\"/>", "") "</system>",
           NULL, hops, 3, (const double[]){0, 2, 4, 2, 0, 4, 4, 4, 0});
    // a rack's switch joins hosts, one on a host's bus does not
#define SWITCHED(rank, target)                                                                               \
    "<gpu rank=\"" rank "\"><nvlink target=\"" target "\" tclass=\"0x068000\"/></gpu>"
    demand("<system>" HOST("0x1", "A", SWITCHED("0", "fffffff:ffff:ff"), "")
               HOST("0x2", "A", SWITCHED("1", "fffffff:ffff:ff"), "") "</system>",
           NULL, hops, 2, (const double[]){0, 0, 0, 0});
    demand("<system>" HOST("0x1", "A", SWITCHED("0", "5"), GPU("B", "0x0302", SWITCHED("1", "5")))
               HOST("0x2", "A", SWITCHED("2", "5"), "") "</system>",
           NULL, hops, 3, (const double[]){0, 0, 4, 0, 0, 4, 4, 4, 0});
    refuse("<system>" HOST("0x1", "A", "<gpu><nvlink target=\"B\"/></gpu>", "")
               HOST("0x2", "B", "<gpu/>", "") "</system>",
           NULL, "a link's target is no GPU of its host");
    refuse("<system>" HOST("rack1", "A", "<gpu/>", "") "</system>", NULL, "a host_hash that is no number");
    refuse("<system>" HOST("0x1z", "A", "<gpu/>", "") "</system>", NULL, "a host_hash that is no number");
    refuse("<system>" HOST("", "A", "<gpu/>", "") "</system>", NULL, "a host_hash that is no number");
    // CPUs that say nothing, and a hash of 0, are one host
    if (read_text(&t,
                  "<system><cpu>" GPU("A", "0x03", "") "</cpu><cpu host_hash=\"0x0\">" GPU(
                      "B", "0x03", "") "</cpu></system>",
                  NULL, &error) != COT_OK)
        fail_msg("%s", error.message);
    assert_int_equal(t.n_hosts, 1);
    cot_topology_free(&t);
}

/* Links that the file leaves out. */
static void test_nccl_given_links(void **state)
{
    (void)state;
    static const char cloud[] = "<system><cpu>" GPU("A", "0x030200", "") GPU("B", "0x030200", "")
        GPU("C", "0x030200", "") "</cpu></system>";
    static const char matrix[] = "\t\033[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\033[0m\n"
                                 "GPU0\t X \tNV12\tSYS\tPXB\t0-31\nGPU1\tNV12\t X \tNODE\tSYS\t0-31\n"
                                 "GPU2\tSYS\tNODE\t X \tSYS\t32-63\nNIC0\tPXB\tSYS\tSYS\t X \t\n\nLegend:\n"
                                 "\n  NV#  = Connection traversing a bonded set of # NVLinks\n";
    const cot_metric hops = {0}, cost = {true, 3e5};
    demand(cloud, NULL, hops, 3, (const double[]){0, 2, 2, 2, 0, 2, 2, 2, 0});
    assert_non_null(strstr(notes, "no link between GPUs"));
    nvlink = "all";
    demand(cloud, NULL, hops, 3, (const double[]){0, 0, 0, 0, 0, 0, 0, 0, 0});
    assert_string_equal(notes, "");
    refuse("[[0]]", NULL, "is no NCCL topology, which alone");
    refuse(fabric, NULL, "is no NCCL topology, which alone");
    nvlink = links_path;
    refuse(cloud, NULL, "No such file");
    write_text(links_path, matrix);
    demand(cloud, NULL, hops, 3, (const double[]){0, 0, 2, 0, 0, 2, 2, 2, 0});
#define PCIE(busid) "<pci busid=\"" busid "\" class=\"0x0302\" link_speed=\"16 GT/s\" link_width=\"16\"/>"
    const double pcie = 1 + 3e5 / (16 * 2 * 128.0 / 130) * 1e-3; // two links of half a microsecond
    demand("<system><cpu>" PCIE("A") PCIE("B") PCIE("C") "</cpu></system>", NULL, cost, 3,
           (const double[]){0, 1.5, pcie, 1.5, 0, pcie, pcie, pcie, 0}); // NVLinks: 300 GB/s
    // hosts: their own switches, or one host's matrix for each; ranks of the two take turns
    static const char hosts[] =
        "<system>" HOST("0x1", "A", "<gpu rank=\"0\"/>", GPU("B", "0x0302", "<gpu rank=\"2\"/>"))
            HOST("0x2", "A", "<gpu rank=\"1\"/>", GPU("B", "0x0302", "<gpu rank=\"3\"/>")) "</system>";
    const double joined[] = {0, 4, 0, 4, 4, 0, 4, 0, 0, 4, 0, 4, 4, 0, 4, 0};
    nvlink = "all";
    demand(hosts, NULL, hops, 4, joined);
    nvlink = links_path;
    write_text(links_path, "GPU0 X NV1\nGPU1 NV1 X\n");
    demand(hosts, NULL, hops, 4, joined);
    refuse("<system>" HOST("0x1", "A", "<gpu/>", GPU("B", "0x0302", "<gpu/>"))
               HOST("0x2", "A", "<gpu/>", "") "</system>",
           NULL, "has links of 2 GPUs, a host of");
    write_text(links_path, "GPU0 X\n");
    refuse(hosts, NULL, "between GPU0 and GPU1 is no link");
    // pasted, indented and without tabs: the line of columns begins with GPU0 as a row does
    static const char pasted[] =
        "        GPU0    GPU1    GPU2    CPU Affinity\r\n    GPU0     X      NV12    SYS     0-3\r\n"
        "    GPU1    NV12     X      NODE    0-3\r\n\tGPU2  SYS     NODE    X       4-7\r\n";
    write_text(links_path, pasted);
    demand(cloud, NULL, hops, 3, (const double[]){0, 0, 2, 0, 0, 2, 2, 2, 0});
    nvlink = NULL;
    demand(pasted, NULL, hops, 3, (const double[]){0, 0, 6, 0, 0, 5, 6, 5, 0}); // a topology of its own
    demand(matrix, NULL, cost, 3, (const double[]){0, 1.5, 18, 1.5, 0, 17.5, 18, 17.5, 0});
    demand("    GPU0    CPU Affinity\nGPU0     X  0-3\n", NULL, hops, 1, (const double[]){0});
    refuse("\t\033[4mGPU0\tGPU1\tGPU2\tGPU NUMA ID\033[0m\nGPU0\tX\tNV1\tNV1\t0\nGPU1\tNV1\tX\tNV1\t0\n",
           NULL, "has columns of 3 GPUs, but rows of 2: it seems to be cut off");
    refuse("GPU0 GPU1\nGPU0 X NV1\n", NULL, "has columns of 2 GPUs, but rows of 1");
    refuse("GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 GPU8 GPU9 GPU10\nGPU0 X 1 1 1 1 1 1 1 1 1 1\n", NULL,
           "has columns of 11 GPUs, but rows of 1");
    refuse("GPU0 X X\nGPU1 NV1 X\n", NULL, "'X' between GPU0 and GPU1");
    refuse("GPU0 X NV1\nGPU1 NV1\n", NULL, "'' between GPU1 and GPU1 is no link");
    refuse("    GPU0    GPU1\n", NULL, "is no topology");
    nvlink = links_path;
    refuse(pasted, NULL, "is no NCCL topology, which alone");
    write_text(links_path, "GPU0 X NV1\nGPU1 NV1 X\n");
    refuse(cloud, NULL, "'' between GPU0 and GPU2 is no link");
    write_text(links_path, "GPU0 X NV1 NV0\n");
    refuse(cloud, NULL, "'NV0' between GPU0 and GPU2 is no link");
    write_text(links_path, "GPU0 X NV1 NV1\nGPU2 NV1 X NV1\n");
    refuse(cloud, NULL, "a row of GPU2 where GPU1 of 3 was expected");
    write_text(links_path, "GPU0 X NV1 NV1\n");
    refuse(cloud, NULL, "has rows of 1 GPUs, expected 3");
    nvlink = NULL;
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
    refuse("<!DOCTYPE system [<!ENTITY b \"c\">]><system>&b;</system>", NULL, "a document type");
    refuse("<system><pci class=\"0x03\"/></system>", NULL, "outside any CPU");
    refuse("<system><cpu>" GPU("a", "0x03", "<gpu><nvlink target=\"z\"/></gpu>") "</cpu></system>", NULL,
           "a link's target is no GPU");
    char deep[2000] = "<system>";
    for (int i = 0; i < 100; i++) strcat(deep, "<cpu>");
    refuse(deep, NULL, "nested too deep");
}

/* Files that people reported, where this machine has them: what is read of each, or said of it. */
static void test_reported(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int32_t ranks, hosts; // 0: refused
        const char *words;    // of the note or of the refusal
    } files[] = {{"gb200-2tray.xml", 8, 2, ""},
                 {"two-hosts-nonv.xml", 8, 2, "--nvlink"},
                 {"self-link.xml", 2, 1, "--nvlink"},
                 {"smi-indent.txt", 2, 1, ""},
                 {"hwloc.xml", 0, 0, "is hwloc's"},
                 {"aws-g5.48xl.xml", 0, 0, "does not say which of its 9 PCI devices are GPUs"},
                 {"ibnet-l.txt", 0, 0, "lists nodes without their cables"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[512];
        cot_topology t;
        cot_error error;
        const cot_topology_options options = {.size = sizeof options, .say = hear};
        snprintf(name, sizeof name, "%s/cases/topology/%s", COT_SHARED, files[i].name);
        if (access(name, R_OK)) {
            print_message("SKIPPED: no %s\n", name);
            skip();
        }
        *notes = 0;
        cot_status status = cot_topology_read(&t, name, &options, &error);
        if ((status == COT_OK) != (files[i].ranks > 0))
            fail_msg("%s: %s", name, status ? error.message : "read");
        assert_int_equal(t.n_ranks, files[i].ranks);
        assert_int_equal(t.n_hosts, files[i].hosts);
        const char *said = status == COT_OK ? notes : error.message;
        if (!strstr(said, files[i].words) || (!*files[i].words && *said)) fail_msg("%s: %s", name, said);
        cot_topology_free(&t);
    }
    char name[512], *got;
    cot_error error;
    snprintf(name, sizeof name, "%s/cases/topology/ib-default.out", COT_SHARED);
    if (cot_topology_host_template(&got, name, &error) != COT_OK) fail_msg("%s", error.message);
    assert_string_equal(got, "host,gpu,adapter\nnode-1,0,mlx5_0\nnode-3,0,mlx5_0\n0xb02,0,0xb02\n");
    free(got);
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
    snprintf(links_path, sizeof links_path, "%s.links", path);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_json),
                                       cmocka_unit_test(test_json_refusals),
                                       cmocka_unit_test(test_ibnetdiscover),
                                       cmocka_unit_test(test_names_of_adapters),
                                       cmocka_unit_test(test_ibnetdiscover_ports),
                                       cmocka_unit_test(test_domains),
                                       cmocka_unit_test(test_host_template),
                                       cmocka_unit_test(test_template_seats_all),
                                       cmocka_unit_test(test_cut_off),
                                       cmocka_unit_test(test_nccl_hosts),
                                       cmocka_unit_test(test_reported),
                                       cmocka_unit_test(test_nccl_gpus),
                                       cmocka_unit_test(test_nccl_given_links),
                                       cmocka_unit_test(test_nccl),
                                       cmocka_unit_test(test_samples)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    unlink(hosts_path);
    unlink(links_path);
    return failed;
}
