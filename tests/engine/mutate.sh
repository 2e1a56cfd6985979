#!/bin/sh
# Weakens the protocol of moves in one place at a time and expects the drawn schedules to catch it.
# mutate.sh SOURCE_DIR BUILD_DIR: the library and the harness in BUILD_DIR are built. What `mutant` is given are sed's
# expressions, each of which must change src/engine/migrate.c.
set -u
source=$1
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
missed=0

cc -std=gnu17 -O1 -w -c -I"$source/src" -I"$source/include" -I"$source/tests" "$source/tests/engine/test_migrate_sim.c" \
    -o "$work/test.o" || exit 1

mutant() {
    cp "$source/src/engine/migrate.c" "$work/migrate.c"
    for expression in "$@"; do
        cp "$work/migrate.c" "$work/before.c"
        sed "$expression" "$work/before.c" >"$work/migrate.c"
        if cmp -s "$work/migrate.c" "$work/before.c"; then
            echo "changes nothing: $expression"
            missed=1
            return
        fi
    done
    cc -std=gnu17 -O1 -w -I"$source/src" -I"$source/include" "$work/migrate.c" "$work/test.o" -o "$work/test" \
        "$build/tests/harness/libtest_harness.a" "$build/libcoterie.a" -lcmocka -ljansson -lpthread -lm || exit 1
    timeout 120 "$work/test" >"$work/log" 2>&1
    broken=$(sed -n 's/.*schedule [0-9]* ([0-9]*): //p' "$work/log") # what had to hold and did not
    if [ -n "$broken" ]; then
        echo "caught: $*: $broken"
    else
        echo "missed: $*"
        missed=1
    fi
    rm "$work/test"
}

