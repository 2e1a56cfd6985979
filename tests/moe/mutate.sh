#!/bin/sh
# Weakens the fused protocol in one place at a time and expects the drawn schedules to catch it.
# mutate.sh SOURCE_DIR BUILD_DIR: the library and the harness in BUILD_DIR are built. The first argument of `mutant` is a file of
# src/moe/fused, the second a sed expression that must change it.
set -u
source=$1
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
missed=0

mutant() {
    sed "$2" "$source/src/moe/fused/$1" >"$work/$1"
    if cmp -s "$work/$1" "$source/src/moe/fused/$1"; then
        echo "changes nothing: $1 $2"
        missed=1
        return
    fi
    cc -std=gnu17 -O1 -w -I"$source/src" -I"$source/include" -I"$source/tests" -DCOT_SHARED='""' -DCOT_SOURCE='""' \
        "$source/tests/moe/test_fused_schedules.c" "$work/$1" -o "$work/test" "$build/tests/harness/libtest_harness.a" \
        "$build/libcoterie.a" -lcmocka -ljansson -lpthread -lm || exit 1
    if timeout 120 "$work/test" >"$work/log" 2>&1; then
        echo "missed: $1 $2"
        missed=1
    else
        echo "caught: $1 $2: $(grep -m1 -E 'ERROR|ssert|does not' "$work/log")"
    fi
    rm "$work/$1"
}

# combine before all reply signals; before the shared expert
mutant schedule.c 's/moe->replied < ranks || moe->shared_done/moe->replied + 1 < ranks || moe->shared_done/'
mutant schedule.c 's/ || moe->shared_done < moe->tokens ||/ ||/'
# a reply signal before all replies, or before the last row
mutant schedule.c 's/ \&\& !source->outstanding)/ \&\& source->outstanding < 2)/'
mutant schedule.c 's/source->flags \& COT_FUSED_FINAL \&\& !source->outstanding/!source->outstanding/'
# a pass ends without the others' reply signals, or without the own ones
mutant schedule.c 's/moe->replied == ranks \&\& (moe/(moe/'
mutant schedule.c 's/ \&\& moe->signalled == ranks \&\&/ \&\&/'
# a void pass leaves lanes at work
mutant schedule.c 's/moe->gave_up ? lanes_are_free(moe) : /moe->gave_up || /'
# a rank that has nothing says nothing
mutant send.c 's/i < ranks \&\& task->last; i++) flush/i < ranks \&\& task->last \&\& moe->tokens; i++) flush/'
# the end is told before the last rows
mutant send.c 's/if (++cell->rows == l->cell_tokens) flush(moe, to, 0)/if (++cell->rows == l->cell_tokens) flush(moe, to, COT_FUSED_FINAL)/'
# replies that are put are never counted
mutant schedule.c 's/if (target\[i\].home != moe->options.fabric->rank) moe->source/if (target[i].home < 0) moe->source/'
# tiles are closed before the last packets
mutant subscribe.c 's/if (moe->finals == ranks \&\& !moe->closed)/if (moe->finals >= ranks - 1 \&\& !moe->closed)/'
# a tile that waits although all is in
mutant schedule.c 's/if (begin \&\& free_lane >= 0 \&\& !moe->gave_up)/if (begin \&\& free_lane >= 0 \&\& !moe->running)/'
exit $missed
