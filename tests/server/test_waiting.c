/* Who waits for the engine's thread: lists that exchanges enter and leave, against plain counts. */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/seed.h"

#include "server/server_state.h"

#include <string.h>

enum { CLIENTS = 5 };

/* Forgets an exchange wherever it stands, beside itself too; the others wait on, each as often as it asked. */
static void test_forgotten(void **state)
{
    (void)state;
    struct draw drawn = {.seed = test_seed()};
    static char clients[CLIENTS]; // exchanges are told apart by where they are alone
    static cot_server server;
    int asked[COT_WAITING_KINDS][CLIENTS];
    for (int round = 0; round < 200; round++) {
        memset(asked, 0, sizeof asked);
        for (int64_t n = draw_below(&drawn, 30); n; n--) {
            const int kind = (int)draw_below(&drawn, COT_WAITING_KINDS),
                      client = (int)draw_below(&drawn, CLIENTS);
            assert_true(cot_server_wait(&server, (cot_server_waiting_kind)kind,
                                        (cot_http_exchange *)(void *)&clients[client]));
            asked[kind][client]++;
        }
        const int gone = (int)draw_below(&drawn, CLIENTS);
        cot_server_forget_waiting(&server, (const cot_http_exchange *)(const void *)&clients[gone]);
        for (int kind = 0; kind < COT_WAITING_KINDS; kind++) {
            asked[kind][gone] = 0;
            for (cot_http_exchange *e; (e = cot_server_take_waiting(&server, (cot_server_waiting_kind)kind));)
                asked[kind][(char *)e - clients]--;
            for (int client = 0; client < CLIENTS; client++) assert_int_equal(asked[kind][client], 0);
        }
    }
    cot_server_free_waiting(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forgotten)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