# ---- places ----
# a place is free while a chunk is on its way to it; or never again
mutant 's/move->asked ? COT_MIGRATE_DRAINING : COT_MIGRATE_FREE;/COT_MIGRATE_FREE;/'
mutant '/state == COT_MIGRATE_GIVEN_UP) {/,/advanced/s/COT_MIGRATE_FREE;/COT_MIGRATE_DRAINING;/'
# the place of a move given up stays its own
mutant 's/move->asked ? COT_MIGRATE_DRAINING : COT_MIGRATE_FREE;/COT_MIGRATE_TAKEN;/'
# what is reserved for one is free for others
mutant 's/m->place\[place_of(m, move)\] = COT_MIGRATE_TAKEN;/;/'
# any place will do
mutant 's/if (m->place\[at\] == COT_MIGRATE_FREE \&\& (slot < 0/if ((slot < 0/'
# the place of a slot in use is taken; or a free slot's, which keeps it
mutant 's/if (!is_alike(m, layer, l) || m->place\[at\] != COT_MIGRATE_FREE || m->o.place\[at\] < 0) continue;/if (!is_alike(m, layer, l) || m->o.place[at] < 0) continue;/'
mutant 's/            m->o.place\[at\] = -1;/;/'
# a place of another pool is taken
mutant 's/if (!is_alike(m, layer, l) || m->place\[at\]/if (m->place\[at\]/'
# any layer takes what is for one at a time; one does though another has it
mutant 's/if (used >= own \&\& (!m->o.transit || layer != m->in_hand || is_lent(m, layer, rank)))/if (used >= own \&\& (!m->o.transit || is_lent(m, layer, rank)))/'
mutant 's/if (used >= own \&\& (!m->o.transit || layer != m->in_hand || is_lent(m, layer, rank)))/if (used >= own \&\& (!m->o.transit || layer != m->in_hand))/'
# ---- copying ----
# two chunks of one rank at a time
mutant 's/ || move->round != m->round) continue;/) continue;/'
# another chunk before the first is answered
mutant 's/if (m->placing || awaits(m, false)) return/if (m->placing) return/'
# checksums are not looked at; a chunk that differs is not sent again
mutant 's/verdict == COT_RUNNER_DIFFERS/false/'
mutant 's/if (--move->tries == 0) give_up(m, move, COT_MOVE_DIFFERED);/move->chunk.begin += move->chunk.bytes; if (move->chunk.begin == m->o.slot_bytes[move->chunk.layer]) move->state = COT_MIGRATE_COMPARED;/'
# a slot is said to be whole before its last chunk
mutant 's/if (move->chunk.begin == m->o.slot_bytes\[move->chunk.layer\])/if (move->chunk.begin >= m->o.slot_bytes[move->chunk.layer] - 1)/'
# a rank that cannot take an expert is taken for one that has
mutant 's/verdict == COT_RUNNER_FAILED/false/'
# ---- publishing ----
# an epoch is made while another is under way
mutant 's/if (m->placing || awaits(m, false)) return/if (awaits(m, false)) return/'
# old places are free before all have answered
mutant 's/m->place\[at\] = COT_MIGRATE_RETIRING;/m->place[at] = COT_MIGRATE_FREE;/' 's/if (m->placing || awaits(m, false)) return/if (awaits(m, false)) return/'
# moves are published that are not whole
mutant 's/if (move->state != COT_MIGRATE_COMPARED || /if (move->state < COT_MIGRATE_RESERVED || move->state > COT_MIGRATE_COMPARED || /' 's/if (copies(m)) {/if (copies(m) \&\& bytes > 0) {/'
# the last replica is dropped; nothing is
mutant 's/if (m->keeps\[expert\]++ == 0) continue;/;/'
mutant 's/if (m->keeps\[expert\]++ == 0) continue;/continue;/'
# a layer is published while others of it are still to be copied from what that drops
mutant '/^static bool is_ready/,/^}/s/return false;/return true;/'
# a round's move is begun late, from where the expert may no longer be
mutant 's/ || move->round != m->round) continue;/ || move->round > m->round) continue;/'
# what is dropped is counted as a replica that stays
mutant 's/if (m->place\[at\] == COT_MIGRATE_IN_FORCE \&\& is_wanted(m, layer, rank, slot))/if (m->place[at] == COT_MIGRATE_IN_FORCE)/'
# an epoch that was refused is taken for adopted: what it drops, what it adds, what comes after
mutant 's/m->place\[at\] = adopted ? COT_MIGRATE_FREE : COT_MIGRATE_IN_FORCE;/m->place[at] = COT_MIGRATE_FREE;/'
mutant 's/        if (!adopted) {/        if (false) {/'
mutant 's/    if (!adopted) stop(m, COT_MOVE_REFUSED);/;/'
# ---- giving up ----
# a move is given up although it is published: by time, by a cancellation
mutant 's/return move->state == COT_MIGRATE_RESERVED || move->state == COT_MIGRATE_COPYING;/return move->state >= COT_MIGRATE_RESERVED \&\& move->state <= COT_MIGRATE_PUBLISHED \&\& (move->state < COT_MIGRATE_COMPARED || move->since_ns % 2);/'
mutant 's/if (m->move\[i\].state < COT_MIGRATE_PUBLISHED) give_up/if (m->move[i].state <= COT_MIGRATE_PUBLISHED) give_up/'
# a cancellation gives up what is under way and begins the rest
mutant '/^static void stop/,/^}/s/m->stopped = true;/;/'
# what was given up is tried again
mutant 's/    \*given_up(m, move->chunk.layer, move->chunk.expert, move->chunk.to) = 1;/;/'
# ---- the course of it ----
# a pass begins, or all is over, while a chunk is under way
mutant 's/        if (awaits(m, true)) return COT_OK;.*/;/'
mutant 's/if (!awaits(m, true)) command->kind/command->kind/'
# one pass is enough; no layer is published while a move waits, though it is for a place
mutant 's/if (!waits_from(m, from)) {/if (true) {/'
mutant '/^static bool is_ready/,/^}/s/m->move\[i\].round > m->round)/true)/'
exit $missed
