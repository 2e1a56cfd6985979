/* Where something is published: addresses in numbers, ports to the last, and which of them others reach or use. */
#include "harness/cmocka.h"

#include "worker/endpoint.h"

#include <string.h>

static void test_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *address; // NULL: it is none
        int port;
        bool own;
        const char *of_rank_2;
    } rows[] = {{"tcp://127.0.0.1:1", "127.0.0.1", 1, true, "tcp://127.0.0.1:3"},
                {"tcp://127.9.9.9:65535", "127.9.9.9", 65535, true, "tcp://127.9.9.9:65537"},
                {"tcp://localhost:5557", "127.0.0.1", 5557, true, "tcp://127.0.0.1:5559"},
                {"tcp://*:5557", "*", 5557, false, "tcp://*:5559"},
                {"tcp://10.0.0.1:80", "10.0.0.1", 80, false, "tcp://10.0.0.1:82"},
                {"tcp://[::1]:80", "[::1]", 80, true, "tcp://[::1]:82"},
                {"tcp://[::]:80", "[::]", 80, false, "tcp://[::]:82"},
                {"tcp://[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:65535",
                 "[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]", 65535, false,
                 "tcp://[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:65537"},
                {"", NULL, 0, false, NULL},
                {"tcp://", NULL, 0, false, NULL},
                {"tcp://:80", NULL, 0, false, NULL},
                {"tcp:80", NULL, 0, false, NULL},
                {"127.0.0.1:80", NULL, 0, false, NULL},
                {"ipc://127.0.0.1:80", NULL, 0, false, NULL},
                {"tcp://127.0.0.1", NULL, 0, false, NULL},
                {"tcp://127.0.0.1:", NULL, 0, false, NULL},
                {"tcp://127.0.0.1:0", NULL, 0, false, NULL},
                {"tcp://127.0.0.1:65536", NULL, 0, false, NULL},
                {"tcp://127.0.0.1:000080", NULL, 0, false, NULL},
                {"tcp://127.0.0.1:-1", NULL, 0, false, NULL},
                {"tcp://127.0.0.1:80x", NULL, 0, false, NULL},
                {"tcp://127.0.0.1: 80", NULL, 0, false, NULL},
                {"tcp://127.0.0.256:80", NULL, 0, false, NULL},
                {"tcp://host.example:80", NULL, 0, false, NULL},
                {"tcp://::1:80", NULL, 0, false, NULL},
                {"tcp://[::1:80", NULL, 0, false, NULL},
                {"tcp://[]:80", NULL, 0, false, NULL},
                {"tcp://(::1]:80", NULL, 0, false, NULL},
                {"tcp://[0000000000000000000000000000000000000000000000000000000000000001]:80", NULL, 0,
                 false, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_endpoint endpoint = {0};
        char text[96];
        if (cot_endpoint_read(&endpoint, rows[i].text) != (rows[i].address != NULL))
            fail_msg("'%s'", rows[i].text);
        if (!rows[i].address) continue;
        assert_string_equal(endpoint.address, rows[i].address);
        assert_int_equal(endpoint.port, rows[i].port);
        if (cot_endpoint_is_own(&endpoint) != rows[i].own) fail_msg("'%s' is own or not", rows[i].text);
        cot_endpoint_write(text, &endpoint, 2);
        assert_string_equal(text, rows[i].of_rank_2);
    }
}

/* Against every port of each. */
static void test_ports(void **state)
{
    (void)state;
    for (int first = 5; first < 10; first++)
        for (int count = 0; count < 4; count++)
            for (int other = 5; other < 10; other++)
                for (int others = 0; others < 4; others++) {
                    bool common = false;
                    for (int a = first; a < first + count; a++)
                        for (int b = other; b < other + others; b++) common |= a == b;
                    if (count && others) // no ports at all are nobody's question
                        assert_int_equal(cot_ports_overlap(first, count, other, others), common);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts), cmocka_unit_test(test_ports)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
